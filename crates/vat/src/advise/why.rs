//! The recommendation in words.

use super::{Advice, Bottleneck, CandidateCompaction, Forecast, ModelPlacement};

/// Designs with at least this share of the best one's speed are named as well: the model cannot distinguish them.
const AS_GOOD: f64 = 0.9;

impl Advice {
    /// One paragraph: the best design, the reasons, and the comparison with the main alternative.
    pub fn why(&self) -> String {
        let best = self.best();
        let inline = self.best_of(|placement| placement == ModelPlacement::Inline);
        let separated = self.best_of(|placement| placement != ModelPlacement::Inline);
        let mut text = match best.candidate.placement {
            ModelPlacement::Inline => "Do not separate values from their keys.".to_owned(),
            ModelPlacement::UniKv => {
                "Use `unikv`: inline values in an unsorted layer under a hash index, separated values below it."
                    .to_owned()
            }
            placement => format!("Separate values with `{}`.", placement.name()),
        };
        let other = if best.candidate.placement == ModelPlacement::Inline { separated } else { inline };
        if let Some(other) = other {
            text += &format!(" {}", self.against(best, other));
        }
        text += &format!(" {}", limit(best));
        let close: Vec<String> = self
            .forecasts()
            .iter()
            .skip(1)
            .filter(|f| f.within_space && f.operations_per_second >= AS_GOOD * best.operations_per_second)
            .map(describe)
            .collect();
        if !close.is_empty() {
            text += &format!(" About as good, within the error of the model: {}.", close.join("; "));
        }
        text
    }

    fn best_of(&self, is: impl Fn(ModelPlacement) -> bool) -> Option<&Forecast> {
        self.forecasts().iter().find(|f| is(f.candidate.placement))
    }

    /// Where the other design spends the time that this one saves.
    fn against(&self, best: &Forecast, other: &Forecast) -> String {
        let name = match other.candidate.placement {
            ModelPlacement::Inline => "inline values".to_owned(),
            placement => format!("the best separation (`{}`)", placement.name()),
        };
        let ratio = best.operations_per_second / other.operations_per_second;
        let (b, o) = (&best.times, &other.times);
        let gains = [
            (o.commits_us - b.commits_us, "commits"),
            (o.reads_us - b.reads_us, "reads and scans"),
            (o.background_us - b.background_us, "flushes, merges and GC"),
            (o.device_writes_us - b.device_writes_us, "writing to the device"),
            (o.device_reads_us - b.device_reads_us, "reading from the device"),
        ];
        let speed = if !other.within_space && ratio <= 1.0 {
            format!("{name} would take {:.2} bytes for each live byte, more than allowed", other.space_amplification)
        } else {
            format!("It does {ratio:.2} times as many operations as {name}")
        };
        let writes = match (best.write_amplification, other.write_amplification) {
            (a, b) if a > 0.0 => format!(", and writes {a:.1} bytes for each byte of the program instead of {b:.1}"),
            _ => String::new(),
        };
        let most = gains.iter().max_by(|a, b| a.0.total_cmp(&b.0)).filter(|gain| gain.0 > 0.0);
        let gain = most.map_or(String::new(), |gain| format!("; most of the difference is time for {}", gain.1));
        format!("{speed}{writes}{gain}.")
    }
}

/// The bottleneck and a remedy.
fn limit(best: &Forecast) -> String {
    match best.bottleneck {
        Bottleneck::Commits => "The bottleneck is the processor time of commits: larger batches would help.".into(),
        Bottleneck::Reads => "The bottleneck is the processor time of reads: more threads would help.".into(),
        Bottleneck::Background => {
            "The bottleneck is background work: more memory for memtables would help, and so would more space.".into()
        }
        Bottleneck::DeviceWrites => "The bottleneck is how fast the device writes.".into(),
        Bottleneck::DeviceReads => "The bottleneck is how fast the device reads: more memory would help.".into(),
    }
}

/// A candidate in a few words.
fn describe(forecast: &Forecast) -> String {
    let candidate = &forecast.candidate;
    let shape = match candidate.shape {
        CandidateCompaction::Leveled { size_ratio } => format!("leveled, size ratio {size_ratio}"),
        CandidateCompaction::Tiered { size_ratio } => format!("tiered, size ratio {size_ratio}"),
        CandidateCompaction::TwoLayer => "two layers".to_owned(),
    };
    let from = candidate.min_bytes.map_or(String::new(), |bytes| format!(", values from {bytes} bytes"));
    format!("`{}` ({shape}{from}, blocks of {} bytes)", candidate.placement.name(), candidate.block_bytes)
}
