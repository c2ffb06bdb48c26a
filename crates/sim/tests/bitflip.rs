//! Damage of every kind to every file: see `bifold_sim::bitflip`.

use bifold_sim::{
    bitflip::run,
    report::{over_seeds, scaled},
};

/// For each seed, one in `EVERY` bits is flipped; other seeds flip the others.
const EVERY: u64 = 97;

#[test]
fn damage_is_found_and_named_or_harmless() {
    let report = over_seeds(0..scaled(12), |seed| run(seed, EVERY, 4));
    report.finish("bitflip", &[("bit flips", scaled(12) * 50), ("truncations", scaled(12) * 5)]);
}
