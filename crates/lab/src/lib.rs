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
//! | [`random`] | the generator under all of these |
//! | [`live`] | how many bytes a user would say are stored |
//! | [`measure`] | memory, processor time, bytes moved by system calls, directory size |
//! | [`report`] | the figures of a phase, as a struct and as a line of a table |
//! | [`store`] | the stores that can be measured, and how peers get the budget of Bifold's options |
//!
//! This crate measures from outside: it alone, with the program, uses the system's threads and clock directly.

pub mod choose;
pub mod keys;
pub mod live;
pub mod measure;
pub mod plan;
pub mod random;
pub mod report;
pub mod run;
pub mod store;
pub mod values;
pub mod worker;
pub mod workload;

use std::fmt;

pub use plan::Plan;
pub use report::PhaseReport;
pub use run::Runner;
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
            Self::Plan(words) | Self::Store(words) => f.write_str(words),
            Self::WrongAnswer { question, answer } => write!(f, "wrong answer: {question}: {answer}"),
        }
    }
}

impl std::error::Error for Failure {}
