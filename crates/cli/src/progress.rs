//! Progress bars with rate and time left, on standard error and at a terminal only.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal;

/// A running count towards a known end.
pub struct Progress {
    bar: ProgressBar,
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

    fn new(what: &str, total: u64, template: &str) -> Self {
        let target =
            if std::io::stderr().is_terminal() { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let bar = ProgressBar::with_draw_target(Some(total), target);
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style.progress_chars("█▌░"));
        }
        bar.set_message(what.to_owned());
        Self { bar }
    }

    /// `n` more are done.
    pub fn advance(&self, n: u64) {
        self.bar.inc(n);
    }

    /// `n` of `total` are done in all.
    pub fn reach_of(&self, n: u64, total: u64) {
        self.bar.set_length(total);
        self.bar.set_position(n);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
