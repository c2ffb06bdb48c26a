//! For the crate `metrics`.

use bifold_contract::Error;
use metrics::{Label, counter, gauge, histogram};

use super::Recorder;
use crate::settings::events::{EventListener, JobEnd, JobInfo};

/// Gives figures to the recorder that the program has installed for the crate `metrics`. A counter of that crate takes
/// the largest value that it was given: where one begins at 0 again ([`Recorder::counter`], or another opening in the
/// same process), it stands still until the new count is larger.
#[derive(Clone, Copy, Debug, Default)]
pub struct MetricsRecorder;

/// Counts jobs and failures, and records how long jobs and stalls take, with the crate `metrics`.
#[derive(Clone, Copy, Debug, Default)]
pub struct MetricsListener;

fn owned(labels: &[(&'static str, &str)]) -> Vec<Label> {
    labels.iter().map(|(name, value)| Label::new(*name, (*value).to_owned())).collect()
}

impl Recorder for MetricsRecorder {
    fn counter(&mut self, name: &'static str, labels: &[(&'static str, &str)], value: u64) {
        counter!(name, owned(labels)).absolute(value);
    }

    fn gauge(&mut self, name: &'static str, labels: &[(&'static str, &str)], value: f64) {
        gauge!(name, owned(labels)).set(value);
    }
}

impl MetricsListener {
    fn ended(kind: &'static str, job: &JobInfo, end: &JobEnd) {
        let labels = owned(&[("kind", kind), ("keyspace", &job.keyspace)]);
        if end.error.is_some() {
            counter!("bifold_failed_jobs_total", labels.clone()).increment(1);
        }
        histogram!("bifold_job_seconds", labels).record(end.time);
    }
}

impl EventListener for MetricsListener {
    fn flush_ended(&self, flush: &JobInfo, end: &JobEnd) {
        Self::ended("flush", flush, end);
    }

    fn compaction_ended(&self, compaction: &JobInfo, end: &JobEnd) {
        Self::ended("compaction", compaction, end);
    }

    fn gc_ended(&self, gc: &JobInfo, end: &JobEnd) {
        Self::ended("gc", gc, end);
    }

    fn stall_ended(&self, cause: &'static str, time: std::time::Duration) {
        histogram!("bifold_stall_seconds", "cause" => cause).record(time);
    }

    fn file_created(&self, _name: &str) {
        counter!("bifold_files_created_total").increment(1);
    }

    fn file_deleted(&self, _name: &str) {
        counter!("bifold_files_deleted_total").increment(1);
    }

    fn left_out(&self, _keyspace: &str, _error: &Error) {
        counter!("bifold_left_out_total").increment(1);
    }

    fn poisoned(&self, _error: &Error) {
        counter!("bifold_poisoned_total").increment(1);
    }

    fn events_lost(&self, count: u64) {
        counter!("bifold_events_lost_total").increment(count);
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::Mutex, time::Duration};

    use metrics::{
        Counter, CounterFn, Gauge, GaugeFn, Histogram, HistogramFn, Key, KeyName, Metadata, SharedString, Unit,
    };

    use super::*;

    /// What was recorded, in words.
    #[derive(Default)]
    struct Seen(std::sync::Arc<Mutex<Vec<String>>>);

    struct One(String, std::sync::Arc<Mutex<Vec<String>>>);

    impl One {
        fn note(&self, what: String) {
            self.1.lock().unwrap().push(format!("{} {what}", self.0));
        }
    }

    impl CounterFn for One {
        fn increment(&self, value: u64) {
            self.note(format!("+{value}"));
        }

        fn absolute(&self, value: u64) {
            self.note(value.to_string());
        }
    }

    impl GaugeFn for One {
        fn increment(&self, value: f64) {
            self.note(format!("+{value}"));
        }

        fn decrement(&self, value: f64) {
            self.note(format!("-{value}"));
        }

        fn set(&self, value: f64) {
            self.note(value.to_string());
        }
    }

    impl HistogramFn for One {
        fn record(&self, value: f64) {
            self.note(format!("~{value}"));
        }
    }

    impl Seen {
        fn one(&self, key: &Key) -> std::sync::Arc<One> {
            let labels: Vec<String> = key.labels().map(|label| format!("{}={}", label.key(), label.value())).collect();
            std::sync::Arc::new(One(format!("{}{labels:?}", key.name()), self.0.clone()))
        }
    }

    impl metrics::Recorder for Seen {
        fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
        fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}
        fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {}

        fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
            Counter::from_arc(self.one(key))
        }

        fn register_gauge(&self, key: &Key, _: &Metadata<'_>) -> Gauge {
            Gauge::from_arc(self.one(key))
        }

        fn register_histogram(&self, key: &Key, _: &Metadata<'_>) -> Histogram {
            Histogram::from_arc(self.one(key))
        }
    }

    #[test]
    fn figures_and_jobs_arrive_at_the_recorder_of_the_program() {
        let recorder = Seen::default();
        metrics::with_local_recorder(&recorder, || {
            MetricsRecorder.counter("commits", &[], 7);
            MetricsRecorder.gauge("bytes", &[("part", "cache")], 2.5);
            let job = JobInfo { number: 1, keyspace: "default".into(), input_bytes: 10 };
            let full = Error::Panicked { what: "a test", message: "none".into() };
            MetricsListener.flush_ended(&job, &JobEnd { time: Duration::from_millis(500), error: Some(full) });
            MetricsListener.stall_ended("space", Duration::from_secs(1));
            MetricsListener.events_lost(3);
        });
        let seen = recorder.0.lock().unwrap().clone();
        assert_eq!(
            seen,
            [
                "commits[] 7",
                "bytes[\"part=cache\"] 2.5",
                "bifold_failed_jobs_total[\"kind=flush\", \"keyspace=default\"] +1",
                "bifold_job_seconds[\"kind=flush\", \"keyspace=default\"] ~0.5",
                "bifold_stall_seconds[\"cause=space\"] ~1",
                "bifold_events_lost_total[] +3",
            ]
        );
    }
}
