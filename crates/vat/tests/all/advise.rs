//! Advice: it makes sense for every possible workload, and is known for some.

use bifold_vat::{
    Caching, Measured, Profile,
    advise::{
        Advice, Bottleneck, CandidateCompaction, Forecast, Machine, ModelPlacement, Operations, SKEW_MAX, ValueSize,
        Workload, advise,
    },
};
use proptest::prelude::*;

const MACHINE: Machine<'_> = Machine { processors: 2, memory_limit: 128e6, page_cache: 16e9, device: None, space: 1.5 };

fn operations(insert: f64, update: f64, read: f64, scan: f64) -> Operations {
    Operations { insert, update, read, scan, scan_entries: 50.0, ..Operations::default() }
}

fn workload(keys: f64, value_bytes: f64, operations: Operations) -> Workload {
    let values = vec![ValueSize { bytes: value_bytes, share: 1.0 }];
    Workload { keys, key_bytes: 24.0, values, operations, update_skew: 0.99, read_skew: 0.99 }
}

fn best(workload: Workload) -> ModelPlacement {
    advise(workload, &MACHINE).unwrap().best().candidate.placement
}

#[test]
fn short_values_and_scans_stay_together_and_long_values_that_are_only_written_go_apart() {
    assert_eq!(best(workload(8e6, 100.0, operations(0.0, 0.7, 0.3, 0.0))), ModelPlacement::Inline);
    assert_eq!(best(workload(1e6, 1000.0, operations(0.05, 0.0, 0.0, 0.95))), ModelPlacement::Inline);
    assert_ne!(best(workload(1e6, 1000.0, operations(1.0, 0.0, 0.0, 0.0))), ModelPlacement::Inline);
    assert_ne!(best(workload(64e3, 16e3, operations(0.0, 0.7, 0.3, 0.0))), ModelPlacement::Inline);
}

#[test]
fn it_says_when_not_to_separate_and_why() {
    let why = advise(workload(8e6, 100.0, operations(0.0, 0.7, 0.3, 0.0)), &MACHINE).unwrap().why();
    assert!(why.starts_with("Do not separate values from their keys."), "{why}");
    let why = advise(workload(1e6, 4000.0, operations(1.0, 0.0, 0.0, 0.0)), &MACHINE).unwrap().why();
    assert!(why.starts_with("Separate values with `") && why.contains("The bottleneck is"), "{why}");
}

/// Bytes written for each byte of the program, as `bifold bench` measured them with 1 GB of data and a memory limit
/// of 128 MiB (docs/cost-model.md): the formulas must not drift away from that.
#[test]
fn forecasts_write_about_what_was_measured() {
    let machine = Machine { memory_limit: 134_217_728.0, ..MACHINE };
    let put = workload(1e6, 1000.0, operations(1.0, 0.0, 0.0, 0.0));
    let skewed = workload(1e6, 1000.0, operations(0.0, 1.0, 0.0, 0.0));
    let even = Workload { update_skew: 0.0, ..skewed.clone() };
    let long = workload(64e3, 16e3, operations(0.0, 0.7, 0.3, 0.0));
    // In the order of `ModelPlacement::ALL`.
    for (workload, measured) in [
        (put, [4.49, 1.15, 1.15, 1.15, 3.22, 4.87, 1.18]),
        (skewed, [2.68, 3.13, 1.99, 2.07, 2.50, 2.38, 1.43]),
        (even, [4.46, 2.30, 2.61, 2.55, 4.22, 4.04, 2.10]),
        (long, [2.98, 2.66, 1.70, 1.74, 1.55, 2.73, 1.29]),
    ] {
        // When it was measured, `unikv` merged runs of its unsorted layer whether or not there were scans.
        let operations = Operations { scan: 1e-6, ..workload.operations };
        let with_scans = advise(Workload { operations, ..workload.clone() }, &machine).unwrap();
        let without = advise(workload, &machine).unwrap();
        for (placement, measured) in ModelPlacement::ALL.into_iter().zip(measured) {
            let advice = if placement == ModelPlacement::UniKv { &with_scans } else { &without };
            let tiered = |f: &&Forecast| matches!(f.candidate.shape, CandidateCompaction::Tiered { .. });
            let forecast =
                advice.forecasts().iter().find(|f| f.candidate.placement == placement && !tiered(f)).unwrap();
            let ratio = forecast.write_amplification / measured;
            assert!((0.8..1.35).contains(&ratio), "{placement:?}: {ratio} of {measured}, {:?}", advice.workload());
        }
    }
}

#[test]
fn runs_of_an_unsorted_layer_are_merged_for_scans_or_where_their_index_lacks_memory() {
    let written = |keys: f64, value_bytes: f64, scan: f64| {
        let advice = advise(workload(keys, value_bytes, operations(1.0, 0.0, 0.0, scan)), &MACHINE).unwrap();
        let mut forecasts = advice.forecasts().iter();
        forecasts.find(|f| f.candidate.placement == ModelPlacement::UniKv).unwrap().write_amplification
    };
    let without_scans = written(1e6, 1000.0, 0.0);
    assert!((2.0..2.1).contains(&without_scans), "once to the log and once to the layer: {without_scans}");
    assert!(written(1e6, 1000.0, 1e-6) > 2.0 * without_scans);
    let (short, short_with_scans) = (written(8e6, 100.0, 0.0), written(8e6, 100.0, 1e-6));
    assert!((short / short_with_scans - 1.0).abs() < 1e-6, "{short}, {short_with_scans}");
}

fn slow_disk() -> Profile {
    let row = |unit_bytes, depth, random| Measured {
        unit_bytes,
        depth,
        sequential_read_bytes_per_second: 200_000_000,
        random_read_bytes_per_second: random,
        sequential_write_bytes_per_second: 20_000_000,
        random_write_bytes_per_second: 1_000_000,
    };
    let rows = vec![
        row(4096, 1, 1_000_000),
        row(4096, 32, 4_000_000),
        row(1 << 20, 1, 100_000_000),
        row(1 << 20, 32, 200_000_000),
    ];
    Profile::new(Caching::Direct, 1 << 28, 0.5, rows).unwrap()
}

#[test]
fn a_slow_device_becomes_the_bottleneck_where_it_is_used() {
    let disk = slow_disk();
    let machine = Machine { device: Some(&disk), ..MACHINE };
    let written = advise(workload(1e6, 1000.0, operations(1.0, 0.0, 0.0, 0.0)), &machine).unwrap();
    assert_eq!(written.best().bottleneck, Bottleneck::DeviceWrites);
    // The device's writes decide, so each byte that is not written counts.
    let least = written.forecasts().iter().map(|f| f.write_amplification).fold(f64::INFINITY, f64::min);
    assert!(written.best().write_amplification < least * 1.01, "{:?}", written.best());
    let cold = Machine { page_cache: 1e8, ..machine };
    let read = advise(workload(1e6, 1000.0, operations(0.0, 0.0, 1.0, 0.0)), &cold).unwrap();
    assert_eq!(read.best().bottleneck, Bottleneck::DeviceReads);
    assert!(read.best().operations_per_second < 10_000.0);
}

#[test]
fn what_is_no_workload_is_refused_by_name() {
    let good = workload(1e6, 1000.0, operations(0.0, 1.0, 1.0, 0.0));
    let with = |change: fn(&mut Workload)| {
        let mut workload = good.clone();
        change(&mut workload);
        advise(workload, &MACHINE).unwrap_err().to_string()
    };
    for (error, says) in [
        (with(|w| w.keys = 0.0), "keys must be"),
        (with(|w| w.keys = f64::NAN), "keys must be"),
        (with(|w| w.key_bytes = -1.0), "key_bytes must be"),
        (with(|w| w.values.clear()), "values must be"),
        (with(|w| w.values[0].bytes = -5.0), "values.bytes must be"),
        (with(|w| w.values[0].share = 0.0), "values.share must be"),
        (with(|w| w.operations = Operations::default()), "operations must be"),
        (with(|w| w.operations.read = -1.0), "read must be"),
        (with(|w| w.operations.scan_entries = -1.0), "scan_entries must be"),
        (with(|w| (w.operations.scan, w.operations.scan_entries) = (1.0, 0.0)), "scan_entries must be"),
        (with(|w| w.update_skew = 1.0), "update_skew must be"),
        (with(|w| w.read_skew = -0.1), "read_skew must be"),
    ] {
        assert!(error.starts_with(says), "{error}");
    }
    let of = |machine: Machine<'_>| advise(good.clone(), &machine).unwrap_err().to_string();
    assert!(of(Machine { space: 1.0, ..MACHINE }).starts_with("space must be"));
    assert!(of(Machine { memory_limit: 10.0, ..MACHINE }).starts_with("memory must be"));
    assert!(of(Machine { processors: 0, ..MACHINE }).starts_with("processors must be"));
}

fn any_workload() -> impl Strategy<Value = Workload> {
    let share = || prop_oneof![Just(0.0), 0.01..1.0];
    let value = (0.0..6.0, 0.01..1.0).prop_map(|(log, share): (f64, f64)| ValueSize { bytes: 10_f64.powf(log), share });
    let operations = (share(), share(), share(), share(), share(), 1.0..1000.0).prop_map(
        |(insert, update, delete, read, scan, scan_entries)| Operations {
            insert,
            update,
            delete,
            read,
            scan,
            scan_entries,
        },
    );
    (0.0..10.0, 1.0..200.0, prop::collection::vec(value, 1..5), operations, 0.0..SKEW_MAX, 0.0..SKEW_MAX).prop_map(
        |(keys, key_bytes, values, operations, update_skew, read_skew): (f64, f64, _, _, _, _)| Workload {
            keys: 10_f64.powf(keys),
            key_bytes,
            values,
            operations,
            update_skew,
            read_skew,
        },
    )
}

fn all_make_sense(advice: &Advice) {
    for f in advice.forecasts() {
        let t = f.times;
        let times = [t.commits_us, t.reads_us, t.background_us, t.device_writes_us, t.device_reads_us];
        assert!(times.iter().all(|us| us.is_finite() && *us >= 0.0), "{f:?}");
        assert!(f.operations_per_second.is_finite() && f.operations_per_second > 0.0, "{f:?}");
        assert!(f.write_amplification.is_finite() && f.write_amplification >= 0.0, "{f:?}");
        assert!(f.space_amplification.is_finite() && f.space_amplification >= 0.99, "{f:?}");
        assert!(f.read_amplification.is_finite() && f.memory_bytes.is_finite(), "{f:?}");
    }
    let bounded = |pair: &[Forecast]| {
        (pair[0].within_space, pair[0].operations_per_second) >= (pair[1].within_space, pair[1].operations_per_second)
    };
    assert!(advice.forecasts().windows(2).all(bounded), "the best come first");
    assert!(!advice.why().contains("NaN") && !advice.why().contains("inf"), "{}", advice.why());
}

proptest! {
    #[test]
    fn every_workload_has_figures_that_make_sense(
        workload in any_workload(), memory in 6.1..12.0, cache in 6.0..12.0, space in 1.1..4.0, processors in 1_u32..64,
    ) {
        prop_assume!(workload.clone().checked().is_ok());
        let disk = slow_disk();
        let (memory_limit, page_cache) = (10_f64.powf(memory), 10_f64.powf(cache));
        let machine = Machine { processors, memory_limit, page_cache, device: Some(&disk), space };
        let with_device = advise(workload.clone(), &machine).unwrap();
        all_make_sense(&with_device);
        all_make_sense(&advise(workload, &Machine { device: None, ..machine }).unwrap());
    }

    /// A device only adds time, and so does missing memory.
    #[test]
    fn less_to_work_with_is_never_faster(workload in any_workload()) {
        prop_assume!(workload.clone().checked().is_ok());
        let disk = slow_disk();
        let rates = |machine: Machine<'_>| {
            let advice = advise(workload.clone(), &machine).unwrap();
            let mut all: Vec<_> = advice.forecasts().iter().map(|f| (f.candidate, f.operations_per_second)).collect();
            all.sort_by_key(|(candidate, _)| format!("{candidate:?}"));
            all
        };
        let free = rates(MACHINE);
        let cached = rates(Machine { device: Some(&disk), ..MACHINE });
        let cold = rates(Machine { device: Some(&disk), page_cache: 1e6, ..MACHINE });
        for ((free, cached), cold) in free.iter().zip(&cached).zip(&cold) {
            let in_order = free.1 >= cached.1 * 0.999_999 && cached.1 >= cold.1 * 0.999_999;
            prop_assert!(in_order, "{free:?} {cached:?} {cold:?}");
        }
    }
}
