//! Where somebody must look: in all keyspaces, or in a few. What changes in one is so looked at without a look at the others.

use std::collections::BTreeSet;

use bifold_contract::KeyspaceId;

/// Some keyspaces. All, as long as nobody has looked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Places {
    /// Whichever there are.
    #[default]
    All,
    /// These, which may have been dropped meanwhile.
    In(BTreeSet<KeyspaceId>),
}

impl Places {
    /// These too.
    pub fn add(&mut self, keyspaces: impl IntoIterator<Item = KeyspaceId>) {
        if let Self::In(some) = self {
            some.extend(keyspaces);
        }
    }

    /// All.
    pub fn add_all(&mut self) {
        *self = Self::All;
    }

    /// Takes them all out, for the caller to look there.
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
