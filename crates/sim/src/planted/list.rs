//! All planted bugs, and what must catch each.

use super::{Planted, Test};

const fn bug(name: &'static str, caught_by: Test) -> Planted {
    Planted { name, caught_by }
}

const BITFLIP: Test = Test::Proof("bitflip");
const DAMAGE: Test = Test::Proof("damage");
const FULL: Test = Test::Proof("full");
const ALONE: Test = Test::Unit("bifold", "alone_tests");
const EMPTIED: Test = Test::Integration("bifold", "all", "full_disk::a_disk_that_others");
const LEFTOVERS: Test = Test::Integration("bifold", "all", "full_disk::a_full_disk_without");
const ERRNO: Test = Test::Proof("errno");
const METAMORPHIC: Test = Test::Proof("metamorphic");
const TRANSACTIONS: Test = Test::Proof("transactions");
const POWER: Test = Test::Proof("power");
const WRITE_CACHES: Test = Test::Integration("bifold", "all", "write_caches::");
const OVERLOOKS: Test = Test::Unit("bifold", "transaction::validate::tests");
const AT_ONCE: Test = Test::Unit("bifold-values", "value_files::ahead::");
const SYNCS: Test = Test::Unit("bifold", "wal::tests::");
const CLOSED_LOGS: Test = Test::Unit("bifold", "wal::closed_tests::a_durable_commit");
const KEPT_LOGS: Test = Test::Unit("bifold", "wal::closed_tests::a_log_that_is_only_kept");
const REGION: Test = Test::Unit("bifold-io", "region::");
const OVER_CRASHES: Test = Test::Integration("bifold-over", "all", "crashes::power_losses");
const OVER_NOTES: Test = Test::Integration("bifold-over", "all", "crashes::a_note");
const OVER_BASICS: Test = Test::Integration("bifold-over", "all", "basics::");
const OVER_CLOSED_LOGS: Test = Test::Integration("bifold-over", "all", "threads::commits_into_a_log");
const DELETES: Test = Test::Integration("bifold-conformance", "placements", "hashkv::a01_a_deleted_key");
const EXACT: Test = Test::Integration("bifold-conformance", "placements", "novkv_exact::");
const DIFFKV: Test = Test::Unit("bifold-values", "diffkv::");
const STREAMS_EXACT: Test = Test::Integration("bifold-conformance", "placements", "streams_exact::");
const LOST_ROWS: Test = Test::Integration("bifold", "all", "left_out::knowledge::");
const STREAMS_READERS: Test = Test::Integration("bifold-conformance", "placements", "streams::a13_every_set");
const DIFFKV_EXACT: Test = Test::Integration("bifold-conformance", "placements", "diffkv_exact::valid_records");
const DIFFKV_READERS: Test = Test::Integration("bifold-conformance", "placements", "diffkv::a16");
const NOVKV: Test = Test::Unit("bifold-values", "novkv::");
const HANDLES: Test = Test::Unit("bifold-values", "handles::");
const COLD_LOG_DELETES: Test =
    Test::Integration("bifold-conformance", "placements", "hashkv_cold_log::a01_a_deleted_key");
const COLD_LOG_CRASHES: Test = Test::Integration("bifold-conformance", "placements", "hashkv_cold_log::a03_copies");
const LISTING: Test = Test::Unit("bifold-values", "value_files::listing");
const KILLED: Test = Test::Integration("bifold", "all", "killed::");
const POLICIES: Test = Test::Unit("bifold-index", "compaction::model");
const LEVEL0: Test = Test::Unit("bifold-index", "version::level0::");
const TIERED: Test = Test::Integration("bifold-index", "plans", "tiered_chooses");
const LOST_MANIFEST: Test = Test::Integration("bifold", "all", "recovery::a_database_that_has_lost_its_manifest");
const CHECKPOINTS: Test = Test::Proof("checkpoints");
const BACKUPS: Test = Test::Proof("backups");
const FOLLOWERS: Test = Test::Proof("followers");
const REFRESHED_READERS: Test = Test::Integration("bifold", "all", "followers::a_refreshed_reader");
const HALF_A_RECORD: Test = Test::Integration("bifold", "all", "followers::half_a_record");
const BESIDE: Test = Test::Proof("beside");
const UNDER_WAY: Test = Test::Integration("bifold", "all", "values::values_of_a_commit_under_way");
const LENGTHS: Test = Test::Unit("bifold-format", "compression::");
const NUMBERS: Test = Test::Integration("bifold", "all", "recovery::a_file_with_a_number");
const RANGES: Test = Test::Integration("bifold-conformance", "placements", "hashkv::a02_a_range_delete_outlasts");
const OPTIONS: Test = Test::Integration("bifold", "all", "options::options_that_are_not_durable");
const SEALED: Test = Test::Unit("bifold-values", "copies::tests::nothing_is_written_to_a_file_that_is_sealed");
const RECORDED: Test = Test::Unit("bifold-values", "copies::tests::a_file_that_the_next_edit_records");
const OUTPUT_KEYS: Test = Test::Unit("bifold", "schedule::tests::keys_that_a_running_job_writes");
const ABOVE: Test = Test::Unit("bifold-index", "lookup::tests::what_is_older_than");
const FLUSH_ORDER: Test = Test::Unit("bifold", "shared_flush::tests::memtables_are_installed");
const LOG_LIMIT: Test = Test::Unit("bifold", "write::tests::logs_that_only_sealed");
const FLUSH_RANGES: Test = Test::Unit("bifold", "shared_flush::tests::a_flush_waits");
const IDLE: Test = Test::Integration("bifold", "all", "idle::what_a_snapshot_held");
const MANY: Test = Test::Integration("bifold", "all", "many_keyspaces::every_keyspace");
const CUT_MANIFEST: Test = Test::Integration("bifold", "all", "recovery::a_manifest_that_ends_early");
const CLEARED: Test = Test::Integration("bifold-conformance", "placements", "hashkv::b02_no_replay");

const LATE_KEYSPACE: Test = Test::Integration("bifold", "all", "waits::a_sync_covers");
const DROPPED_MEMTABLES: Test = Test::Integration("bifold", "all", "waits::a_writer_goes_on");
const VISITS: Test = Test::Integration("bifold", "all", "ranges::a_visit");
const COLD: Test = Test::Unit("bifold-io", "region::tests::what_is_written");
const SEEKS: Test = Test::Integration("bifold", "all", "iterators::entries_that_one_end");
const LOST_NUMBERS: Test = Test::Unit("bifold", "recover::lost_tests::");
const UNSEEN_INGESTS: Test = Test::Unit("bifold", "schedule::ingest_tests::");
const REMOVALS: Test = Test::Integration("bifold", "all", "space_held::writers_wait_for_files");
const FORKED: Test = Test::Integration("bifold", "all", "forked::a_forked_child_writes");
const DROPPED_FILES: Test = Test::Integration("bifold", "all", "keyspaces::the_files_of_a_dropped");
const LEFT_OUT: Test = Test::Integration("bifold", "all", "left_out::damage_that");
const GIVEN_UP: Test = Test::Integration("bifold", "all", "left_out::a_rewrite_that_is_given_up");
const PRESSURE: Test = Test::Unit("bifold-values", "placement::");
const GC_BEFORE: Test = Test::Unit("bifold", "gc::tests::the_first_put_that_expires");
const UNSEEN: Test = Test::Unit("bifold", "gc::tests::a_snapshot_reads");
const ENDED: Test = Test::Unit("bifold", "schedule::ended_tests::");
const HARD_LINKS: Test = Test::Integration("bifold", "all", "hard_links::");
const CHANGES: Test = Test::Integration("bifold", "all", "changes::");
const WAITING: Test = Test::Integration("bifold", "all", "changes::waiting::every_commit");

const MERGES: Test = Test::Integration("bifold", "all", "merges::");
const CHAINS: Test = Test::Integration("bifold", "all", "merge_chains::");
const BETWEEN_LOADS: Test = Test::Unit("bifold", "read::get::tests::");
const STEPS: Test = Test::Unit("bifold-index", "memtable::steps::");
const FILTERS: Test = Test::Integration("bifold", "all", "filters::");
const UNDAMAGED: Test = Test::Integration("bifold", "all", "undamaged::what_is_yielded");

const SALVAGE: Test = Test::Integration("bifold", "all", "salvage_database::");

const EXPIRY: Test = Test::Integration("bifold", "all", "expiry::");
const CHANGES_LARGE: Test = Test::Integration("bifold", "all", "changes::large::");
const LARGE: Test = Test::Integration("bifold", "all", "large::");
const PIECES: Test = Test::Unit("bifold", "ingest::tests::");
const INGEST: Test = Test::Integration("bifold", "all", "ingest::");

const FAILED_SYNCS: Test = Test::Unit("bifold-io", "dir::syncs");

const SHORT_GC: Test = Test::Unit("bifold", "gc::tests::short_gc_waits_for_no_flush");
const OVERWRITTEN: Test = Test::Unit("bifold", "state::overwrites::");
const STREAMS_SAMPLES: Test = Test::Unit("bifold-values", "streams::dead::");
const STREAMS_PLANS: Test = Test::Integration("bifold-values", "plans", "streams_picks");

const ABANDONED_COPIES: Test = Test::Unit("bifold-values", "hashkv::tests::the_copies_of_a_run");
const RESERVE_BEYOND: Test = Test::Unit("bifold", "room::tests::what_the_reserve_has");
const LARGE_UNDER_WAY: Test = Test::Integration("bifold", "all", "large::meanwhile::a_disk_that_fills");
const HELD_UP: Test = Test::Unit("bifold", "schedule::room_tests::");
const LAST_COMMITS: Test = Test::Integration("bifold", "all", "notices::what_is_committed_in_memory");
const LATER_NOTICES: Test = Test::Unit("bifold", "notices::tests::a_sync_that_ends");
const ANOTHER_HISTORY: Test = Test::Integration("bifold", "all", "followers::another_history");
const REMOVED_PIN: Test = Test::Unit("bifold-io", "pins::tests::a_pin_that_somebody");
const BACKED_UP_LOGS: Test = Test::Integration("bifold", "all", "backups::damage::a_damaged_log");
const CUT_FILES: Test = Test::Integration("bifold", "all", "backups::followed::a_value_file");
const OLDER_MANIFESTS: Test = Test::Integration("bifold", "all", "salvage_database::trust::a_manifest");
const MISSING_FILES: Test = Test::Integration("bifold", "all", "salvage_database::what_comes_back");
const INGEST_SPACE: Test = Test::Unit("bifold", "ingest::tests::nothing_counts");
const EXPIRED_TAGS: Test = Test::Integration("bifold", "all", "expiry::values_in_a_cold_log");
const UNKNOWN_TAGS: Test = Test::Integration("bifold", "all", "values::cold_log::a_range_delete");
const LONG_OPERANDS: Test = Test::Unit("bifold", "gc::tests::what_gc_commits");
const VANISHED_BEFORE: Test = Test::Unit("bifold-values", "hashkv::tests::what_vanishes_before");
const VANISHED_SINCE: Test = Test::Unit("bifold-values", "hashkv::tests::what_vanishes_once");
const CALLERS_GC: Test = Test::Unit("bifold", "gc::tests::gc_in_the_thread_of_a_caller");
const TOO_LONG_OPERANDS: Test = Test::Unit("bifold", "gc::tests::a_value_below_operands");

const DECIDED_ROOM: Test = Test::Unit("bifold", "filter::tests::what_is_decided");
const UNREAD_MOVES: Test = Test::Unit("bifold", "gc::tests::an_index_that_cannot_be_read");
const REMOVED_UNWRITTEN: Test = Test::Unit("bifold-io", "fault_tests::a_removed_file");
const FULL_INGESTS: Test = Test::Unit("bifold", "ingest::tests::a_disk_that_is_full");
const SEVERAL_SLOTS: Test = Test::Unit("bifold-io", "fault_tests::several_slots");
const LEFT_APPENDS: Test = Test::Integration("bifold", "all", "recovery::appends_that_a_killed");
const CUT_SLOTS: Test = Test::Unit("bifold-io", "fault_tests::appends_after_a_truncation");
const NEW_DIRECTORIES: Test = Test::Integration("bifold", "all", "recovery::each_directory");
const ENTRY_ORDER: Test = Test::Unit("bifold-index", "run::tests::entries_out_of_order");
const FLUSHED_VALUES: Test = Test::Unit("bifold-values", "diffkv::tests::what_a_flush_writes");
const OVER_DAMAGE: Test = Test::Integration("bifold-over", "all", "faults::a_damaged_value");
const PRIVATE_PINS: Test = Test::Integration("bifold-io", "all", "forked::whoever_uses");
const READERS_WORK: Test = Test::Unit("bifold", "schedule::reader_tests::");
const SHORT_MANIFEST: Test = Test::Integration("bifold", "all", "keyspaces::the_manifest_stays_short");
const TOLD_FILES: Test = Test::Unit("bifold-io", "pins::tests::a_file_that_has_waited");

/// All planted bugs.
pub const ALL: &[Planted] = &[
    bug("forget_output_keys", OUTPUT_KEYS),
    bug("flush_newest_first", FLUSH_ORDER),
    bug("seal_for_sealed_logs", LOG_LIMIT),
    bug("leave_ranges_behind", FLUSH_RANGES),
    bug("skip_log_sync", POWER),
    bug("skip_table_sync", POWER),
    bug("leave_last_tables_unsynced", POWER),
    bug("skip_manifest_sync", POWER),
    bug("skip_dir_sync", POWER),
    bug("manifest_before_table", POWER),
    bug("unnamed_log_floor", POWER),
    bug("forget_log_gap", POWER),
    bug("overlook_lost_log", CUT_MANIFEST),
    bug("delete_log_early", POWER),
    bug("drop_tombstone_early", METAMORPHIC),
    bug("ignore_snapshot_in_compaction", METAMORPHIC),
    bug("ignore_range_tombstone", METAMORPHIC),
    bug("reuse_seqno", METAMORPHIC),
    bug("half_batch", POWER),
    bug("overlook_changed_options", POWER),
    bug("options_before_durable", OPTIONS),
    bug("poison_late", SYNCS),
    bug("close_unsynced_logs", CLOSED_LOGS),
    bug("swallow_flush_error", ERRNO),
    bug("skip_value_sync", POWER),
    bug("trust_pointers", POWER),
    bug("forget_notes", CLEARED),
    bug("serve_torn_tail", POWER),
    bug("filter_wrong_hash", METAMORPHIC),
    bug("key_not_in_filter", METAMORPHIC),
    bug("older_is_newer", ABOVE),
    bug("no_checksum_check", BITFLIP),
    bug("stale_cache", METAMORPHIC),
    bug("reclaim_unsynced", POWER),
    bug("gc_during_commits", UNDER_WAY),
    bug("move_over_newer", DELETES),
    bug("overlook_cold", DELETES),
    bug("log_moves_unasked", COLD_LOG_DELETES),
    bug("tag_over_value", COLD_LOG_CRASHES),
    bug("forget_growth", LISTING),
    bug("skip_region", REGION),
    bug("region_any_offset", REGION),
    bug("region_unpublished", REGION),
    bug("read_once_unstaged", REGION),
    bug("read_past_cache_unstaged", REGION),
    bug("end_with_part", Test::Unit("bifold-index", "table::")),
    bug("skip_region", POWER),
    bug("sync_staged_bytes_not", POWER),
    bug("map_any_file_system", REGION),
    bug("unguarded_store", REGION),
    bug("swallow_full_disk", REGION),
    bug("unjoined_slots", REGION),
    bug("free_unwritten_slots", POWER),
    bug("puts_until_full", FULL),
    bug("keep_reserve", FULL),
    bug("merge_parts_whole", EMPTIED),
    bug("refused_for_a_job", ALONE),
    bug("written_is_in_memory", COLD),
    bug("short_gc_waits_for_flushes", SHORT_GC),
    bug("short_values_overwrite_nothing", OVERWRITTEN),
    bug("samples_stay_behind", STREAMS_PLANS),
    bug("samples_go_with_their_file", STREAMS_SAMPLES),
    bug("whole_files_are_elsewhere", STREAMS_SAMPLES),
    bug("leftovers_before_manifest", LEFTOVERS),
    bug("remember_cut_appends", REGION),
    bug("append_to_a_torn_sector", REGION),
    bug("forget_drops", EXACT),
    bug("hide_lost_sector", Test::Proof("exhaustive")),
    bug("damage_is_torn", KILLED),
    bug("damage_ends_the_log", DAMAGE),
    bug("no_marker", KILLED),
    bug("trust_cached_tail", ERRNO),
    bug("trust_cached_log", ERRNO),
    bug("trust_cached_names", ERRNO),
    bug("trust_cached_log_names", ERRNO),
    bug("forget_regarded", EXACT),
    bug("regard_all_drops", NOVKV),
    bug("forget_regarded_unread", NOVKV),
    bug("trust_handles", NOVKV),
    bug("lose_handles", HANDLES),
    bug("forget_new_handles", HANDLES),
    bug("skip_alone_sync", POWER),
    bug("leave_last_values_unsynced", POWER),
    bug("append_to_sealed", SEALED),
    bug("record_before_found", RECORDED),
    bug("forget_ranges_early", RANGES),
    bug("snapshot_end_unnoticed", IDLE),
    bug("sync_asks_nobody", MANY),
    bug("forget_moved", DIFFKV_EXACT),
    bug("count_moved_twice", DIFFKV_EXACT),
    bug("forget_tags", DIFFKV),
    bug("drop_nearly_empty", DIFFKV_EXACT),
    bug("split_within_tables", POLICIES),
    bug("merge_in_place_anyway", TIERED),
    bug("join_anyway", TIERED),
    bug("first_place_wins", METAMORPHIC),
    bug("forget_merged_runs", METAMORPHIC),
    bug("merges_bring_nothing_back", LEVEL0),
    bug("trust_old_views", DIFFKV_READERS),
    bug("sync_list_before_wait", LATE_KEYSPACE),
    bug("drop_without_notify", DROPPED_MEMTABLES),
    bug("handle_pins_files", DROPPED_FILES),
    bug("forget_waiting", VISITS),
    bug("notice_before_sync", POWER),
    bug("seek_ignores_bound", METAMORPHIC),
    bug("seek_forgets_read_ahead", SEEKS),
    bug("sync_again", FAILED_SYNCS),
    bug("checkpoint_without_logs", CHECKPOINTS),
    bug("checkpoint_leaves_directory", CHECKPOINTS),
    bug("checkpoint_one_device", CHECKPOINTS),
    bug("backup_record_first", BACKUPS),
    bug("backup_by_number", BACKUPS),
    bug("backup_trusts_logs", BACKED_UP_LOGS),
    bug("prune_by_number", BACKUPS),
    bug("delete_before_sync", BACKUPS),
    bug("delete_without_asking", FOLLOWERS),
    bug("pin_after_reading", FOLLOWERS),
    bug("keep_stale_pins", FOLLOWERS),
    bug("followers_keep_removed_files", REFRESHED_READERS),
    bug("overlook_second_names", BESIDE),
    bug("torn_end_is_damage", HALF_A_RECORD),
    bug("logs_alone", LOST_MANIFEST),
    bug("write_out_of_closed", REGION),
    bug("believe_lengths", LENGTHS),
    bug("any_number", NUMBERS),
    bug("damage_poisons", LEFT_OUT),
    bug("move_what_is_left_out", LEFT_OUT),
    bug("damage_counts", PRESSURE),
    bug("keep_given_up", GIVEN_UP),
    bug("forget_left_meanwhile", STREAMS_EXACT),
    bug("forget_who_left_before", STREAMS_EXACT),
    bug("forwards_go_early", STREAMS_EXACT),
    bug("lost_rows_keep_no_copies", LOST_ROWS),
    bug("copies_before_their_commits", STREAMS_EXACT),
    bug("moved_records_stay_live", STREAMS_EXACT),
    bug("snapshots_need_no_source", STREAMS_READERS),
    bug("visible_is_enough", UNSEEN),
    bug("end_before_release", ENDED),
    bug("change_shared_files", HARD_LINKS),
    bug("transaction_forgets_ranges", TRANSACTIONS),
    bug("transaction_checks_early", TRANSACTIONS),
    bug("transaction_publishes_first", TRANSACTIONS),
    bug("transaction_ignores_deletes", TRANSACTIONS),
    bug("transaction_overlooks_tables", TRANSACTIONS),
    bug("for_update_notes_nothing", TRANSACTIONS),
    bug("transaction_overlooks_flush", OVERLOOKS),
    bug("write_cache_drains_in_two", WRITE_CACHES),
    bug("write_cache_is_emptied_first", WRITE_CACHES),
    bug("damage_is_empty", AT_ONCE),
    bug("ignore_errors_of_stretches", AT_ONCE),
    bug("expired_lets_older_back", EXPIRY),
    bug("expires_under_snapshots", EXPIRY),
    bug("merge_forgets_expiry", EXPIRY),
    bug("gc_forgets_expiry", EXPIRY),
    bug("ttl_takes_number_first", BETWEEN_LOADS),
    bug("operands_overlook_ingest", BETWEEN_LOADS),
    bug("merge_reads_one_operand", MERGES),
    bug("step_keeps_what_is_newer", CHAINS),
    bug("chain_begins_at_newest", CHAINS),
    bug("operands_outlive_range_deletes", CHAINS),
    bug("steps_have_no_bound", STEPS),
    bug("operands_change_places", MERGES),
    bug("walk_forgets_deletes", MERGES),
    bug("walk_sees_one_of_a_run", MERGES),
    bug("chain_forgets_deletes", MERGES),
    bug("chain_is_cut_off", CHAINS),
    bug("merge_drops_what_fails", CHAINS),
    bug("operands_overwrite", MERGES),
    bug("operands_cross_snapshots", MERGES),
    bug("operands_without_base", METAMORPHIC),
    bug("gc_forgets_operands", MERGES),
    bug("gc_trusts_groups_with_operands", MERGES),
    bug("replay_takes_operands_for_values", POWER),
    bug("scan_yields_operands", MERGES),
    bug("transaction_sees_operands_alone", MERGES),
    bug("replay_forgets_expiry", EXPIRY),
    bug("multi_get_ignores_expiry", EXPIRY),
    bug("backwards_nothing_expires", EXPIRY),
    bug("snapshots_read_with_now", EXPIRY),
    bug("time_goes_back", EXPIRY),
    bug("transaction_overlooks_expiry", EXPIRY),
    bug("expires_while_gc_runs", GC_BEFORE),
    bug("moves_are_changes", CHANGES),
    bug("keep_unsynced_logs", CHANGES),
    bug("forget_kept_logs", CHANGES),
    bug("an_empty_log_is_a_gap", CHANGES),
    bug("feed_jumps_over_deleted_logs", CHANGES),
    bug("large_deleted_under_the_feed", CHANGES_LARGE),
    bug("unretained_large_values", CHANGES_LARGE),
    bug("unlisted_large_values", CHANGES_LARGE),
    bug("changes_without_large_values", CHANGES_LARGE),
    bug("keep_hollow_logs", KEPT_LOGS),
    bug("begin_without_mark", CHANGES),
    bug("unnoted_floor", CHANGES),
    bug("feed_without_ingests", CHANGES),
    bug("each_record_of_an_ingest_is_a_commit", CHANGES),
    bug("unsynced_feed_of_ingest", CHANGES),
    bug("ingests_kept_forever", CHANGES),
    bug("ingests_before_logs", CHANGES),
    bug("feed_stuck_at_ingests", CHANGES),
    bug("trust_announcements", CHANGES),
    bug("readers_overlook_kept_logs", CHANGES),
    bug("readers_need_empty_logs", CHANGES),
    bug("empty_logs_begin_last", CHANGES),
    bug("states_hold_all_kept_logs", CHANGES),
    bug("followers_trust_pointers", CHANGES),
    bug("kept_logs_with_gaps", CHANGES),
    bug("commits_wake_no_feed", WAITING),
    bug("keep_before_a_gap", CHANGES),
    bug("filter_overlooks_newer", FILTERS),
    bug("filter_forgets_expiry", FILTERS),
    bug("large_named_before_sync", LARGE),
    bug("large_flush_forgets", LARGE),
    bug("large_flush_leaves_dropped", LARGE),
    bug("large_merge_leaves_file", LARGE),
    bug("large_orphans_stay", LARGE),
    bug("large_deleted_under_readers", LARGE),
    bug("large_unverified", LARGE),
    bug("large_without_note", LARGE),
    bug("operands_overlook_large", METAMORPHIC),
    bug("ingest_takes_any_order", INGEST),
    bug("ingest_over_memtable", INGEST),
    bug("ingest_at_the_bottom", INGEST),
    bug("ingest_below_its_flush", INGEST),
    bug("ingest_without_skip", INGEST),
    bug("ingest_before_log", INGEST),
    bug("ingest_shows_files_early", INGEST),
    bug("ingest_forgets_notes", INGEST),
    bug("ingest_leaves_pieces_behind", PIECES),
    bug("ingest_ends_before_its_writers", PIECES),
    bug("ingest_swallows_errors", PIECES),
    bug("ingest_forgets_panics", PIECES),
    bug("ingest_lends_late", PIECES),
    bug("transaction_overlooks_ingest", OVERLOOKS),
    bug("removed_files_take_no_space", REMOVALS),
    bug("children_write", FORKED),
    bug("skip_numbers_silently", LOST_NUMBERS),
    bug("merge_unseen_ingests", UNSEEN_INGESTS),
    bug("left_out_unnoted", UNDAMAGED),
    bug("left_out_lets_older_through", UNDAMAGED),
    bug("left_out_ends_early", UNDAMAGED),
    bug("salvage_takes_older", SALVAGE),
    bug("salvage_overlooks_deletes", SALVAGE),
    bug("salvage_forgets_a_block", SALVAGE),
    bug("salvage_counts_operands_twice", SALVAGE),
    bug("salvage_reverses_operands", SALVAGE),
    bug("salvage_overlooks_lost_bases", SALVAGE),
    bug("salvage_overlooks_lost_operands", SALVAGE),
    bug("cold_notes_suffice", OVER_NOTES),
    bug("over_index_ahead", OVER_CRASHES),
    bug("over_checkpoint_without_sync", OVER_CRASHES),
    bug("over_replays_from_mark", OVER_CRASHES),
    bug("over_replay_forgets_deletes", OVER_CRASHES),
    bug("over_reclaims_unsynced", OVER_CRASHES),
    bug("over_moves_unchecked", OVER_BASICS),
    bug("over_snapshots_hold_nothing", OVER_BASICS),
    bug("over_trusts_short_logs", OVER_BASICS),
    bug("over_forgets_closed_logs", OVER_CLOSED_LOGS),
    bug("forget_abandoned_copies", ABANDONED_COPIES),
    bug("reserve_beyond_jobs_is_spare", RESERVE_BEYOND),
    bug("large_bytes_postpone_looks", LARGE_UNDER_WAY),
    bug("room_wakes_nobody", HELD_UP),
    bug("held_up_until_asked", HELD_UP),
    bug("close_leaves_last_commits", LAST_COMMITS),
    bug("notices_go_back", LATER_NOTICES),
    bug("take_another_history", ANOTHER_HISTORY),
    bug("hold_by_removed_pin", REMOVED_PIN),
    bug("sums_of_cut_files", CUT_FILES),
    bug("salvage_believes_older_manifests", OLDER_MANIFESTS),
    bug("salvage_trusts_what_is_left", MISSING_FILES),
    bug("ingest_counts_early", INGEST_SPACE),
    bug("tags_are_not_asked", EXPIRED_TAGS),
    bug("log_learns_from_tags_alone", UNKNOWN_TAGS),
    bug("gc_commits_without_bound", LONG_OPERANDS),
    bug("gc_commits_any_length", TOO_LONG_OPERANDS),
    bug("gc_leaves_memtables_full", CALLERS_GC),
    bug("vanished_moves_count", VANISHED_BEFORE),
    bug("losses_during_gc_are_forgotten", VANISHED_SINCE),
    bug("filter_asks_for_no_room", DECIDED_ROOM),
    bug("slots_go_back_at_once", SEVERAL_SLOTS),
    bug("appends_without_reserve", LEFT_APPENDS),
    bug("cuts_keep_the_epoch", CUT_SLOTS),
    bug("sync_one_new_directory", NEW_DIRECTORIES),
    bug("blocks_in_any_order", ENTRY_ORDER),
    bug("ingest_overwrites_nothing", OVERWRITTEN),
    bug("ingests_do_not_age", STREAMS_PLANS),
    bug("flushed_values_count_early", FLUSHED_VALUES),
    bug("over_overlooks_left_out", OVER_DAMAGE),
    bug("pins_stay_private", PRIVATE_PINS),
    bug("pinned_files_go_untold", TOLD_FILES),
    bug("cut_with_each_table", DIFFKV),
    bug("readers_do_due_work", READERS_WORK),
    bug("manifest_grows_without_jobs", SHORT_MANIFEST),
    bug("unread_moves_poison", UNREAD_MOVES),
    bug("removed_files_keep_slots", REMOVED_UNWRITTEN),
    bug("full_ingests_poison", FULL_INGESTS),
];
