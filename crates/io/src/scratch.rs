//! A buffer of each thread, for bytes that are looked at and then copied from or thrown away.
//!
//! It stays in the processor's cache; a new one would have to be allocated, zeroed and freed.

use std::cell::RefCell;

/// Longer ones are not kept.
pub const SCRATCH_BYTES: usize = 16 << 10;

thread_local! {
    static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Calls `use_it` with `len` bytes, whatever is in them. Within that call, beyond [`SCRATCH_BYTES`], and while the
/// thread ends, the bytes are allocated.
#[inline]
pub fn with_scratch<T>(len: usize, use_it: impl FnOnce(&mut [u8]) -> T) -> T {
    let mut use_it = Some(use_it);
    let used = SCRATCH.try_with(|scratch| {
        let mut scratch = scratch.try_borrow_mut().ok().filter(|_| len <= SCRATCH_BYTES)?;
        if scratch.len() < len {
            scratch.resize(SCRATCH_BYTES, 0);
        }
        use_it.take().map(|use_it| use_it(&mut scratch[..len]))
    });
    match (used, use_it) {
        (Ok(Some(answer)), _) => answer,
        (_, Some(use_it)) => use_it(&mut vec![0; len]),
        (_, None) => unreachable!("it was called and has answered"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uses_within_uses_do_not_share_bytes() {
        with_scratch(10, |outer| {
            outer.fill(1);
            with_scratch(20, |inner| inner.fill(2));
            assert_eq!(outer, [1; 10]);
        });
        assert_eq!(with_scratch(SCRATCH_BYTES + 1, |long| long.len()), SCRATCH_BYTES + 1);
    }
}
