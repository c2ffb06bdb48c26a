//! A foreign index in memory that loses what was not synced, as an engine without a log may: any single changes.

use std::{
    collections::BTreeMap,
    ops::Bound,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use bifold_over::{
    Error, ForeignIndex, ForeignView, Result,
    index::{Changes, Entries},
};

use crate::random::Random;

type Map = BTreeMap<Vec<u8>, Vec<u8>>;
type Hook = Arc<dyn Fn(&'static str) + Send + Sync>;

#[derive(Clone, Default)]
pub struct MemoryIndex(Arc<Mutex<State>>);

#[derive(Clone, Default)]
struct State {
    now: Arc<Map>,
    synced: Map,
    unsynced: Vec<(Vec<u8>, Option<Vec<u8>>)>,
    hook: Option<Hook>,
    get_hook: Option<Hook>,
    calls: u64,
    fails_at: Option<u64>,
}

/// What a power loss leaves of changes that were not synced.
#[derive(Clone, Copy, Debug)]
pub enum Kept {
    All,
    Nothing,
    Prefix(u64),
    Any(u64),
}

impl Kept {
    pub const fn of(nth: u64, seed: u64) -> Self {
        match nth % 4 {
            0 => Self::All,
            1 => Self::Nothing,
            2 => Self::Prefix(seed),
            _ => Self::Any(seed),
        }
    }
}

impl MemoryIndex {
    fn hold(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls `hook` after each write and each sync.
    pub fn set_hook(&self, hook: Option<Hook>) {
        self.hold().hook = hook;
    }

    /// Calls `hook` before each get.
    pub fn set_get_hook(&self, hook: Option<Hook>) {
        self.hold().get_hook = hook;
    }

    /// The call with this number fails, and every later one. A failed write has made some of its changes.
    pub fn fail_at(&self, call: Option<u64>) {
        self.hold().fails_at = call;
    }

    pub fn calls(&self) -> u64 {
        self.hold().calls
    }

    pub fn keys(&self) -> Vec<Vec<u8>> {
        self.hold().now.keys().cloned().collect()
    }

    pub fn put_strange(&self, key: &[u8], value: &[u8]) {
        Arc::make_mut(&mut self.hold().now).insert(key.to_vec(), value.to_vec());
    }

    /// An independent index as it might be found after losing power now.
    pub fn power_loss(&self, kept: Kept) -> Self {
        let state = self.hold();
        let mut now = state.synced.clone();
        let (mut random, all) = match kept {
            Kept::All | Kept::Nothing => (Random::new(0), state.unsynced.len()),
            Kept::Prefix(seed) | Kept::Any(seed) => (Random::new(seed), state.unsynced.len()),
        };
        let (cut, of_8) = (random.below(all as u64 + 1) as usize, 1 + random.below(7));
        for (at, change) in state.unsynced.iter().enumerate() {
            let is_kept = match kept {
                Kept::All => true,
                Kept::Nothing => false,
                Kept::Prefix(_) => at < cut,
                Kept::Any(_) => random.below(8) < of_8,
            };
            if is_kept {
                apply(&mut now, change);
            }
        }
        Self::durable(now)
    }

    /// An independent index in the same state, as a killed process leaves it.
    pub fn fork(&self) -> Self {
        let State { now, synced, unsynced, .. } = &*self.hold();
        let (now, synced, unsynced) = (Arc::clone(now), synced.clone(), unsynced.clone());
        Self(Arc::new(Mutex::new(State { now, synced, unsynced, ..State::default() })))
    }

    fn durable(now: Map) -> Self {
        Self(Arc::new(Mutex::new(State { synced: now.clone(), now: Arc::new(now), ..State::default() })))
    }

    fn call(&self, name: &'static str, act: impl FnOnce(&mut State, bool)) -> Result<()> {
        let (hook, fails) = {
            let state = &mut *self.hold();
            state.calls += 1;
            let fails = state.fails_at.is_some_and(|call| state.calls >= call);
            act(state, fails);
            (state.hook.clone(), fails)
        };
        if let Some(hook) = hook {
            hook(name);
        }
        if fails { Err(Error::io(name, "index", std::io::Error::other("planned"))) } else { Ok(()) }
    }
}

fn apply(map: &mut Map, (key, value): &(Vec<u8>, Option<Vec<u8>>)) {
    match value {
        Some(value) => drop(map.insert(key.clone(), value.clone())),
        None => drop(map.remove(key)),
    }
}

pub struct View(Arc<Map>);

impl ForeignIndex for MemoryIndex {
    type View<'a> = View;

    fn name(&self) -> &'static str {
        "in memory"
    }

    fn get(&self, key: &[u8], see: &mut dyn FnMut(&[u8])) -> Result<bool> {
        let (hook, now) = {
            let state = self.hold();
            (state.get_hook.clone(), Arc::clone(&state.now))
        };
        if let Some(hook) = hook {
            hook("get");
        }
        View(now).get(key, see)
    }

    fn write(&self, changes: &Changes) -> Result<()> {
        self.call("write to the index", |state, fails| {
            let some = if fails { changes.len() / 2 } else { changes.len() };
            for (key, value) in changes.iter().take(some) {
                let change = (key.to_vec(), value.map(<[u8]>::to_vec));
                apply(Arc::make_mut(&mut state.now), &change);
                state.unsynced.push(change);
            }
        })
    }

    fn snapshot(&self) -> Result<View> {
        Ok(View(Arc::clone(&self.hold().now)))
    }

    fn sync(&self) -> Result<()> {
        self.call("sync the index", |state, fails| {
            if !fails {
                state.synced = Map::clone(&state.now);
                state.unsynced.clear();
            }
        })
    }
}

impl ForeignView for View {
    fn get(&self, key: &[u8], see: &mut dyn FnMut(&[u8])) -> Result<bool> {
        Ok(self.0.get(key).map(|value| see(value)).is_some())
    }

    fn scan<'s>(&'s self, start: Bound<&[u8]>, end: Bound<&[u8]>) -> Result<Entries<'s>> {
        let range = self.0.range::<[u8], _>((start, end));
        Ok(Box::new(range.map(|(key, value)| Ok((key.clone(), value.clone())))))
    }
}
