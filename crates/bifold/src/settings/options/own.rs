//! Names of placements that are not Bifold's own.

use std::fmt;

use bifold_contract::{Error, Result};
use serde::{Deserialize, Serialize};

/// Bytes of the longest name.
const NAME_MAX: usize = 32;

/// The name of a placement that another author wrote: 1 to 32 ASCII letters, digits, `_` and `-`.
///
/// ```
/// use bifold::options::PlacementName;
///
/// assert_eq!(PlacementName::new("append_only")?.as_str(), "append_only");
/// assert!(PlacementName::new("append only").is_err());
/// # Ok::<(), bifold::Error>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PlacementName {
    /// Zeros follow the name.
    bytes: [u8; NAME_MAX],
}

impl PlacementName {
    /// The name `name`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] when it is empty, too long, or has other characters.
    pub fn new(name: &str) -> Result<Self> {
        let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
        if name.is_empty() || name.len() > NAME_MAX || !name.bytes().all(is_allowed) {
            let reason = format!("`{name}` is not 1 to {NAME_MAX} ASCII letters, digits, `_` and `-`");
            return Err(Error::invalid("name of a placement", reason));
        }
        let mut bytes = [0; NAME_MAX];
        bytes[..name.len()].copy_from_slice(name.as_bytes());
        Ok(Self { bytes })
    }

    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        let len = self.bytes.iter().position(|&byte| byte == 0).unwrap_or(NAME_MAX);
        std::str::from_utf8(&self.bytes[..len]).unwrap_or_default()
    }
}

impl fmt::Debug for PlacementName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

impl fmt::Display for PlacementName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl TryFrom<String> for PlacementName {
    type Error = Error;

    fn try_from(name: String) -> Result<Self> {
        Self::new(&name)
    }
}

impl From<PlacementName> for String {
    fn from(name: PlacementName) -> Self {
        name.as_str().to_owned()
    }
}
