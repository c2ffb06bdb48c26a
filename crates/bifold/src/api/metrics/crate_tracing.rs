//! For the crate `tracing`.

use std::time::Duration;

use bifold_contract::Error;
use tracing::{debug, error, info, warn};

use crate::settings::events::{EventListener, JobEnd, JobInfo};

/// Writes events of the crate `tracing`, with the target `bifold`: files at level debug, jobs at level info, stalls,
/// what is left out and readers that cannot be found out at level warn, failures at level error.
#[derive(Clone, Copy, Debug, Default)]
pub struct TracingListener;

impl TracingListener {
    fn begun(kind: &'static str, job: &JobInfo) {
        let (job, keyspace, input_bytes) = (job.number, &job.keyspace, job.input_bytes);
        info!(target: "bifold", kind, job, %keyspace, input_bytes, "begun");
    }

    fn ended(kind: &'static str, job: &JobInfo, end: &JobEnd) {
        let micros = u64::try_from(end.time.as_micros()).unwrap_or(u64::MAX);
        match &end.error {
            None => info!(target: "bifold", kind, job = job.number, keyspace = %job.keyspace, micros, "ended"),
            Some(error) => {
                error!(target: "bifold", kind, job = job.number, keyspace = %job.keyspace, micros, %error, "failed");
            }
        }
    }
}

impl EventListener for TracingListener {
    fn flush_begun(&self, flush: &JobInfo) {
        Self::begun("flush", flush);
    }

    fn flush_ended(&self, flush: &JobInfo, end: &JobEnd) {
        Self::ended("flush", flush, end);
    }

    fn compaction_begun(&self, compaction: &JobInfo) {
        Self::begun("compaction", compaction);
    }

    fn compaction_ended(&self, compaction: &JobInfo, end: &JobEnd) {
        Self::ended("compaction", compaction, end);
    }

    fn gc_begun(&self, gc: &JobInfo) {
        Self::begun("gc", gc);
    }

    fn gc_ended(&self, gc: &JobInfo, end: &JobEnd) {
        Self::ended("gc", gc, end);
    }

    fn stall_begun(&self, cause: &'static str) {
        warn!(target: "bifold", cause, "writers wait");
    }

    fn stall_ended(&self, cause: &'static str, time: Duration) {
        warn!(target: "bifold", cause, ?time, "writers go on");
    }

    fn file_created(&self, name: &str) {
        debug!(target: "bifold", name, "file created");
    }

    fn file_deleted(&self, name: &str) {
        debug!(target: "bifold", name, "file deleted");
    }

    fn readers_unknown(&self, error: &Error) {
        warn!(target: "bifold", %error, "who reads is unknown, and files stay");
    }

    fn left_out(&self, keyspace: &str, error: &Error) {
        warn!(target: "bifold", keyspace, %error, "left out");
    }

    fn poisoned(&self, error: &Error) {
        error!(target: "bifold", %error, "no more writes are taken");
    }

    fn events_lost(&self, count: u64) {
        warn!(target: "bifold", count, "events were lost");
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use tracing::{
        Event, Metadata, Subscriber,
        field::{Field, Visit},
        span,
    };

    use super::*;

    #[derive(Default)]
    struct Seen(Arc<Mutex<Vec<String>>>);

    struct Words(String);

    impl Visit for Words {
        fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
            self.0 += &format!(" {}={value:?}", field.name());
        }
    }

    impl Subscriber for Seen {
        fn enabled(&self, _: &Metadata<'_>) -> bool {
            true
        }

        fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
            span::Id::from_u64(1)
        }

        fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
        fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
        fn enter(&self, _: &span::Id) {}
        fn exit(&self, _: &span::Id) {}

        fn event(&self, event: &Event<'_>) {
            let mut words = Words(event.metadata().level().to_string());
            event.record(&mut words);
            self.0.lock().unwrap().push(words.0);
        }
    }

    #[test]
    fn events_arrive_at_the_subscriber_of_the_program() {
        let seen = Seen::default();
        let lines = Arc::clone(&seen.0);
        tracing::subscriber::with_default(seen, || {
            let job = JobInfo { number: 1, keyspace: "default".into(), input_bytes: 10 };
            TracingListener.flush_begun(&job);
            let end = |error| JobEnd { time: Duration::from_millis(2), error };
            TracingListener.flush_ended(&job, &end(None));
            TracingListener.gc_ended(&job, &end(Some(Error::Closed { what: "the database".into() })));
            TracingListener.file_created("a");
        });
        let lines = lines.lock().unwrap();
        assert!(lines[0].starts_with("INFO") && lines[0].contains("input_bytes=10"), "{lines:?}");
        assert!(lines[1].starts_with("INFO") && lines[1].contains("micros=2000"), "{lines:?}");
        assert!(lines[2].starts_with("ERROR") && lines[2].contains("kind=\"gc\""), "{lines:?}");
        assert!(lines[3].starts_with("DEBUG"), "{lines:?}");
    }
}
