use proptest::prelude::*;

use super::*;

fn value(values: &Values, index: u64, version: u32) -> Vec<u8> {
    let mut out = Vec::new();
    values.write(index, version, &mut out);
    assert_eq!(out.len(), values.size(index, version));
    out
}

proptest! {
    #[test]
    fn every_value_passes_its_own_check_and_no_other(index in 0..1000_u64, version: u32, bytes in 0..200_usize) {
        for sizes in [Sizes::Fixed(bytes), Sizes::Pareto] {
            let values = Values::new(sizes, 0.5, 42).unwrap();
            let mut made = value(&values, index, version);
            prop_assert_eq!(values.check(index, &made), Ok(()));
            if made.len() >= 4 {
                prop_assert!(values.check(index + 1, &made).is_err());
            }
            if let Some(last) = made.last_mut() {
                *last ^= 1;
                prop_assert!(values.check(index, &made).is_err());
            }
        }
    }
}

#[test]
fn a_value_cut_short_fails_its_check() {
    let values = Values::new(Sizes::Fixed(100), 0.0, 1).unwrap();
    let made = value(&values, 5, 6);
    for len in 0..100 {
        assert!(values.check(5, &made[..len]).is_err(), "{len}");
    }
}

#[test]
fn pareto_sizes_have_the_median_of_the_formula_and_a_mean_near_one_kilobyte() {
    let values = Values::new(Sizes::Pareto, 0.0, 1).unwrap();
    let mut sizes: Vec<usize> = (0..200_000).map(|i| values.size(i, 0)).collect();
    sizes.sort_unstable();
    // Median: 226 · (2^0.92 − 1) / 0.92 ≈ 219.
    let median = sizes[sizes.len() / 2];
    assert!((214..=224).contains(&median), "{median}");
    let mean = sizes.iter().sum::<usize>() / sizes.len();
    assert!((900..1200).contains(&mean), "{mean}");
    assert_eq!(sizes.last(), Some(&PARETO_BYTES_MAX));
    assert!(sizes[0] >= 1);
}

#[test]
fn the_compressible_fraction_is_zeros() {
    for (fraction, zeros) in [(0.0, 0..80), (0.5, 4800..5300), (1.0, 9900..10_001)] {
        let made = value(&Values::new(Sizes::Fixed(10_016), fraction, 1).unwrap(), 1, 1);
        let found = made[STAMP_BYTES..].iter().filter(|&&b| b == 0).count();
        assert!(zeros.contains(&found), "{fraction}: {found}");
    }
}

#[test]
fn senseless_plans_are_refused() {
    assert!(Values::new(Sizes::Fixed(1 << 30), 0.0, 1).is_err());
    assert!(Values::new(Sizes::Fixed(10), 1.5, 1).is_err());
}
