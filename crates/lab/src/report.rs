//! The figures of a phase: as a struct that serialises to one JSON object, and as a line of a table.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;
use serde::Serialize;

use crate::{Store, measure, store::Gc};

/// The figures of one phase. Bytes by source are those of the phase; amplification and `gc` count from the beginning of
/// the run.
#[derive(Clone, Debug, Default, Serialize)]
pub struct PhaseReport {
    /// The store.
    pub store: &'static str,
    /// The workload.
    pub phase: &'static str,
    /// Operations; each key of a batch is one, a scan is one.
    pub operations: u64,
    /// Reads that found nothing.
    pub not_found: u64,
    /// The duration of the phase.
    pub seconds: f64,
    /// Operations per second of all threads together.
    pub ops_per_sec: f64,
    /// Time of a call of the store (a whole batch is one call), in microseconds.
    pub latency_us: Latency,
    /// The same for each kind of operation, if there are several.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub latency_us_by_operation: BTreeMap<&'static str, Latency>,
    /// A digest of all operations and their keys: the same for two runs of one plan.
    pub operations_digest: String,
    /// Bytes of keys and values given to the store.
    pub user_bytes_written: u64,
    /// Bytes of keys and values received from it.
    pub user_bytes_read: u64,
    /// The same per second.
    pub user_bytes_read_per_sec: f64,
    /// Bytes written to files, by source within the store.
    pub bytes_written: BTreeMap<&'static str, u64>,
    /// Bytes read from files, by source within the store.
    pub bytes_read: BTreeMap<&'static str, u64>,
    /// Bytes written to files for each byte the user wrote; 0 before the first.
    pub write_amp: f64,
    /// Bytes read from files for the user, for each byte returned; 0 before the first.
    pub read_amp: f64,
    /// Size of the directory for each live byte, at the end of the phase.
    pub space_amp: f64,
    /// Bytes of all keys, each once, with their newest values.
    pub live_bytes: u64,
    /// Size of the directory at the end of the phase.
    pub dir_bytes: u64,
    /// The largest size seen during the phase.
    pub dir_bytes_max: u64,
    /// The peak resident memory during the phase; `None` if the system does not report it.
    pub peak_rss_bytes: Option<u64>,
    /// Processor time of all threads.
    pub cpu_seconds: f64,
    /// The same for each operation, in microseconds.
    pub cpu_us_per_op: f64,
    /// The work of GC.
    pub gc: Gc,
}

/// Quantiles of a duration, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Latency {
    /// The median.
    pub p50: f64,
    /// 99 of 100 took no longer.
    pub p99: f64,
    /// 999 of 1000 took no longer.
    pub p999: f64,
    /// 9999 of 10 000 took no longer.
    pub p9999: f64,
    /// The longest.
    pub max: f64,
    /// The average.
    pub mean: f64,
}

impl Latency {
    /// Of a single call.
    #[must_use]
    pub fn once(seconds: f64) -> Self {
        let us = seconds * 1e6;
        Self { p50: us, p99: us, p999: us, p9999: us, max: us, mean: us }
    }

    /// From nanoseconds.
    #[must_use]
    pub fn of(histogram: &Histogram<u64>) -> Self {
        if histogram.is_empty() {
            return Self::default();
        }
        let at = |quantile| histogram.value_at_quantile(quantile) as f64 / 1e3;
        Self {
            p50: at(0.5),
            p99: at(0.99),
            p999: at(0.999),
            p9999: at(0.9999),
            max: histogram.max() as f64 / 1e3,
            mean: histogram.mean() / 1e3,
        }
    }
}

/// Bytes that users wrote and read since the run began.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sums {
    pub bytes_written: u64,
    pub bytes_read: u64,
}

impl PhaseReport {
    /// A phase that only opened a store, which took `seconds`.
    #[must_use]
    pub fn opened(store: &dyn Store, seconds: f64) -> Self {
        Self {
            store: store.name(),
            phase: "open",
            operations: 1,
            seconds,
            ops_per_sec: 1.0 / seconds.max(1e-9),
            latency_us: Latency::once(seconds),
            peak_rss_bytes: measure::peak_memory_bytes(),
            ..Self::default()
        }
    }

    /// The head of the table; its lines are [`PhaseReport::table_line`].
    #[must_use]
    pub fn table_head() -> String {
        format!(
            "{:<8} {:>11} {:>9} {:>9} {:>9} {:>9}  {:>6} {:>6} {:>6}  {:>8} {:>8} {:>7}",
            "phase",
            "ops/s",
            "p50 µs",
            "p99 µs",
            "p999 µs",
            "max µs",
            "write×",
            "read×",
            "space×",
            "dir MiB",
            "RSS MiB",
            "CPU µs"
        )
    }

    /// The phase in a line of at most 110 characters.
    #[must_use]
    pub fn table_line(&self) -> String {
        let l = &self.latency_us;
        let micros = |us: f64| if us < 100.0 { format!("{us:.2}") } else { format!("{us:.0}") };
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        format!(
            "{:<8} {:>11} {:>9} {:>9} {:>9} {:>9}  {:>6.2} {:>6.2} {:>6.2}  {:>8.1} {:>8} {:>7}",
            self.phase,
            grouped(self.ops_per_sec),
            micros(l.p50),
            micros(l.p99),
            micros(l.p999),
            micros(l.max),
            self.write_amp,
            self.read_amp,
            self.space_amp,
            mib(self.dir_bytes),
            self.peak_rss_bytes.map_or("?".to_owned(), |bytes| format!("{:.1}", mib(bytes))),
            micros(self.cpu_us_per_op),
        )
    }
}

/// A number of bytes for people: `1.5 MiB`.
#[must_use]
pub fn bytes(bytes: u64) -> String {
    let units = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let unit = (bytes.ilog2() / 10) as usize;
    let figure = bytes as f64 / (1_u64 << (10 * unit)) as f64;
    format!("{figure:.1} {}", units[unit - 1])
}

/// A figure without decimals, in groups of three digits: `1 234 567`; small ones with one decimal.
#[must_use]
pub fn grouped(figure: f64) -> String {
    if figure < 100.0 {
        return format!("{figure:.1}");
    }
    let digits = format!("{figure:.0}");
    let mut out = String::with_capacity(digits.len() * 4 / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(' ');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_shown_in_the_largest_fitting_unit() {
        for (n, text) in [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (3 << 19, "1.5 MiB"), (u64::MAX, "16.0 EiB")]
        {
            assert_eq!(bytes(n), text);
        }
    }

    #[test]
    fn thousands_stand_apart() {
        for (figure, text) in
            [(0.0, "0.0"), (99.94, "99.9"), (100.0, "100"), (1234.4, "1 234"), (1_234_567.0, "1 234 567")]
        {
            assert_eq!(grouped(figure), text);
        }
    }

    #[test]
    fn quantiles_are_in_microseconds() {
        let mut histogram = crate::run::histogram();
        for microsecond in 1..=1000_u64 {
            histogram.record(microsecond * 1000).unwrap();
        }
        let latency = Latency::of(&histogram);
        for (found, expected) in
            [(latency.p50, 500.0), (latency.p99, 990.0), (latency.p999, 999.0), (latency.max, 1000.0)]
        {
            assert!((found - expected).abs() < expected / 100.0, "{latency:?}");
        }
        assert_eq!(Latency::of(&crate::run::histogram()), Latency::default());
    }
}
