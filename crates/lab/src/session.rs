//! The settings that all runs of a results directory share.

use serde::{Deserialize, Serialize};

use crate::{
    Failure, Result, Scale,
    experiment::{
        self, Experiment,
        performance::Setting,
        rivals::{self, Comparison},
    },
    given::Input,
    spec::PageCache,
};

/// Settings of a results directory: figures made with different settings cannot be compared.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Session {
    /// The size of everything.
    pub scale: Scale,
    /// The seed of all random choices.
    pub seed: u64,
    /// The content of the page cache when a step that only reads begins.
    pub page_cache: PageCache,
    /// The most memory that each store's process may take, page cache included, in bytes; `None`: what the scale says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process_memory: Option<u64>,
    /// What is measured.
    pub subject: Subject,
}

/// The subject of a results directory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Subject {
    /// The experiments of the papers.
    Papers,
    /// Stores compared with each other.
    Compare(Comparison),
    /// Our targets, in a setting.
    Performance(Setting),
    /// Stores compared with each other on the user's own keys and values.
    Real(Input),
}

impl Subject {
    /// The command that makes the runs of one of its experiments, but for what the whole results directory shares.
    #[must_use]
    pub fn command(&self, experiment: &str) -> String {
        match self {
            Self::Papers => format!("bifold lab run {experiment}"),
            Self::Compare(comparison) => comparison.command(),
            Self::Performance(setting) => format!("bifold lab run performance --setting {}", setting.name()),
            Self::Real(_) => "bifold lab run real --input FILE".to_owned(),
        }
    }
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
            Subject::Performance(setting) => vec![setting.experiment(self.scale, self.seed)],
            Subject::Real(input) => vec![rivals::real(input, self.scale, self.seed)],
        };
        // A setting of `performance` has limits of its own.
        let scale = Some(self.scale).filter(|_| !matches!(self.subject, Subject::Performance(_)));
        for arm in experiments.iter_mut().flat_map(|experiment| &mut experiment.arms) {
            let spec = &mut arm.spec;
            spec.page_cache = self.page_cache;
            spec.process_memory =
                self.process_memory.or(spec.process_memory).or_else(|| scale.and_then(Scale::process_memory));
            spec.plan.time_max = spec.plan.time_max.or_else(|| scale.and_then(Scale::step_time_max));
        }
        experiments
    }

    /// Those with these names: [`experiment::select`].
    ///
    /// # Errors
    /// [`Failure::Plan`] for unknown names.
    pub fn named(&self, names: &[String]) -> Result<Vec<Experiment>> {
        experiment::select(self.experiments(), names)
    }

    /// Refuses to continue a session with other settings.
    ///
    /// # Errors
    /// [`Failure::Results`] with both settings.
    pub fn check_same(&self, stored: &Self) -> Result<()> {
        let words = |session: &Self| serde_json::to_string(session).unwrap_or_default();
        if self == stored {
            return Ok(());
        }
        let (stored, asked) = (words(stored), words(self));
        Err(Failure::Results(format!(
            "these results were made with {stored}, and the command asks for {asked}: give another directory"
        )))
    }
}
