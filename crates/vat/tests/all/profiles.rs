//! Device profiles: what is written can be read back, every lookup gives a β, and no text makes the reader panic.

use std::collections::BTreeMap;

use bifold_vat::{Caching, Measured, Profile};
use proptest::prelude::*;

fn rate() -> impl Strategy<Value = u64> {
    (0.0..15.0_f64).prop_map(|exponent| 10_f64.powf(exponent) as u64)
}

fn caching() -> impl Strategy<Value = Caching> {
    prop_oneof![Just(Caching::Direct), Just(Caching::Dropped), Just(Caching::Memory)]
}

/// Any profile.
fn profile() -> impl Strategy<Value = Profile> {
    let place = (0..=40_u32, 0..=16_u32);
    let rates = (rate(), rate(), rate(), rate());
    let rows = proptest::collection::btree_map(place, rates, 1..30);
    let profile = |(caching, file_bytes, seconds, rows): (_, _, _, BTreeMap<_, _>)| {
        let row = |((unit, depth), (a, b, c, d)): ((u32, u32), (u64, u64, u64, u64))| Measured {
            unit_bytes: 1 << unit,
            depth: 1 << depth,
            sequential_read_bytes_per_second: a,
            random_read_bytes_per_second: b,
            sequential_write_bytes_per_second: c,
            random_write_bytes_per_second: d,
        };
        Profile::new(caching, file_bytes, seconds, rows.into_iter().map(row).collect()).unwrap()
    };
    (caching(), 1..1_u64 << 60, 0.001..100.0_f64, rows).prop_map(profile)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn what_is_written_is_read(profile in profile()) {
        prop_assert_eq!(Profile::from_toml(&profile.to_toml().unwrap()).unwrap(), profile);
    }

    /// Every answer is a β or an error with its reason: a depth below all measured ones, or a β below the model's
    /// limit.
    #[test]
    fn any_unit_and_depth_has_an_answer(
        profile in profile(), unit in any::<u64>(), depth in any::<u32>(), shift in 0..64_u32,
    ) {
        let least = profile.measured().iter().map(|row| row.depth).min().unwrap();
        match profile.beta(unit >> shift, depth >> (shift / 2)) {
            Ok(beta) => {
                let (read, write, both) = (beta.read.get(), beta.write.get(), beta.both().get());
                prop_assert!(read > 0.0 && read <= 1.0 && write > 0.0 && write <= 1.0);
                prop_assert!(both >= read.min(write) * (1.0 - 1e-12) && both <= read.max(write) * (1.0 + 1e-12));
            }
            Err(error) => prop_assert!(
                unit >> shift == 0 || depth >> (shift / 2) < least || (error.name == "beta" && error.given < 1e-9),
                "{error}"
            ),
        }
    }

    /// A damaged profile is either read or refused.
    #[test]
    fn damage_is_no_panic(
        profile in profile(),
        edits in proptest::collection::vec((any::<prop::sample::Index>(), "[-0-9a-z.=\\[\\]\"_ \n\u{e9}]{0,3}"), 1..6),
    ) {
        let mut text: Vec<char> = profile.to_toml().unwrap().chars().collect();
        for (at, with) in edits {
            let at = at.index(text.len() + 1);
            text.splice(at..(at + 1).min(text.len()), with.chars());
        }
        if let Ok(read) = Profile::from_toml(&text.into_iter().collect::<String>()) {
            let _beta = read.beta(4096, 32);
        }
    }

    #[test]
    fn noise_is_no_panic(text in "\\PC{0,200}") {
        prop_assert!(Profile::from_toml(&text).is_err());
    }
}
