//! Levels, size ratio (the paper's growth factor) and size of a tree: any two give the third, by `f^l = N` (§3.1).

use crate::input::{Growth, Levels, OutOfRange, SIZE_RATIO_MAX, SizeRatio};

/// A tree of levels, each `f` times as large as the one above it, the first of them `f` times as large as memory.
///
/// The paper lets levels have different growth factors and shows that traffic is least when all are equal (App. A.3).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Tree {
    /// l. It is not whole on a curve over f.
    pub(crate) levels: f64,
    /// f.
    pub(crate) growth: f64,
    /// f − 1, stored separately because the subtraction loses all digits where f is close to 1.
    pub(crate) growth_less_one: f64,
    /// N = f^l.
    size_ratio: SizeRatio,
}

impl Tree {
    /// From l and f.
    ///
    /// # Errors
    /// When `f^l` is above [`SIZE_RATIO_MAX`].
    pub fn new(levels: Levels, growth: Growth) -> Result<Self, OutOfRange> {
        let ratio = growth.0.powi(levels.0.cast_signed());
        if ratio > SIZE_RATIO_MAX {
            return Err(OutOfRange { name: "growth to the power of levels", given: ratio, allowed: "at most 1e15" });
        }
        let (levels, growth) = (f64::from(levels.0), growth.0);
        Ok(Self { levels, growth, growth_less_one: growth - 1.0, size_ratio: SizeRatio(ratio) })
    }

    /// From N and l: `f = N^(1/l)`.
    pub fn of_size(size_ratio: SizeRatio, levels: Levels) -> Self {
        let l = f64::from(levels.0);
        let root = size_ratio.0.powf(l.recip());
        // One step of Newton's method removes the error of the last digits: the fifth root of 1024 becomes 4.
        let error = root.powf(l) / size_ratio.0 - 1.0;
        let growth = root * (1.0 - error / l);
        Self { levels: l, growth, growth_less_one: (size_ratio.0.ln() / l).exp_m1(), size_ratio }
    }

    /// From N and f: `l = ln N / ln f`, seldom a whole number.
    ///
    /// # Errors
    /// When `growth` is above `size_ratio`: a tree has at least one level.
    pub fn with_growth(size_ratio: SizeRatio, growth: Growth) -> Result<Self, OutOfRange> {
        if growth.0 > size_ratio.0 {
            let allowed = "at most the size ratio, which is one level";
            return Err(OutOfRange { name: "growth", given: growth.0, allowed });
        }
        let levels = size_ratio.0.ln() / growth.0.ln();
        Ok(Self { levels, growth: growth.0, growth_less_one: growth.0 - 1.0, size_ratio })
    }

    /// l, not always a whole number; see [`Tree::with_growth`].
    pub fn levels(self) -> f64 {
        self.levels
    }

    /// f.
    pub fn growth(self) -> f64 {
        self.growth
    }

    /// N: how many times as much as memory the last level holds.
    pub fn size_ratio(self) -> SizeRatio {
        self.size_ratio
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_figures_give_the_third() {
        let tree = Tree::new(Levels(5), Growth(4.0)).unwrap();
        assert_eq!(tree.size_ratio().get(), 1024.0);
        assert_eq!(Tree::of_size(SizeRatio(1024.0), Levels(5)).growth(), 4.0);
        assert_eq!(Tree::of_size(SizeRatio(1000.0), Levels(3)).growth(), 10.0);
        assert_eq!(Tree::with_growth(SizeRatio(1024.0), Growth(4.0)).unwrap().levels(), 5.0);
    }

    #[test]
    fn what_no_tree_has_is_refused() {
        let far = Tree::new(Levels(100), Growth(10.0)).unwrap_err().to_string();
        assert!(far.contains("levels") && far.contains("1.00e100") && far.contains("1e15"), "{far}");
        assert!(Tree::with_growth(SizeRatio(10.0), Growth(11.0)).is_err());
        // So large that the power is infinite.
        assert!(Tree::new(Levels(100), Growth(1e15)).is_err());
    }
}
