//! Tests of the formats through their public interface, exhaustive where a file is small enough for that.
//!
//! | file | what it checks |
//! |---|---|
//! | `golden` | the worked examples of `docs/formats` match the written bytes |
//! | `log`, `manifest` | a crash leaves a torn tail at the right offset, all other changes are reported as damage |
//! | `names` | a name is recognised only in the form that Bifold writes |
//! | `mangled` | no decoder panics, whatever its input |

mod compression;
mod golden;
mod log;
mod mangled;
mod manifest;
mod names;
