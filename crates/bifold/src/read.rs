//! Point reads and iterators.

mod above;
pub(crate) mod get;
pub(crate) mod scan;
mod visit;
pub(crate) mod window;
