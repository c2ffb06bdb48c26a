//! Point reads and iterators.

mod above;
mod chain;
pub(crate) mod estimate;
mod fold;
pub(crate) mod get;
pub(crate) mod keys;
pub(crate) mod large;
mod multi_get;
pub(crate) mod operands;
pub(crate) mod pair;
pub(crate) mod scan;
mod seek;
pub(crate) mod stored;
pub(crate) mod undamaged;
mod visit;
pub(crate) mod window;
