//! bench: the figures that scripts rely on.

use super::{Scratch, bifold, text};

#[test]
fn every_phase_is_a_json_object_with_the_documented_figures() {
    let scratch = Scratch::new();
    let dir = scratch.path("bench");
    let workloads = "load,update,read,missing,scan,mix,ycsb-a,ycsb-b,ycsb-c,ycsb-d,ycsb-e,ycsb-f,settle,compact";
    let args = ["bench", "--placement", "inline", "--dir", text(&dir), "--workload", workloads];
    let rest = ["--num", "2000", "--value-size", "300", "--threads", "2", "--json"];
    let phases = bifold(&[&args[..], &rest[..]].concat()).json();
    let names: Vec<&str> = phases.iter().map(|p| p["phase"].as_str().unwrap()).collect();
    assert_eq!(names.join(","), workloads);
    for phase in &phases {
        for figure in ["ops_per_sec", "write_amp", "read_amp", "space_amp", "cpu_seconds"] {
            assert!(phase[figure].is_f64(), "{figure}: {phase}");
        }
        for figure in ["p50", "p99", "p999", "max"] {
            assert!(phase["latency_us"][figure].is_f64(), "{figure}: {phase}");
        }
        for figure in ["index_lookups", "index_inserts", "bytes"] {
            assert!(phase["gc"][figure].is_u64(), "{figure}: {phase}");
        }
        assert!(phase["ops_per_sec"].as_f64() > Some(0.0) && phase["dir_bytes"].as_u64() > Some(0), "{phase}");
    }
    assert_eq!(phases[0]["user_bytes_written"], 2000 * 324);
    assert!(phases[0]["write_amp"].as_f64() >= Some(1.0), "{}", phases[0]);
    assert_eq!(phases[3]["not_found"], 2000);
    assert!(dir.exists(), "the given directory is kept");
}

#[test]
fn a_table_is_for_people() {
    let said = bifold(&["bench", "--num", "500", "--value-size", "pareto", "--workload", "load,read"]).ok();
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines.len(), 4, "{said}");
    assert!(lines[1].contains("ops/s") && lines[2].starts_with("load ") && lines[3].starts_with("read "), "{said}");
}

#[test]
fn two_option_sets_are_compared_in_turns() {
    let scratch = Scratch::new();
    let dir = scratch.path("compare");
    let args = ["bench", "--num", "500", "--workload", "load,read", "--dir", text(&dir), "--rounds", "2"];
    let args = [&args[..], &["--compare=keyspace.compression=lz4", "--json"]].concat();
    let phases = bifold(&args).json();
    assert_eq!(phases.len(), 2);
    for phase in &phases {
        assert_eq!(phase["rounds"], 2);
        assert_eq!(phase["b"]["store"], "bifold keyspace.compression=lz4");
        assert!(phase["ratio"]["ops_per_sec"].as_f64() > Some(0.0), "{phase}");
    }
    assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 0, "databases of the rounds are left");
}

/// All sides get the file, then --set; what --compare names comes last.
#[test]
fn options_of_all_sides_come_from_a_file_and_from_words() {
    let scratch = Scratch::new();
    let (dir, file) = (scratch.path("compare"), scratch.write("options.toml", "[keyspace]\nplacement = \"hashkv\"\n"));
    let args = ["bench", "--num", "200", "--workload", "load,read,load", "--dir", text(&dir), "--rounds", "1"];
    let with = ["--options", text(&file), "--set", "keyspace.compression=zstd", "--durability", "memory"];
    let said = bifold(&[&args[..], &with, &["--compare=keyspace.compression=lz4"]].concat()).ok();
    let lines: Vec<&str> = said.lines().collect();
    assert!(lines[1].starts_with("round 1 A load ") && lines[2].starts_with("round 1 B load "), "{said}");
    // For each of the three phases: A, B and the ratio.
    assert_eq!(lines.iter().filter(|line| line.contains(" A ")).count(), 2 + 3, "{said}");
    assert_eq!(lines.iter().filter(|line| line.contains(" × ")).count(), 3, "{said}");
    let wrong = bifold(&[&args[..], &with, &["--compare=keyspace.placement=nowhere"]].concat()).refused(2);
    assert!(wrong.contains("nowhere"), "{wrong}");
    std::fs::write(&file, "[keyspace]\nplacement = 7\n").unwrap();
    let wrong = bifold(&[&args[..], &with, &["--compare=keyspace.compression=lz4"]].concat()).refused(2);
    assert!(wrong.contains("options.toml"), "{wrong}");
}

#[test]
fn invalid_plans_are_refused_before_anything_runs() {
    let scratch = Scratch::new();
    let dir = scratch.path("bench");
    for (args, why) in [
        (&["--num", "0"][..], "--num"),
        (&["--workload", "lode"], "ycsb-a"),
        (&["--placement", "nowhere"], "nowhere"),
        (&["--theta", "1.5"], "--theta"),
        (&["--value-size", "big"], "pareto"),
        (&["--key-size", "4"], "keys of 4 bytes"),
        (&["--threads", "0"], "--threads"),
        (&["--seconds", "-1"], "--seconds"),
        (&["--compare=memory_limit"], "memory_limit"),
        (&["--compare=rocksdb", "--rounds", "0"], "--rounds"),
    ] {
        let args: Vec<&str> = ["bench", "--dir", text(&dir)].into_iter().chain(args.iter().copied()).collect();
        let line = bifold(&args).refused(2);
        assert!(line.contains(why), "{args:?}: {line}");
        assert!(!dir.exists(), "{args:?}");
    }
}

/// It would fill `default`, and change its options.
#[test]
fn another_keyspace_is_refused_and_default_stays_as_it_was() {
    let scratch = Scratch::new();
    let db = scratch.path("db");
    bifold(&["put", text(&db), "k", "v"]).ok();
    let before = bifold(&["options", text(&db)]).ok();
    let args = ["bench", "--dir", text(&db), "--keyspace", "scratch", "--workload", "load", "--num", "10"];
    for more in [
        &["--set", "keyspace.compression=lz4"][..],
        &["--placement", "auto"],
        &["--compare=memory_limit=64MiB", "--rounds", "1"],
    ] {
        let line = bifold(&[&args[..], more].concat()).refused(2);
        assert!(line.contains("--keyspace"), "{more:?}: {line}");
        assert_eq!(bifold(&["scan", text(&db)]).ok(), "k\tv\n", "{more:?}");
        assert_eq!(bifold(&["options", text(&db)]).ok(), before, "{more:?}");
    }
}

#[cfg(not(feature = "rocksdb"))]
#[test]
fn a_peer_that_was_not_built_is_refused() {
    for args in [&["bench", "--peer", "rocksdb"][..], &["bench", "--compare"], &["bench", "--compare=blobdb"]] {
        assert!(bifold(args).refused(2).contains("--features rocksdb"));
    }
}

#[cfg(not(feature = "fjall"))]
#[test]
fn fjall_that_was_not_built_is_refused() {
    assert!(bifold(&["bench", "--peer", "fjall-blobs"]).refused(2).contains("--features fjall"));
}

#[test]
fn every_peer_has_a_line_of_help() {
    let help = bifold(&["bench", "--help"]).ok();
    for peer in ["rocksdb", "blobdb", "fjall", "fjall-blobs", "redb", "lmdb"] {
        assert!(help.contains(&format!("- {peer}")), "{peer}: {help}");
    }
}

#[cfg(all(feature = "fjall", feature = "redb", feature = "lmdb"))]
#[test]
fn peers_are_compared_each_with_its_version_and_settings() {
    let scratch = Scratch::new();
    let dir = scratch.path("compare");
    let args = ["bench", "--num", "500", "--workload", "load,update,read,scan,settle", "--dir", text(&dir)];
    let args = [&args[..], &["--compare=fjall,fjall-blobs,redb,lmdb", "--rounds", "1", "--json"]].concat();
    let stores: Vec<String> =
        bifold(&args).json().iter().map(|p| p["b"]["store"].as_str().unwrap().to_owned()).collect();
    assert_eq!(stores[..4], ["fjall", "fjall-blobs", "redb", "lmdb"]);
    assert_eq!(stores.len(), 5 * 4);
    let said = bifold(&["bench", "--peer", "lmdb", "--num", "500", "--workload", "load", "--durability", "sync"]).ok();
    assert!(said.starts_with("lmdb 0.9.") && said.contains("flags none"), "{said}");
}
