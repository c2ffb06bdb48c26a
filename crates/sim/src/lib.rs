//! Reference model, crash, fault and metamorphic runners for Bifold.
//!
//! Everything a run does follows from a seed, and every failure prints the one line that repeats it. What is
//! promised, how each promise is tested and how often: `docs/reliability.md`.
//!
//! | file | what it is |
//! |---|---|
//! | [`model`] | what a correct database holds after every commit, and which of these states a crash may leave |
//! | [`history`], [`value`], [`options`], [`random`] | random operations, values, option sets |
//! | [`driver`], [`read`] | runs a history on a database and its model at once and compares every answer |
//! | [`feed`] | compares a change feed with the model's commits |
//! | [`mod@env`], [`camera`] | the simulated environment; images of what a crash may leave |
//! | [`judge`] | what an image must satisfy |
//! | [`power`], [`nested`] | power loss at every I/O; crashes in recovery |
//! | [`exhaustive`] | power loss in every short history |
//! | [`splits`] | power loss during partition splits and GC |
//! | [`errno`] | every call fails, once or for good |
//! | [`checkpoints`], [`backups`] | checkpoints and backups that fail or are interrupted |
//! | [`full`], [`disks`] | full disks, simulated and on real file systems |
//! | [`metamorphic`] | one history, many option sets |
//! | [`bitflip`] | every bit flipped, every file truncated |
//! | [`damage`], [`allocations`] | damage of every kind to closed and killed databases, under a memory limit |
//! | [`damaged_program`] | the same through the program, in processes with limits on memory and time |
//! | [`commits`] | the commits of writers that may be stopped at any moment, and their change feed |
//! | [`kill`], [`concurrent`] | real processes killed; real threads |
//! | [`transactions`] | real threads run transactions; their histories have no anomaly |
//! | [`lost_sync`], [`each_sync`] | a sync fails, or power is lost during it, while threads wait for it |
//! | [`trace`], [`syscalls`] | real processes killed at their N-th system call, or that call fails; recovery as well |
//! | [`program`] | the program's commands, with failing system calls |
//! | [`determinism`] | one seed, one trace |
//! | [`themes`], [`report`], [`ledger`], [`planted`] | the list of all tests, their results, soaks, planted bugs |

pub mod allocations;
pub mod backups;
pub mod beside;
pub mod bitflip;
pub mod camera;
pub mod checkpoints;
pub mod commits;
pub mod concurrent;
mod copies;
pub mod damage;
pub mod damaged_program;
pub mod determinism;
pub mod disks;
pub mod driver;
pub mod each_sync;
pub mod env;
pub mod errno;
pub mod exhaustive;
pub mod feed;
pub mod followers;
pub mod full;
pub mod history;
pub mod judge;
pub mod kill;
pub mod ledger;
pub mod lost_sync;
pub mod metamorphic;
pub mod model;
pub mod nested;
pub mod notices;
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
pub mod transactions;
pub mod value;
