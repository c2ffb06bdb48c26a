//! Point reads and iterators.

pub(crate) mod get;
pub(crate) mod scan;
pub(crate) mod window;
