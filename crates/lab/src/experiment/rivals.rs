//! Experiments to come.

use super::Maker;

/// Every one of them.
pub(super) const ALL: &[Maker] = &[];
