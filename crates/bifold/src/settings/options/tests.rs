//! Options as text, and their old names.

use std::time::Duration;

use super::*;

#[test]
fn toml_round_trips_and_every_option_can_be_named() {
    let mut options = Options { cache_bytes: Some(1 << 20), ..Options::default() };
    options.keyspace.compaction = Compaction::Tiered(Tiered::default());
    assert_eq!(Options::from_toml(&options.to_toml()).unwrap(), options);
    assert_eq!(Options::from_toml("").unwrap(), Options::default());
}

/// Integers of TOML end at half of what a `u64` holds, and times are in milliseconds.
#[test]
fn the_largest_and_smallest_options_are_read_as_they_were_written() {
    let mut keyspace = KeyspaceOptions {
        table_bytes: u64::MAX,
        partition_bytes: Some(u64::MAX),
        ttl: Some(Duration::MAX),
        ..KeyspaceOptions::default()
    };
    keyspace.values.separate_from_bytes = Some(u64::MAX);
    (keyspace.values.hashkv.group_bytes, keyspace.values.diffkv.large_bytes) = (u64::MAX, u64::MAX);
    let millis = KeyspaceOptions { ttl: Some(Duration::from_millis(u64::MAX)), ..keyspace.clone() };
    assert_eq!(KeyspaceOptions::recorded(&keyspace.record()).unwrap(), millis.resolved());
    for compaction in [
        Compaction::Leveled(Leveled { base_bytes: u64::MAX, ..Leveled::default() }),
        Compaction::TwoLayer(TwoLayer { unsorted_bytes: u64::MAX, ..TwoLayer::default() }),
    ] {
        let options = KeyspaceOptions { compaction, ..KeyspaceOptions::default() }.resolved();
        assert_eq!(KeyspaceOptions::recorded(&options.record()).unwrap(), options);
    }
    let options =
        Options { memory_limit: u64::MAX, free_bytes_min: Some(u64::MAX), keyspace: millis, ..Options::default() };
    assert_eq!(Options::from_toml(&options.to_toml()).unwrap(), options);
    let mut changed = options.clone();
    changed.set("durability=sync").unwrap();
    assert_eq!(changed, Options { durability: Durability::Sync, ..options });
    let mut keyspace = KeyspaceOptions { ttl: Some(Duration::from_micros(1500)), ..KeyspaceOptions::default() };
    assert_eq!(KeyspaceOptions::recorded(&keyspace.record()).unwrap().ttl, Some(Duration::from_millis(2)));
    keyspace.ttl = Some(Duration::from_micros(999));
    assert!(keyspace.check().unwrap_err().to_string().contains("keyspace.ttl"));
    changed.set("keyspace.ttl=never").unwrap();
    assert_eq!(changed.keyspace.ttl, None);
    assert!(changed.set("keyspace.ttl=0").is_err());
}

/// A file of options changes what it names, or it is an error.
#[test]
fn a_file_of_options_leaves_alone_what_only_code_can_give() {
    let operators = MergeOperators::default().or_unknown();
    let mut options = Options { merge_operators: operators.clone(), ..Options::default() };
    options.set_toml("durability = \"sync\"").unwrap();
    assert_eq!(options, Options { durability: Durability::Sync, merge_operators: operators, ..Options::default() });
    let before = options.clone();
    let error = options.set_toml("mapped_bytes_max = 18446744073709551615\ndurability = \"memory\"").unwrap_err();
    assert!(error.to_string().contains("with a unit"), "{error}");
    assert_eq!(options, before);
}

/// What a manifest stands for that says nothing of placement and length, as from before values could be separated.
fn inline(options: KeyspaceOptions) -> KeyspaceOptions {
    KeyspaceOptions { placement: PlacementKind::Inline, ..options }.resolved()
}

#[test]
fn options_are_read_by_the_names_they_once_had() {
    let old = "[keyspace.compaction.leveled]\ngrowth = 8";
    let options = Options::from_toml(old).unwrap();
    assert_eq!(options.keyspace.compaction, Compaction::Leveled(Leveled { size_ratio: 8, ..Leveled::default() }));
    assert_eq!(
        Options::renamed(old)[0].to_string(),
        "option `keyspace.compaction.leveled.growth` is now called `keyspace.compaction.leveled.size_ratio`"
    );
    assert!(Options::renamed("[keyspace.compaction.leveled]\nsize_ratio = 8").is_empty());
    let both = "[keyspace.compaction.leveled]\ngrowth = 8\nsize_ratio = 8";
    assert!(Options::from_toml(both).unwrap_err().to_string().contains("growth"));
    let tiered_ratio = "keyspace.compaction.tiered.size_ratio";
    let mut set = Options::default();
    set.set("keyspace.compaction.tiered.growth=5").unwrap();
    assert_eq!(set.keyspace.compaction, Compaction::Tiered(Tiered { size_ratio: 5, ..Tiered::default() }));
    assert_eq!(Options::renamed_word("keyspace.compaction.tiered.growth=5").unwrap().new, [tiered_ratio]);
    assert_eq!(Options::renamed_word(&format!("{tiered_ratio}=5")), None);
    let recorded = KeyspaceOptions::recorded("[compaction.tiered]\ngrowth = 5").unwrap();
    assert_eq!(recorded, inline(set.keyspace));
    assert_eq!(KeyspaceOptions::recorded(&recorded.record()).unwrap(), recorded);
}

/// Every option of values that was flat before placements had groups of their own.
#[test]
fn flat_options_of_values_are_read_where_they_are_now() {
    let flat = "[values]\nmin_bytes = 100\ncold = \"parts\"\ngroup_bytes = \"8KiB\"\ngroups_max = 20\n\
                gc_threshold = 0.4\nlarge_bytes = 500\nmerge = \"lazy\"\nmax_sorted_run = 3\n\
                [values.victim]\ngreedy_random = 8\n";
    let values = Values {
        separate_from_bytes: Some(100),
        hashkv: HashKv { victim: Victim::GreedyRandom(8), cold: Cold::Segments, group_bytes: 8 << 10, groups_max: 20 },
        novkv: NovKv { gc_threshold: 0.4 },
        diffkv: DiffKv { gc_threshold: 0.4, large_bytes: 500, merge: MergePolicy::Lazy, max_sorted_run: 3 },
        unikv: UniKv { gc_threshold: 0.4, gc: GcUnit::File },
        ..Values::default()
    };
    let recorded = KeyspaceOptions::recorded(flat).unwrap();
    assert_eq!(recorded.values, values);
    assert_eq!(KeyspaceOptions::recorded(&recorded.record()).unwrap(), recorded);
    let file = flat.replace("[values", "[keyspace.values");
    assert_eq!(inline(Options::from_toml(&file).unwrap().keyspace), recorded);
    let renamed: Vec<String> = Options::renamed(&file).iter().map(ToString::to_string).collect();
    assert_eq!(renamed.len(), 9, "{renamed:?}");
    assert!(
        renamed.contains(
            &"option `keyspace.values.gc_threshold` is now called `keyspace.values.novkv.gc_threshold`, \
          `keyspace.values.diffkv.gc_threshold` and `keyspace.values.unikv.gc_threshold`"
                .to_owned()
        )
    );
    let mut set = Options::default();
    for word in [
        "min_bytes=100",
        "victim.greedy_random=8",
        "cold=parts",
        "group_bytes=8KiB",
        "groups_max=20",
        "gc_threshold=0.4",
        "large_bytes=500",
        "merge=lazy",
        "max_sorted_run=3",
    ] {
        let word = format!("keyspace.values.{word}");
        assert!(Options::renamed_word(&word).is_some(), "{word}");
        set.set(&word).unwrap();
    }
    assert_eq!(inline(set.keyspace), recorded);
}

#[test]
fn an_option_with_its_old_and_its_new_name_is_refused() {
    for (text, old, new) in [
        ("min_bytes = 1\nseparate_from_bytes = 1", "min_bytes", "separate_from_bytes"),
        ("cold = \"log\"\nhashkv.cold = \"log\"", "cold", "hashkv.cold"),
        ("gc_threshold = 0.5\nunikv.gc_threshold = 0.5", "gc_threshold", "unikv.gc_threshold"),
    ] {
        let (old, new) = (format!("`keyspace.values.{old}`"), format!("`keyspace.values.{new}`"));
        for refused in [
            Options::from_toml(&format!("[keyspace.values]\n{text}")).unwrap_err().to_string(),
            KeyspaceOptions::recorded(&format!("[values]\n{text}")).unwrap_err(),
        ] {
            assert!(refused.contains(&old) && refused.contains(&new), "{refused}");
        }
    }
}

#[test]
fn one_option_is_set_by_name() {
    let mut options = Options::default();
    for word in [
        "memory_limit=256MiB",
        "cache_bytes=1.5 MiB",
        "open_files_max=100",
        "transaction_bytes_max=8MiB",
        "durability=sync",
        "workers.threads=3",
        "keyspace.compression=zstd",
        "keyspace.compaction.leveled.size_ratio=8",
        "keyspace.placement=hashkv",
        "keyspace.values.hashkv.victim.greedy_random=8",
        "keyspace.values.space_target=1.3",
        "keyspace.hash_index.tag_bits=12",
    ] {
        options.set(word).unwrap_or_else(|e| panic!("{word}: {e}"));
    }
    assert_eq!(options.memory_limit, 256 << 20);
    assert_eq!(options.cache_bytes, Some(3 << 19));
    assert_eq!(options.open_files_max, 100);
    assert_eq!(options.transaction_bytes_max, Some(8 << 20));
    assert_eq!(options.durability, Durability::Sync);
    assert_eq!(options.workers, Workers::Threads(3));
    assert_eq!(options.keyspace.compaction, Compaction::Leveled(Leveled { size_ratio: 8, ..Leveled::default() }));
    assert_eq!(options.keyspace.placement, PlacementKind::HashKv);
    assert_eq!(options.keyspace.values.hashkv.victim, Victim::GreedyRandom(8));
    options.set("keyspace.compaction.tiered.size_ratio=5").unwrap();
    assert_eq!(options.keyspace.compaction, Compaction::Tiered(Tiered { size_ratio: 5, ..Tiered::default() }));
    options.set("workers=caller").unwrap();
    assert_eq!(options.workers, Workers::Caller);
}

#[test]
fn a_text_changes_what_it_names_and_no_more() {
    let mut options = Options::default();
    for word in ["memtable_bytes=1MiB", "keyspace.compaction.tiered.levels=3", "keyspace.values.victim.greedy_random=8"]
    {
        options.set(word).unwrap();
    }
    let before = options.clone();
    let text = "[keyspace]\ncompression = \"lz4\"\n[keyspace.values]\nmin_bytes = 5\ngc_threshold = 0.4\n\
                [keyspace.compaction.tiered]\nsize_ratio = 3";
    options.set_toml(text).unwrap();
    let mut wanted = before.clone();
    for word in [
        "keyspace.compression=lz4",
        "keyspace.values.separate_from_bytes=5",
        "keyspace.values.gc_threshold=0.4",
        "keyspace.compaction.tiered.size_ratio=3",
    ] {
        wanted.set(word).unwrap();
    }
    assert_eq!(options, wanted);
    // Another kind brings its own defaults.
    options.set_toml("[keyspace.compaction.leveled]\nlevels = 4").unwrap();
    assert_eq!(options.keyspace.compaction, Compaction::Leveled(Leveled { levels: 4, ..Leveled::default() }));
    options.set_toml("keyspace.values.hashkv.victim = \"random\"").unwrap();
    assert_eq!(options.keyspace.values.hashkv.victim, Victim::Random);
    options.set_toml(&before.to_toml()).unwrap();
    assert_eq!(options.keyspace.compaction, before.keyspace.compaction);
    assert_eq!(options.keyspace.values.hashkv.victim, Victim::GreedyRandom(8));
    let kept = options.clone();
    for (text, says) in [
        ("memtable_bytes = ", "line"),
        ("no_such = 1", "no_such"),
        ("[keyspace]\nrestart_interval = 0", "restart_interval"),
        ("[keyspace.values]\nmin_bytes = 1\nseparate_from_bytes = 1", "both"),
    ] {
        let refused = options.set_toml(text).unwrap_err().to_string();
        assert!(refused.contains(says), "{text}: {refused}");
    }
    assert_eq!(options, kept);
    let section = options.keyspace.to_toml();
    assert_eq!(Options::from_toml(&section).unwrap().keyspace, options.keyspace);
}

#[test]
fn a_preset_brings_its_tree_and_takes_it_away() {
    let mut options = Options::default();
    options.set("keyspace.values.separate_from_bytes=100").unwrap();
    options.set("keyspace.preset=unikv").unwrap();
    let values = options.keyspace.values;
    assert_eq!(options.keyspace, KeyspaceOptions { values, ..KeyspaceOptions::unikv() });
    options.set("keyspace.partition_bytes=1GiB").unwrap();
    options.set("keyspace.preset=unikv").unwrap();
    assert_eq!(options.keyspace.partition_bytes, Some(1 << 30), "it is one already");
    options.set("keyspace.preset=diffkv").unwrap();
    let diffkv = KeyspaceOptions { placement: PlacementKind::DiffKv, values, ..KeyspaceOptions::default() };
    assert_eq!(options.keyspace, diffkv);
    assert!(options.set("keyspace.preset=rocks").unwrap_err().to_string().contains("rocks"));
}

#[test]
fn unusable_options_are_refused_and_change_nothing() {
    let mut options = Options::default();
    for (word, says) in [
        ("memory_limit", "name=value"),
        ("memory_limit=1", "too small"),
        ("memory_limit=64MX", "not a unit"),
        ("memry_limit=64MiB", "memry_limit"),
        ("cache_bytes=1TiB", "memory_limit"),
        ("open_files_max=1", "not between 2 and"),
        ("keyspace.restart_interval=0", "between"),
        ("keyspace.compaction.leveled.levels=1", "between"),
        ("durability=maybe", "durability"),
        ("keyspace.values.space_target=1", "1.05"),
        ("keyspace.values.separate_from_bytes=0", "too small"),
        ("keyspace.values.hashkv.groups_max=15", "between"),
        ("keyspace.values.hashkv.victim.greedy_random=0", "between"),
        ("keyspace.values.novkv.gc_threshold=0.01", "between"),
        ("keyspace.values.unikv.gc_threshold=1.5", "between"),
        ("keyspace.values.diffkv.max_sorted_run=0", "between"),
        ("keyspace.values.wisckey.gc_threshold=0.5", "wisckey"),
        ("keyspace.placement=hashkw", "hashkw"),
        ("keyspace.hash_index.ways=9", "between"),
        ("keyspace.hash_index.run_bits=33", "between"),
    ] {
        let error = options.set(word).unwrap_err().to_string();
        assert!(error.contains(says), "{word}: {error}");
    }
    assert_eq!(options, Options::default());
}

#[test]
fn recorded_options_that_no_policy_can_work_with_are_refused() {
    for (text, name) in [
        ("[compaction.leveled]\nsize_ratio = 0", "size_ratio"),
        ("[compaction.leveled]\ngrowth = 1", "size_ratio"),
        ("[compaction.leveled]\nlevels = 0", "levels"),
        ("[compaction.tiered]\nspace_percent = 0", "space_percent"),
        ("[compaction.two_layer]\nunsorted_bytes = 0", "unsorted_bytes"),
        ("[hash_index]\nways = 0", "ways"),
        ("table_bytes = 0", "table_bytes"),
        ("[values.hashkv]\ngroup_bytes = 1", "group_bytes"),
        ("[values]\nlarge_bytes = 0", "diffkv.large_bytes"),
        ("placement = \"novkv\"\n[values]\nfile_bytes = \"2GiB\"", "file_bytes"),
    ] {
        let refused = KeyspaceOptions::recorded(text).unwrap_err();
        assert!(refused.contains(name), "{text}: {refused}");
    }
}
