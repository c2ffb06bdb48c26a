//! What placements are made of. Plain structs, so that a placement reads like its paper.
//!
//! | module | part |
//! |---|---|
//! | [`value_files`] | the value files of a keyspace: creating, appending, reading, syncing; the manifest; recovery |
//! | [`value_log`] | the file that commits append values to |
//! | [`sorted_table`] | values by key, with an index (NovKV §III-A.2) |
//! | [`ingested`] | what an ingest writes: value files that nobody knows before it is in force |
//! | [`ordered_values`] | values that flushes and merges sort partially (DiffKV §3; UniKV §III-C) |
//! | [`large_files`] | large values, each in a file of its own |
//! | [`drop_keys`] | which versions compaction has dropped (NovKV §III-B) |
//! | [`forwarding`] | where values have moved whose old addresses are still in the index |
//! | [`sketch`] | how often keys were written recently |
//! | [`handles`] | the current place of values whose pointers are out of date (NovKV §III-D) |
//! | [`relocation`] | GC of files with index lookups (HashKV §2.2; DiffKV §4.2) |
//! | [`dead_counts`] | what flush and compaction drop, by file |
//! | [`scan`] | walking a value file from front to back |
//! | [`salvage`] | the whole records in a value file whose index is lost |
//! | [`segment_groups`] | files grouped by hash of the key, splitting as they grow (HashKV §3.1) |
//! | [`budget`] | memory with a cap that keyspaces share |
//! | [`buffers`] | memory that rewrites and GC take while they run |
//! | [`garbage_estimate`] | how much of a sequence of files is dead, by a sample |
//! | [`stale_estimate`] | the estimated bytes of overwritten values that no rewrite has found yet |
//! | [`covered_ranges`] | which records range deletes cover |
//! | [`victim`] | which unit GC picks (HashKV §3.3) |
//! | [`hash_map`] | hash maps that are the same in every run |
//! | [`key_table`] | the keys of a GC run and what is known of each |
//! | [`unsynced`] | which keyspaces the next sync must cover |
//! | [`sync`] | locks without poisoning |

pub mod budget;
pub mod buffers;
pub mod covered_ranges;
pub mod dead_counts;
pub mod drop_keys;
pub mod forwarding;
pub mod garbage_estimate;
pub mod handles;
pub mod hash_map;
pub mod ingested;
pub mod key_table;
pub mod large_files;
pub mod ordered_values;
pub mod relocation;
pub mod salvage;
pub mod scan;
pub mod segment_groups;
pub mod sketch;
pub mod sorted_table;
pub mod stale_estimate;
pub mod sync;
pub mod unsynced;
pub mod value_files;
pub mod value_log;
pub mod victim;
