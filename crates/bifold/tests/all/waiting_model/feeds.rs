//! Feeds wait for commits until the database fails or is closed: they see every commit, and none waits forever.

use std::time::Duration;

use shuttle::{
    rand::{Rng, thread_rng},
    sync::{Arc, Mutex, MutexGuard, mpsc},
    thread,
};

use super::real::{sync::LockExt, visible::LastVisible};
use crate::schedules;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mistake {
    /// A feed goes to sleep whatever was committed since it looked.
    LooksOnce,
    /// A feed asks for more without the commit lock.
    AsksUnlocked,
    /// A commit shows itself after it has released the commit lock.
    ShowsUnlocked,
    /// A feed looks whether the database is well before it has its turn.
    LooksBeforeTurn,
    EndNotifiesNobody,
    /// The end notifies before it is noted.
    EndNotifiesEarly,
}

use Mistake::*;

const MISTAKES: [Mistake; 6] =
    [LooksOnce, AsksUnlocked, ShowsUnlocked, LooksBeforeTurn, EndNotifiesNobody, EndNotifiesEarly];

const FEEDS: usize = 2;
const WRITERS: usize = 2;
const COMMITS: u64 = 3;

struct Model {
    mistake: Option<Mistake>,
    /// The commit lock, around the number of the last commit.
    log: Mutex<u64>,
    visible: LastVisible,
    has_ended: Mutex<bool>,
}

impl Model {
    /// Like `Committer::commit_if`.
    fn commit(&self) {
        let mut log = self.log.hold();
        *log += 1;
        let last = *log;
        if self.mistake == Some(ShowsUnlocked) {
            drop(log);
        }
        self.visible.show(last);
    }

    fn commit_lock(&self) -> Option<MutexGuard<'_, u64>> {
        (self.mistake != Some(AsksUnlocked)).then(|| self.log.hold())
    }

    /// Like `Health::close` and `Health::watch`.
    fn end(&self) {
        match self.mistake {
            Some(EndNotifiesNobody) => *self.has_ended.hold() = true,
            Some(EndNotifiesEarly) => {
                self.visible.wake();
                *self.has_ended.hold() = true;
            }
            _ => {
                *self.has_ended.hold() = true;
                self.visible.wake();
            }
        }
    }

    /// Like `Changes::wait` and what reads then. Says how far it has come.
    fn follow(&self, come: &mpsc::Sender<u64>) {
        let mut reached = 0;
        loop {
            let seen = self.visible.seqno();
            assert!(seen >= reached);
            if seen > reached {
                reached = seen;
                let _nobody_asks = come.send(reached);
                continue;
            }
            let had_ended = *self.has_ended.hold();
            let turn = {
                let _commits = self.commit_lock();
                self.visible.expect_after(if self.mistake == Some(LooksOnce) { u64::MAX } else { seen })
            };
            let Some(turn) = turn else { continue };
            let has_ended = if self.mistake == Some(LooksBeforeTurn) { had_ended } else { *self.has_ended.hold() };
            if has_ended {
                return;
            }
            assert!(!self.visible.sleep(turn, Duration::MAX), "no time passes");
        }
    }
}

fn run(mistake: Option<Mistake>) {
    let model =
        Arc::new(Model { mistake, log: Mutex::new(0), visible: LastVisible::new(0), has_ended: Mutex::new(false) });
    let last = WRITERS as u64 * COMMITS;
    let feeds: Vec<_> = (0..FEEDS)
        .map(|_| {
            let (model, (come, came)) = (Arc::clone(&model), mpsc::channel());
            (thread::spawn(move || model.follow(&come)), came)
        })
        .collect();
    let writers: Vec<_> = (0..WRITERS)
        .map(|_| {
            let model = Arc::clone(&model);
            thread::spawn(move || {
                for _ in 0..COMMITS {
                    (0..thread_rng().gen_range(0..4)).for_each(|_| thread::yield_now());
                    model.commit();
                }
            })
        })
        .collect();
    // Sometimes the end comes early. Otherwise it must not help a feed that a commit has left asleep.
    let comes_early = thread_rng().gen_range(0..3) == 0;
    if comes_early {
        model.end();
    }
    writers.into_iter().for_each(|writer| writer.join().unwrap());
    if !comes_early {
        for (_, came) in &feeds {
            while came.recv().unwrap() < last {}
        }
        model.end();
    }
    feeds.into_iter().for_each(|(feed, _)| feed.join().unwrap());
}

#[test]
fn feeds_see_every_commit_under_random_schedules() {
    schedules::at_random(|| run(None));
}

#[test]
fn feeds_see_every_commit_under_schedules_of_few_preemptions() {
    schedules::with_few_preemptions(|| run(None));
}

#[test]
fn every_mistake_of_feeds_is_noticed() {
    schedules::notices(&MISTAKES, run);
}
