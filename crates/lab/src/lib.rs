//! Workloads, measurements and reports: everything `bifold bench` is made of.
//!
//! A [`Plan`] gives the number of keys, the shape of keys and values, how keys are chosen, and the number of threads. A
//! [`Runner`] has a plan and a [`Store`], runs one [`Workload`] after the other and returns a [`PhaseReport`] for each.
//! Keys, values and choices follow from the seed alone, so a run can be repeated and every value read can be checked.
//!
//! | file | what it is |
//! |---|---|
//! | [`plan`] | keys, values, choices and threads of a run |
//! | [`workload`] | the named workloads as mixes of operations |
//! | [`run`] | phases: threads, time limit, measurements |
//! | [`worker`] | one thread's loop |
//! | [`bystander`] | tells slow operations from stalls of the machine |
//! | [`choose`] | which key comes next: uniform, Zipf, latest |
//! | [`keys`] | from a key's number to its bytes |
//! | [`values`] | from a key's number and a version to a value, and the check of a value |
//! | [`given`] | the user's own keys and values |
//! | [`random`] | the generator under all of these |
//! | [`live`] | bytes of the keys and values that a user has stored |
//! | [`measure`] | memory, processor time, bytes moved by system calls, directory size |
//! | [`probe`] | what the device gives without a store |
//! | [`quiet`] | what others take of the machine |
//! | [`report`] | the figures of a phase, as a struct and as a line of a table |
//! | [`store`] | the stores that can be measured, and the budget that peers get from Bifold's options |
//!
//! Experiments consist of such runs:
//!
//! | file | what it is |
//! |---|---|
//! | [`spec`] | a run as data |
//! | [`execute`] | runs it |
//! | [`experiment`] | their runs, their charts, and the paper's claims |
//! | [`scale`] | their size |
//! | [`driver`] | makes missing runs, in turns |
//! | [`results`] | the file that keeps them |
//! | [`record`] | a line of it |
//! | [`session`] | the settings that all runs of a file share |
//! | [`machine`] | the machine of a run |
//! | [`file_system`] | its file system |
//! | [`system`] | its settings for buffered files |
//! | [`page`] | the report: a page of HTML, Markdown with pictures |
//! | [`chart`] | charts as SVG; also those of the cost model |
//!
//! The cost model, which is the crate `bifold-vat`, needs two kinds of measurements:
//!
//! | file | what it is |
//! |---|---|
//! | [`calibrate`] | a device: its throughput by size and number of requests |
//! | [`validate`] | the engine: the bytes it moves, compared with the model |
//! | [`room`] | free space of directories |
//!
//! And without any engine:
//!
//! | file | what it is |
//! |---|---|
//! | [`simulate`] | what designs of GC must write |
//!
//! This crate measures from outside: only it and the program use the system's threads and clock directly.

pub mod bystander;
pub mod calibrate;
pub mod chart;
pub mod choose;
pub mod driver;
pub mod execute;
pub mod experiment;
pub mod file_system;
pub mod given;
pub mod keys;
pub mod live;
pub mod machine;
pub mod measure;
pub mod page;
pub mod plan;
pub mod probe;
pub mod quiet;
pub mod random;
pub mod record;
pub mod report;
pub mod results;
pub mod room;
pub mod run;
pub mod scale;
pub mod session;
pub mod simulate;
pub mod spec;
pub mod store;
pub mod system;
pub mod validate;
pub mod values;
pub mod worker;
pub mod workload;

use std::{fmt, io, path::Path};

pub use plan::Plan;
pub use report::PhaseReport;
pub use run::Runner;
pub use scale::Scale;
pub use session::Session;
pub use spec::Spec;
pub use store::Store;
pub use workload::Workload;

/// The result of everything here that can fail.
pub type Result<T> = std::result::Result<T, Failure>;

/// Why a run stopped.
#[derive(Clone, Debug)]
pub enum Failure {
    /// The plan is invalid; in words.
    Plan(String),
    /// The store failed; its own words.
    Store(String),
    /// Results cannot be stored or read; in words.
    Results(String),
    /// The system failed; in words.
    System(String),
    /// The store returned a wrong answer.
    WrongAnswer {
        /// The call.
        question: String,
        /// The answer, and why it is wrong.
        answer: String,
    },
}

impl Failure {
    /// A file or directory that the system cannot read or write.
    pub(crate) fn file(verb: &str, path: &Path, error: &io::Error) -> Self {
        Self::System(format!("cannot {verb} {}: {error}", path.display()))
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Plan(words) | Self::Store(words) | Self::Results(words) | Self::System(words) => f.write_str(words),
            Self::WrongAnswer { question, answer } => write!(f, "wrong answer: {question}: {answer}"),
        }
    }
}

impl std::error::Error for Failure {}
