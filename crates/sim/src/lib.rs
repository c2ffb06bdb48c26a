//! Reference model, crash, fault and metamorphic runners for Bifold.
//!
//! Everything a run does follows from a seed; every failure prints the one line that repeats it. What is promised, what
//! is proven how, and how often: `docs/reliability.md`.
//!
//! | file | what it is |
//! |---|---|
//! | [`model`] | what a correct database holds after every commit, and which of these states a crash may leave |
//! | [`history`], [`value`], [`options`], [`random`] | random operations, values, option sets |
//! | [`driver`], [`read`] | runs a history on database and model at once, compares every answer |
//! | [`mod@env`], [`camera`] | simulated surroundings; images of what a crash may leave |
//! | [`judge`] | what is demanded of an image |
//! | [`power`], [`nested`] | power loss at every I/O; crashes in recovery |
//! | [`exhaustive`] | power loss in every short history |
//! | [`splits`] | power loss while partitions split and are collected |
//! | [`errno`] | every call fails, once or for good |
//! | [`checkpoints`] | checkpoints that fail or are cut short |
//! | [`full`], [`disks`] | the disk fills up, simulated; real file systems |
//! | [`metamorphic`] | one history, many option sets |
//! | [`bitflip`] | every bit flipped, every file cut |
//! | [`damage`], [`allocations`] | damage of every kind to closed and killed databases, under a memory limit |
//! | [`damaged_program`] | the same seen by the program, in processes with bounds on memory and time |
//! | [`kill`], [`concurrent`] | real processes killed; real threads |
//! | [`lost_sync`], [`each_sync`] | a sync fails, or the power goes at it, while threads wait for it |
//! | [`trace`], [`syscalls`] | real processes killed at their N-th system call, or that call fails; recovery as well |
//! | [`program`] | the program's commands, with system calls failing |
//! | [`determinism`] | one seed, one trace |
//! | [`themes`], [`report`], [`ledger`], [`planted`] | the list of all tests, their results, soaks, tests of the tests |

pub mod allocations;
pub mod bitflip;
pub mod camera;
pub mod checkpoints;
pub mod concurrent;
pub mod damage;
pub mod damaged_program;
pub mod determinism;
pub mod disks;
pub mod driver;
pub mod each_sync;
pub mod env;
pub mod errno;
pub mod exhaustive;
pub mod full;
pub mod history;
pub mod judge;
pub mod kill;
pub mod ledger;
pub mod lost_sync;
pub mod metamorphic;
pub mod model;
pub mod nested;
pub mod options;
pub mod planted;
pub mod power;
pub mod program;
pub mod random;
pub mod read;
pub mod report;
pub mod splits;
pub mod syscalls;
pub mod themes;
pub mod trace;
pub mod value;
