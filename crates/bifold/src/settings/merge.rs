//! Merge operators: how an operand and what is older become one value. Page: `docs/merge.md`.

use std::{
    collections::BTreeMap,
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use bifold_contract::{Error, MAX_VALUE_LEN, Result};
use serde::{Deserialize, Serialize};

use super::options::{KeyspaceOptions, PlacementName};

/// A user's function. See [`MergeOperator::new`].
pub type Combine = dyn Fn(&[u8], Option<&[u8]>, &[u8]) -> std::result::Result<Vec<u8>, String> + Send + Sync;

/// Bytes of a number of [`MergeOperator::add_i64`].
const NUMBER_BYTES: usize = 8;

/// Bytes of a length in a set of [`MergeOperator::set_union`].
const LENGTH_BYTES: usize = 4;

const ADD_I64: &str = "add_i64";
const APPEND: &str = "append";
const SET_UNION: &str = "set_union";

/// How [`Keyspace::merge`](crate::Keyspace::merge) changes a value: a name, which the database stores, and an
/// **associative** function. Values and operands are of one kind: an operand for a key without a value makes that
/// value.
#[derive(Clone, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct MergeOperator {
    name: PlacementName,
    /// `None`: it was only named, and must be found in [`MergeOperators`].
    combine: Option<Arc<Combine>>,
}

impl MergeOperator {
    /// A sum: values and operands are an `i64` in 8 bytes, little-endian. It wraps around at the ends.
    #[must_use]
    pub fn add_i64() -> Self {
        Self::shipped(ADD_I64, add_i64)
    }

    /// The operand's bytes follow the value's.
    #[must_use]
    pub fn append() -> Self {
        Self::shipped(APPEND, |_, older, newer| Ok([older.unwrap_or_default(), newer].concat()))
    }

    /// The union of two sets. A set is a sequence of members, each a length in 4 bytes, little-endian, and so many
    /// bytes. They may come in any order and more than once; a result has each once, ascending.
    #[must_use]
    pub fn set_union() -> Self {
        Self::shipped(SET_UNION, set_union)
    }

    /// An operator called `name`, by the rules of [`PlacementName`]. `combine` is called with a key, what is older
    /// (`None`: the key has no value) and an operand, and returns the value, or the operand that stands for both. It
    /// must be associative and must always give the same answer, now and by later programs: operands are combined in
    /// any grouping, but never in another order. Several threads call it at once, also in the middle of a commit, so it
    /// must not call the database. An error or a panic changes nothing, nor does a result of more than 1 GiB: a read
    /// returns [`Error::Merge`], and a job leaves the operands as they are.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when the name is not allowed or is that of a shipped operator.
    pub fn new(
        name: &str,
        combine: impl Fn(&[u8], Option<&[u8]>, &[u8]) -> std::result::Result<Vec<u8>, String> + Send + Sync + 'static,
    ) -> Result<Self> {
        if shipped(name).is_some() {
            return Err(Error::invalid("merge operator", format!("`{name}` is one of Bifold's own")));
        }
        Ok(Self { name: PlacementName::new(name)?, combine: Some(Arc::new(combine)) })
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.name.as_str()
    }

    fn shipped(
        name: &str,
        combine: impl Fn(&[u8], Option<&[u8]>, &[u8]) -> std::result::Result<Vec<u8>, String> + Send + Sync + 'static,
    ) -> Self {
        let name = PlacementName::new(name).unwrap_or_else(|_| unreachable!("a name of ours is allowed"));
        Self { name, combine: Some(Arc::new(combine)) }
    }

    /// Combines two, or says in words why not.
    pub(crate) fn combine(
        &self,
        key: &[u8],
        older: Option<&[u8]>,
        newer: &[u8],
    ) -> std::result::Result<Vec<u8>, String> {
        let Some(combine) = &self.combine else {
            return Err("this program does not know the operator (`Options::merge_operators`)".to_owned());
        };
        match catch_unwind(AssertUnwindSafe(|| combine(key, older, newer))) {
            Ok(Ok(value)) if value.len() > MAX_VALUE_LEN => {
                Err(format!("the result has {} bytes, a value has at most {MAX_VALUE_LEN}", value.len()))
            }
            Ok(answer) => answer,
            Err(_) => Err("it panicked".to_owned()),
        }
    }
}

fn shipped(name: &str) -> Option<MergeOperator> {
    match name {
        ADD_I64 => Some(MergeOperator::add_i64()),
        APPEND => Some(MergeOperator::append()),
        SET_UNION => Some(MergeOperator::set_union()),
        _ => None,
    }
}

fn add_i64(_key: &[u8], older: Option<&[u8]>, newer: &[u8]) -> std::result::Result<Vec<u8>, String> {
    let number = |what: &str, bytes: &[u8]| match <[u8; NUMBER_BYTES]>::try_from(bytes) {
        Ok(bytes) => Ok(i64::from_le_bytes(bytes)),
        Err(_) => Err(format!("the {what} has {} bytes, a number has {NUMBER_BYTES}", bytes.len())),
    };
    let older = older.map_or(Ok(0), |older| number("value", older))?;
    Ok(older.wrapping_add(number("operand", newer)?).to_le_bytes().to_vec())
}

fn set_union(_key: &[u8], older: Option<&[u8]>, newer: &[u8]) -> std::result::Result<Vec<u8>, String> {
    let mut members = std::collections::BTreeSet::new();
    for (what, mut rest) in [("value", older.unwrap_or_default()), ("operand", newer)] {
        while !rest.is_empty() {
            let cut = || format!("a member at the end of the {what} is cut off");
            let (length, behind) = rest.split_first_chunk::<LENGTH_BYTES>().ok_or_else(cut)?;
            let length = u32::from_le_bytes(*length) as usize;
            let member = behind.get(..length).ok_or_else(cut)?;
            members.insert(member);
            rest = &behind[length..];
        }
    }
    let mut union = Vec::new();
    for member in members {
        // It came from a length of 4 bytes.
        union.extend_from_slice(&(member.len() as u32).to_le_bytes());
        union.extend_from_slice(member);
    }
    Ok(union)
}

impl TryFrom<String> for MergeOperator {
    type Error = Error;

    fn try_from(name: String) -> Result<Self> {
        match shipped(&name) {
            Some(operator) => Ok(operator),
            None => Ok(Self { name: PlacementName::new(&name)?, combine: None }),
        }
    }
}

impl From<MergeOperator> for String {
    fn from(operator: MergeOperator) -> Self {
        operator.name().to_owned()
    }
}

/// Two of one name are one operator to the database.
impl PartialEq for MergeOperator {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl fmt::Debug for MergeOperator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("MergeOperator").field(&self.name()).finish()
    }
}

/// Merge operators of a user, by name, for [`Options::merge_operators`](crate::Options::merge_operators): jobs combine
/// operands before anybody opens the keyspace. Cheap to clone.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MergeOperators {
    by_name: Arc<BTreeMap<PlacementName, MergeOperator>>,
    lets_unknown_be: bool,
}

impl MergeOperators {
    /// The same with one more.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when there is one of that name.
    pub fn with(self, operator: MergeOperator) -> Result<Self> {
        let mut by_name = (*self.by_name).clone();
        let name = operator.name;
        if by_name.insert(name, operator).is_some() {
            return Err(Error::invalid("merge operator", format!("`{name}` is registered twice")));
        }
        Ok(Self { by_name: Arc::new(by_name), ..self })
    }

    /// The same; and a database with an operator that is none of them opens, too. What has operands of such a one
    /// cannot be read ([`Error::Merge`]), and jobs leave its operands as they are. This is for programs that look after
    /// the databases of others.
    #[must_use]
    pub fn or_unknown(self) -> Self {
        Self { lets_unknown_be: true, ..self }
    }

    /// An operator that may only be named, with its function.
    pub(crate) fn find(&self, named: &MergeOperator) -> Option<MergeOperator> {
        shipped(named.name()).or_else(|| self.by_name.get(&named.name).cloned())
    }

    /// The options of a keyspace with the function of its operator.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] that names the keyspace and the operator.
    pub(crate) fn resolve(&self, keyspace: &str, options: &KeyspaceOptions) -> Result<KeyspaceOptions> {
        let Some(named) = &options.merge else { return Ok(options.clone()) };
        let unknown = || self.lets_unknown_be.then(|| MergeOperator { combine: None, ..named.clone() });
        let known = self.find(named).or_else(unknown);
        let Some(known) = known else {
            let reason = format!(
                "keyspace `{keyspace}` has the merge operator `{}`, which is none of Bifold's and is not registered: \
                 open the database with a program that has it in `Options::merge_operators`",
                named.name()
            );
            return Err(Error::invalid("option `merge_operators`", reason));
        };
        Ok(KeyspaceOptions { merge: Some(known), ..options.clone() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(members: &[&str]) -> Vec<u8> {
        members.iter().flat_map(|m| [&(m.len() as u32).to_le_bytes()[..], m.as_bytes()].concat()).collect()
    }

    #[test]
    fn shipped_operators_are_associative_and_refuse_what_they_cannot_read() {
        let number = |n: i64| n.to_le_bytes().to_vec();
        let rows = [
            (MergeOperator::add_i64(), [number(5), number(-7), number(i64::MAX)]),
            (MergeOperator::append(), [b"a".to_vec(), b"".to_vec(), b"bc".to_vec()]),
            (MergeOperator::set_union(), [set(&["b", "a", "b"]), set(&[]), set(&["", "c", "a"])]),
        ];
        for (operator, [a, b, c]) in rows {
            let combine = |older: Option<&[u8]>, newer: &[u8]| operator.combine(b"k", older, newer).unwrap();
            let left = combine(Some(&combine(Some(&combine(None, &a)), &b)), &c);
            assert_eq!(left, combine(Some(&combine(None, &a)), &combine(Some(&b), &c)), "{operator:?}");
            assert_eq!(left, combine(None, &combine(Some(&a), &combine(Some(&b), &c))), "{operator:?}");
            assert_eq!(MergeOperator::try_from(operator.name().to_owned()).unwrap(), operator);
        }
        assert!(MergeOperator::add_i64().combine(b"k", None, b"1").unwrap_err().contains("1 bytes"));
        assert!(MergeOperator::set_union().combine(b"k", None, &[9, 0, 0, 0, 1]).unwrap_err().contains("cut off"));
        assert!(MergeOperator::new("append", |_, _, _| Ok(Vec::new())).is_err());
        let panics = MergeOperator::new("panics", |_, _, _| panic!("on purpose")).unwrap();
        assert_eq!(panics.combine(b"k", None, b"1").unwrap_err(), "it panicked");
    }
}
