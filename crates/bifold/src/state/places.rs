//! Which keyspaces must be looked at: all, or a few. So a change in one keyspace costs no look at the others.

use std::collections::BTreeSet;

use bifold_contract::KeyspaceId;

/// Some keyspaces. The default is all: nobody has looked yet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Places {
    /// All existing keyspaces.
    #[default]
    All,
    /// These keyspaces. Some may have been dropped meanwhile.
    In(BTreeSet<KeyspaceId>),
}

impl Places {
    /// Adds these keyspaces.
    pub fn add(&mut self, keyspaces: impl IntoIterator<Item = KeyspaceId>) {
        if let Self::In(some) = self {
            some.extend(keyspaces);
        }
    }

    /// Adds all keyspaces.
    pub fn add_all(&mut self) {
        *self = Self::All;
    }

    /// Takes out all of them, for the caller to look at.
    pub fn take(&mut self) -> Self {
        std::mem::replace(self, Self::In(BTreeSet::new()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_added_is_there_until_somebody_takes_it() {
        let mut places = Places::default();
        places.add([3]);
        assert_eq!(places.take(), Places::All, "nobody has looked yet");
        assert_eq!(places, Places::In(BTreeSet::new()));
        places.add([7]);
        places.add([3, 7]);
        assert_eq!(places.take(), Places::In(BTreeSet::from([3, 7])));
        places.add([1]);
        places.add_all();
        places.add([3]);
        assert_eq!(places.take(), Places::All);
    }
}
