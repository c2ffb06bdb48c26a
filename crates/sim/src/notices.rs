//! Commits whose notices are outstanding.

use bifold::CommitNotice;

use crate::{
    model::{CommitNo, Model},
    read::Trouble,
};

/// Notices that nobody has waited for, oldest first.
#[derive(Debug, Default)]
pub struct Outstanding(Vec<(CommitNo, CommitNotice)>);

impl Outstanding {
    /// Keeps a notice of this commit.
    pub fn keep(&mut self, commit: CommitNo, notice: CommitNotice) {
        self.0.push((commit, notice));
    }

    /// Waits for all of them. `seen` judges what happened meanwhile, before the model learns that they are durable.
    ///
    /// # Errors
    /// The error of a notice, and that of `seen`.
    pub fn settle(
        &mut self,
        model: &mut Model,
        mut seen: impl FnMut(&Model) -> Result<(), Trouble>,
    ) -> Result<(), Trouble> {
        for (commit, notice) in self.0.drain(..) {
            let durable = notice.wait();
            seen(model)?;
            durable?;
            if !notice.is_durable() {
                return Err(Trouble::wrong(format!(
                    "the notice of commit {commit} was waited for, and is not durable"
                )));
            }
            model.is_durable(commit);
        }
        Ok(())
    }

    /// The database was closed without an error: all of them are resolved.
    ///
    /// # Errors
    /// If one is not.
    pub fn are_resolved(&mut self) -> Result<(), Trouble> {
        match self.0.drain(..).find(|(_, notice)| !notice.is_durable()) {
            Some((commit, _)) => Err(Trouble::wrong(format!("after closing, commit {commit} is not durable"))),
            None => Ok(()),
        }
    }

    /// Forgets all of them.
    pub fn forget(&mut self) {
        self.0.clear();
    }
}
