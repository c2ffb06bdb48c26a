//! Tests of the sizes. Full disks: `tests/all/full_disk.rs`.

use super::*;

const MIB: u64 = 1 << 20;

#[test]
fn a_small_database_keeps_room_for_a_rewrite_and_a_large_one_for_a_part() {
    assert_eq!(job_bytes(0), 0);
    assert_eq!(job_bytes(8 * MIB), 6 * MIB);
    assert_eq!(job_bytes(500 * MIB), 64 * MIB);
    assert_eq!(job_bytes(16 << 30), 1 << 30);
}

#[test]
fn the_reserve_is_a_share_of_the_data_within_bounds() {
    assert_eq!(reserve_bytes(0, 0, 0), 0);
    assert_eq!(reserve_bytes(8 * MIB, MIB, MIB * 64), 2 * MIB);
    assert_eq!(reserve_bytes(32 * MIB, MIB, 64 * MIB), RESERVE_BYTES_MIN);
    assert_eq!(reserve_bytes(320 * MIB, MIB, 64 * MIB), 10 * MIB);
    assert_eq!(reserve_bytes(320 * MIB, 16 * MIB, 64 * MIB), 20 * MIB, "room to rewrite a table");
    assert_eq!(reserve_bytes(32 * MIB, 16 * MIB, 64 * MIB), 8 * MIB, "but never more than a quarter");
    assert_eq!(reserve_bytes(1 << 40, MIB, 1 << 36), RESERVE_BYTES_MAX);
    assert_eq!(reserve_bytes(1 << 40, MIB, 7), 7, "not more than the options ask for");
}

/// One value file or table of a quarter of the data: the reserve is as large, and jobs need less.
#[test]
fn what_the_reserve_has_beyond_the_need_of_jobs_is_not_for_puts() {
    let (data_bytes, kept) = (1 << 30, MIB);
    let reserve = reserve_bytes(data_bytes, 256 * MIB, u64::MAX);
    assert!(reserve > job_bytes(data_bytes) + kept, "{reserve}");
    assert_eq!(spare(0, reserve, 0, job_bytes(data_bytes)), 0, "a full disk");
    assert_eq!(spare(5 * MIB, reserve, kept, job_bytes(data_bytes)), 4 * MIB);
    assert_eq!(spare(0, 8 * MIB, 0, 6 * MIB), 0, "nor on a small one");
    assert_eq!(spare(5 * MIB, 4 * MIB, kept, 6 * MIB), 2 * MIB, "as far as jobs need it, it counts");
}
