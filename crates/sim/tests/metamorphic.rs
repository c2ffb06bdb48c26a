//! One history, many option sets: see `bifold_sim::metamorphic`.

use bifold_sim::{
    metamorphic::{SETS, run},
    report::{over_seeds, scaled},
};

#[test]
fn a_history_has_the_same_answers_under_every_option_set() {
    let report = over_seeds(0..scaled(40), run);
    report.finish("metamorphic", &[("runs", scaled(40) * SETS)]);
}
