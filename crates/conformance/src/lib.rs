//! The battery that every placement of Bifold must pass, as a library: one test for each row of the table in
//! `reliability/rows.md`, which lists bugs that other engines with separated values had.
//!
//! [`battery!`] makes the tests of a placement. In a file of `tests/`:
//!
//! ```
//! bifold_conformance::battery! {
//!     wisckey: bifold_conformance::Case::new(bifold::Placement::WiscKey);
//! }
//! # fn main() {}
//! ```
//!
//! A placement of your own is `Case::own("its_name", its_factory)`. How to write one is in `docs/own-placement.md`.
//!
//! `cargo test` then runs `wisckey::a01_a_deleted_key_does_not_come_back_when_its_value_moves` and the others.
//!
//! A row is a function of a [`Case`]: the placement, its options, and what is known about it. Rows use the public
//! interface of `bifold` and files in memory; what is small here is small so that a few hundred writes fill, split,
//! empty and delete many files. A row panics where the placement fails it.
//!
//! | module | rows about |
//! |---|---|
//! | [`moves`] | what a value is after it moved |
//! | [`jobs`] | what concurrent GC jobs do to one another |
//! | [`deletes`] | what is deleted and must stay so |
//! | [`readers`] | what readers that began earlier see |
//! | [`crashes`] | what a crash leaves |
//! | [`entries`] | entries that expire, operands, ingests, large values |
//! | [`faults`] | what errors and damage leave |
//! | [`mod@exact`] | what must be exact where compaction reports what is dead: [`exact!`] makes the tests |
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "a test that cannot set itself up should panic")]

mod case;
pub mod crashes;
pub mod deletes;
pub mod entries;
pub mod exact;
pub mod faults;
pub mod jobs;
mod meanwhile;
pub mod moves;
pub mod readers;
mod support;

pub use case::{Case, Dead, MIN_BYTES, Separated};

/// Makes one test for each row and each of these placements: `name: case;` gives the tests `name::row`. The case is an
/// expression of type [`Case`], which each test evaluates.
#[macro_export]
macro_rules! battery {
    ($($name:ident: $case:expr);+ $(;)?) => {
        $crate::rows! { [$($name: $case;)+]
            crashes: a03_copies_that_are_listed_without_their_moves_replace_nothing
            crashes: a03_moves_that_no_table_holds_survive_a_crash_at_every_io
            crashes: a09_a_crash_while_everything_is_cleared_leaves_all_or_nothing
            crashes: a18_a_crash_at_every_io_of_gc_leaves_no_orphan_and_no_number_twice
            crashes: b03_a_file_torn_at_any_byte_opens
            crashes: b05_the_oldest_of_many_logs_is_replayed
            crashes: b06_a_crash_while_a_long_log_is_replayed_loses_nothing
            crashes: b10_a_crash_within_the_recovery_of_gc_loses_nothing
            crashes: b12_zeros_behind_the_end_of_a_file_are_no_commits
            deletes: a01_a_deleted_key_does_not_come_back_when_its_value_moves
            deletes: a01_deleted_keys_stay_deleted_while_threads_run_gc_and_merge
            deletes: a02_a_delete_is_never_below_what_it_deletes
            deletes: a02_range_deletes_go_when_nothing_needs_them
            deletes: a02_range_deletes_that_do_not_merge_have_a_bound_in_memory
            deletes: a02_a_range_delete_outlasts_the_files_that_a_crash_brings_back
            deletes: a05_a_snapshot_keeps_what_a_range_delete_took
            deletes: a06_a_range_deleted_while_its_values_move_stays_deleted
            deletes: a06_a_keyspace_dropped_during_gc_leaves_nothing
            deletes: a09_a_cleared_keyspace_can_be_used_again_after_reopening
            deletes: b02_no_replay_undoes_a_clear
            entries: e01_what_expires_goes_with_its_moment_whatever_moves
            entries: e02_operands_are_combined_with_values_that_have_moved
            entries: e03_an_ingest_over_values_that_move_is_there_as_a_whole
            entries: e04_large_values_are_whole_beside_values_that_move
            faults: a17_an_error_within_gc_is_reported_and_loses_nothing
            faults: a19_verifying_and_reading_change_no_byte
            faults: c12_a_full_disk_can_be_emptied_by_gc
            faults: c13_damage_is_reported_with_its_place_and_spoils_nothing_else
            faults: c14_an_iterator_leaves_nothing_out_behind_damage
            faults: b04_damage_before_a_synced_commit_drops_none_behind_it
            jobs: a04_concurrent_jobs_take_no_file_twice
            moves: a04_a_flush_in_the_middle_of_gc_loses_nothing
            moves: a04_two_gc_calls_at_once_follow_each_other
            moves: a05_a_checkpoint_and_its_origin_run_gc_on_their_own
            moves: a05_nothing_is_appended_to_the_files_of_a_checkpoint
            moves: a08_a_moved_value_has_its_bytes_whatever_the_codec
            moves: a10_every_value_reads_back_whatever_share_of_its_file_is_dead
            moves: a10_a_moved_value_is_not_a_dropped_one
            moves: a10_of_two_versions_in_one_file_the_newer_is_kept
            moves: a11_the_manifest_says_what_is_there
            moves: a11_garbage_is_remembered_across_reopening
            moves: a12_a_moved_record_keeps_number_kind_and_body
            moves: a12_a_record_carried_over_keeps_number_kind_and_body
            moves: a15_constant_gc_changes_no_answer
            moves: a20_values_about_the_threshold_do_not_get_mixed_up
            moves: b01_all_keys_of_all_keyspaces_are_there_after_reopening
            readers: a13_every_set_of_snapshots_keeps_what_it_sees_and_no_more
            readers: a16_open_readers_outlast_gc_of_everything
            readers: a21_readers_miss_no_value_while_its_file_goes
            readers: g14_snapshots_stay_the_same_while_every_value_moves
        }
    };
}

/// Makes the tests of [`mod@exact`] for placements that know exactly what is dead. Written as [`battery!`].
#[macro_export]
macro_rules! exact {
    ($($name:ident: $case:expr);+ $(;)?) => {
        $crate::rows! { [$($name: $case;)+]
            exact: valid_records_are_the_versions_in_the_index_after_any_history
            exact: a_crash_at_any_io_leaves_no_version_lost_or_kept_in_vain
            exact: a_crash_within_a_recovery_of_two_keyspaces_leaves_no_copy
            exact: what_threads_drop_while_others_collect_is_exact
            exact: what_was_synced_is_exact_after_a_power_loss
            exact: what_moves_before_its_commit_is_durable_is_dead_after_a_power_loss
        }
    };
}

/// Makes the tests of these rows.
#[doc(hidden)]
#[macro_export]
macro_rules! rows {
    ([] $($rows:tt)+) => {};
    ([$name:ident: $case:expr; $($others:tt)*] $($module:ident: $row:ident)+) => {
        mod $name {
            #[allow(unused_imports, reason = "a case may need no name of the file")]
            use super::*;

            $(
                #[test]
                fn $row() {
                    $crate::$module::$row(&$case);
                }
            )+
        }
        $crate::rows! { [$($others)*] $($module: $row)+ }
    };
}
