//! The best size ratio (the paper's growth factor) and the best number of levels.
//!
//! All three kinds of compaction move `l·(a·f + b) − 1` bytes per byte: leveling has a = α, b = 2 − α; per table a =
//! 2α, b = 2; tiering a = 0, b = 2. With `l = ln N / ln f` the minimum is where `(a·f + b) / ln f` has its own,
//! whatever N (§6, *Optimal growth factor*: it "is constant regardless of the dataset size"). β and a log only
//! multiply and add terms that do not depend on f, so the optimum is the same with and without them.

use crate::{
    design::{Compaction, Design},
    input::{Levels, SizeRatio},
    lambert,
    tree::Tree,
};

/// The number of levels that moves the fewest bytes for a size.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Optimum {
    /// l*, a whole number.
    pub levels: Levels,
    /// f = N^(1/l*). f* is what it would be if l need not be whole.
    pub growth: f64,
    /// D / Sₗ there; see [`Design::amplification`].
    pub amplification: f64,
}

impl Compaction {
    /// (a, b) of `l·(a·f + b) − 1`.
    fn slope_and_base(self) -> (f64, f64) {
        match self {
            Self::Leveling(alpha) => (alpha.0, 2.0 - alpha.0),
            Self::PerTable(alpha) => (2.0 * alpha.0, 2.0),
            Self::Tiering => (0.0, 2.0),
        }
    }

    /// f*: the size ratio that moves the fewest bytes, for any size (App. A.3 and B.1).
    ///
    /// ```text
    /// f* = b / (a·W(b / (a·e))) = e^(1 + W(b / (a·e)))        leveling: (2 − α) / (α·W((2 − α) / (α·e)))
    /// ```
    ///
    /// The derivative of `(a·f + b) / ln f` is zero where `ln f − 1 = (b/a) / f`. With `u = ln f − 1` that is
    /// `u·e^u = b/(a·e)`, so u is Lambert's W of it. The second form is the same by `W·e^W = x`, and has no 0 · ∞.
    ///
    /// Infinite for α = 0, where fewer levels are always better and one level is best (§6, Eq. 14).
    pub fn best_growth(self) -> f64 {
        self.ln_best_growth().exp()
    }

    /// ln f*, which is finite unless α is 0.
    fn ln_best_growth(self) -> f64 {
        let (a, b) = self.slope_and_base();
        1.0 + lambert::w0(b / (a * std::f64::consts::E))
    }

    /// [`Compaction::best_growth`] by a search for the minimum, without Lambert's W: a check of the closed form.
    ///
    /// `(a·e^u + b) / u` falls and then rises in u = ln f, so a golden-section search closes in on the minimum.
    /// Values near it differ by the square of the distance, so only about eight digits of u can be resolved.
    pub fn best_growth_by_search(self) -> f64 {
        let (a, b) = self.slope_and_base();
        let cost = |u: f64| (a * u.exp() + b) / u;
        if a == 0.0 {
            return f64::INFINITY;
        }
        // f64 ends at e^709.
        let (mut low, mut high) = (0.0, 709.0);
        let golden = (5_f64.sqrt() - 1.0) / 2.0;
        // Each step keeps 0.618 of the range: 100 steps leave 10⁻¹⁸ of 709.
        for _ in 0..100 {
            let (left, right) = (high - golden * (high - low), low + golden * (high - low));
            if cost(left) <= cost(right) {
                high = right;
            } else {
                low = left;
            }
        }
        f64::midpoint(low, high).exp()
    }

    /// l* before rounding: `ln N / ln f*`, at least 1.
    pub fn best_levels(self, size_ratio: SizeRatio) -> f64 {
        (size_ratio.0.ln() / self.ln_best_growth()).max(1.0)
    }
}

impl Design {
    /// The best whole number of levels for a size, and its size ratio.
    ///
    /// `l·(a·N^(1/l) + b)` is convex in l, so the best whole number is next to [`Compaction::best_levels`]. The paper
    /// says that the curve is flatter on its right side (§6). Of two equal numbers the smaller is taken: fewer levels
    /// are better for reads.
    pub fn optimum(&self, size_ratio: SizeRatio) -> Optimum {
        let below = self.compaction.best_levels(size_ratio).floor();
        // At most log of 1e15 to the base 3.59, which is 27: f* is smallest at α = 1.
        let below = Levels(below as u32);
        let (fewer, more) = (self.at(size_ratio, below), self.at(size_ratio, Levels(below.0 + 1)));
        if more.amplification < fewer.amplification { more } else { fewer }
    }

    fn at(&self, size_ratio: SizeRatio, levels: Levels) -> Optimum {
        let tree = Tree::of_size(size_ratio, levels);
        Optimum { levels, growth: tree.growth, amplification: self.amplification(tree) }
    }
}
