//! Tests of the formats through their public interface, exhaustive where a file is small enough for that.
//!
//! | file | what it checks |
//! |---|---|
//! | `golden` | the worked examples of `docs/formats` are, byte for byte, what is written |
//! | `log`, `manifest` | what a crash leaves is a torn tail, whatever else is damage, nothing is silent |
//! | `names` | a name is recognised only in the form in which it is written |
//! | `mangled` | no decoder panics, whatever it is given |

mod compression;
mod golden;
mod log;
mod mangled;
mod manifest;
mod names;
