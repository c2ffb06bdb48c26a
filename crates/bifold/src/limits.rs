//! What bounds a database: memory, room on the disk, the space of values; how fast writers may go, and how they wait.

pub(crate) mod memory;
pub(crate) mod pace;
pub(crate) mod room;
pub(crate) mod space;
pub(crate) mod transaction_memory;
pub(crate) mod waits;
