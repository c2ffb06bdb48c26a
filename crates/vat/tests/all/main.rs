//! The model from outside: the paper's own figures, and what holds for all inputs.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod advise;
mod golden;
mod profiles;
mod properties;

use bifold_vat::{Compaction, Design, Growth, Levels, MergeAmplification, SizeRatio, Tree};

fn leveling(alpha: f64) -> Compaction {
    Compaction::Leveling(MergeAmplification::new(alpha).unwrap())
}

fn per_table(alpha: f64) -> Compaction {
    Compaction::PerTable(MergeAmplification::new(alpha).unwrap())
}

fn size(ratio: f64) -> SizeRatio {
    SizeRatio::new(ratio).unwrap()
}

fn tree(levels: u32, growth: f64) -> Tree {
    Tree::new(Levels::new(levels).unwrap(), Growth::new(growth).unwrap()).unwrap()
}

fn tree_of(ratio: f64, levels: u32) -> Tree {
    Tree::of_size(size(ratio), Levels::new(levels).unwrap())
}

fn in_place(compaction: Compaction) -> Design {
    Design::new(compaction)
}
