//! Progress bars with rate and remaining time, on standard error and only at a terminal.

use std::{
    cell::Cell,
    io::IsTerminal,
    time::{Duration, Instant},
};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Shorter work needs no bar, which would only flicker.
const PATIENCE: Duration = Duration::from_millis(300);

/// A running count towards a known end.
pub struct Progress {
    bar: ProgressBar,
    begin: Instant,
    shown: Cell<bool>,
}

impl Progress {
    /// Counts bytes towards `total`.
    pub fn bytes(what: &str, total: u64) -> Self {
        Self::new(what, total, "{msg} {bar:30} {bytes}/{total_bytes}  {binary_bytes_per_sec}  {eta} left")
    }

    /// Counts things towards `total`.
    pub fn count(what: &str, total: u64) -> Self {
        Self::new(what, total, "{msg} {bar:30} {human_pos}/{human_len}  {per_sec}  {eta} left")
    }

    /// Counts several things in turn, each with its own name: [`Progress::reach`].
    pub fn steps() -> Self {
        Self::new("", 0, "{msg} {bar:12} {percent:>3} %  {per_sec}  {eta} left")
    }

    fn new(what: &str, total: u64, template: &str) -> Self {
        let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::hidden());
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style.progress_chars("█▌░"));
        }
        bar.set_message(what.to_owned());
        Self { bar, begin: Instant::now(), shown: Cell::new(false) }
    }

    /// `n` more are done.
    pub fn advance(&self, n: u64) {
        self.bar.inc(n);
        self.show();
    }

    /// `n` of `total` are done.
    pub fn reach_of(&self, n: u64, total: u64) {
        self.bar.set_length(total);
        self.bar.set_position(n);
        self.show();
    }

    /// `n` of `total` of `what` are done. With a new `what`, rate and remaining time start again.
    pub fn reach(&self, what: &str, n: u64, total: u64) {
        if n < self.bar.position() {
            self.bar.reset();
        }
        self.bar.set_message(what.to_owned());
        self.reach_of(n, total);
    }

    fn show(&self) {
        if !self.shown.get() && self.begin.elapsed() > PATIENCE {
            self.shown.set(true);
            if std::io::stderr().is_terminal() {
                self.bar.set_draw_target(ProgressDrawTarget::stderr());
            }
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
