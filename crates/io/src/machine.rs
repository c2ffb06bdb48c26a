//! The machine that this process runs on.

/// Its memory, in bytes; 1 GiB where the system does not say.
#[must_use]
pub fn memory_bytes() -> u64 {
    #[cfg(target_os = "linux")]
    {
        let found = rustix::system::sysinfo();
        u64::from(found.mem_unit.max(1)).saturating_mul(found.totalram as u64)
    }
    #[cfg(not(target_os = "linux"))]
    {
        1 << 30
    }
}
