//! What all runs of a results directory have in common.

use serde::{Deserialize, Serialize};

use crate::{
    Failure, Result, Scale,
    experiment::{
        self, Experiment,
        rivals::{self, Comparison},
    },
    given::Input,
    spec::PageCache,
};

/// Settings that hold for a whole results directory: figures of different ones cannot be compared.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Session {
    /// How large everything is.
    pub scale: Scale,
    /// What all random choices follow from.
    pub seed: u64,
    /// What the page cache holds when a step that only reads begins.
    pub page_cache: PageCache,
    /// The most memory each store's process may take, page cache included, in bytes; unset: all there is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process_memory: Option<u64>,
    /// What is run.
    pub subject: Subject,
}

/// What a results directory is about.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Subject {
    /// The experiments of the papers.
    Papers,
    /// Stores beside each other.
    Compare(Comparison),
    /// Stores beside each other, with keys and values of a user's own.
    Real(Input),
}

impl Default for Session {
    fn default() -> Self {
        Self {
            scale: Scale::default(),
            seed: 1,
            page_cache: PageCache::default(),
            process_memory: None,
            subject: Subject::Papers,
        }
    }
}

impl Session {
    /// All experiments it may have runs of.
    #[must_use]
    pub fn experiments(&self) -> Vec<Experiment> {
        let mut experiments = match &self.subject {
            Subject::Papers => experiment::all(self.scale, self.seed),
            Subject::Compare(comparison) => vec![comparison.experiment(self.scale, self.seed)],
            Subject::Real(input) => vec![rivals::real(input, self.scale, self.seed)],
        };
        for arm in experiments.iter_mut().flat_map(|experiment| &mut experiment.arms) {
            arm.spec.page_cache = self.page_cache;
            arm.spec.process_memory = self.process_memory;
        }
        experiments
    }

    /// Those with these names: [`experiment::select`].
    ///
    /// # Errors
    /// [`Failure::Plan`] for names there are not.
    pub fn named(&self, names: &[String]) -> Result<Vec<Experiment>> {
        experiment::select(self.experiments(), names)
    }

    /// Refuses to go on with what another session began.
    ///
    /// # Errors
    /// [`Failure::Results`] naming what differs.
    pub fn check_same(&self, stored: &Self) -> Result<()> {
        let words = |session: &Self| serde_json::to_string(session).unwrap_or_default();
        if self == stored {
            return Ok(());
        }
        let (stored, asked) = (words(stored), words(self));
        Err(Failure::Results(format!(
            "the results there were made with {stored}, this asks for {asked}: give another directory"
        )))
    }
}
