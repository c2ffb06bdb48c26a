//! Workloads, measurements and reports: everything `bifold bench` is made of.
//!
//! A [`Plan`] says how many keys there are, what they and their values look like, who chooses them and with how many
//! threads. A [`Runner`] holds a plan and a [`Store`], runs one [`Workload`] after the other and answers each with a
//! [`PhaseReport`]. Keys, values and choices follow from the seed alone, so that a run can be repeated and every value
//! that is read can be checked.
//!
//! | file | what it is |
//! |---|---|
//! | [`plan`] | what a run looks like |
//! | [`workload`] | the named workloads as mixes of operations |
//! | [`run`] | phases: threads, time limit, what is measured around them |
//! | [`worker`] | one thread's loop |
//! | [`choose`] | which key comes next: uniform, Zipf, latest |
//! | [`keys`] | from a key's number to its bytes |
//! | [`values`] | from a key's number and a version to a value, and back to check it |
//! | [`given`] | keys and values of a user's own in place of made ones |
//! | [`random`] | the generator under all of these |
//! | [`live`] | how many bytes a user would say are stored |
//! | [`measure`] | memory, processor time, bytes moved by system calls, directory size |
//! | [`report`] | the figures of a phase, as a struct and as a line of a table |
//! | [`store`] | the stores that can be measured, and how peers get the budget of Bifold's options |
//!
//! Experiments are made of such runs:
//!
//! | file | what it is |
//! |---|---|
//! | [`spec`] | a run as data |
//! | [`execute`] | runs it |
//! | [`experiment`] | which runs, what is shown of them, what a paper says of them |
//! | [`scale`] | how large they are |
//! | [`driver`] | makes those that are not there yet, in turns |
//! | [`results`] | the file that keeps them |
//! | [`record`] | a line of it |
//! | [`session`] | what all runs of a file have in common |
//! | [`machine`] | where they were run |
//! | [`file_system`] | and in which file system |
//! | [`page`] | the report: a page of HTML, Markdown with pictures |
//! | [`chart`] | charts as SVG; also those of the cost model |
//!
//! This crate measures from outside: it alone, with the program, uses the system's threads and clock directly.

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
pub mod random;
pub mod record;
pub mod report;
pub mod results;
pub mod run;
pub mod scale;
pub mod session;
pub mod spec;
pub mod store;
pub mod values;
pub mod worker;
pub mod workload;

use std::fmt;

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
    /// The plan makes no sense; in words.
    Plan(String),
    /// The store refused; its own words.
    Store(String),
    /// Results cannot be kept or read; in words.
    Results(String),
    /// The store answered, wrongly.
    WrongAnswer {
        /// What was asked.
        question: String,
        /// What came and why it is wrong.
        answer: String,
    },
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Plan(words) | Self::Store(words) | Self::Results(words) => f.write_str(words),
            Self::WrongAnswer { question, answer } => write!(f, "wrong answer: {question}: {answer}"),
        }
    }
}

impl std::error::Error for Failure {}
