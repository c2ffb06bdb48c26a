//! Point reads and iterators.

pub(crate) mod get;
pub(crate) mod scan;
mod visit;
pub(crate) mod window;
