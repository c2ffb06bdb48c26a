//! Keys, each with some bytes or without any, one behind the other in one buffer.

/// The buffer of batches and of changes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Packed {
    bytes: Vec<u8>,
    /// The end of each key, and of what it has; `None` if it has nothing.
    ends: Vec<(usize, Option<usize>)>,
}

impl Packed {
    /// Adds a key with what `write` appends; `None`: it has nothing.
    pub fn add<W: FnOnce(&mut Vec<u8>)>(&mut self, key: &[u8], write: Option<W>) {
        self.bytes.extend_from_slice(key);
        let key_end = self.bytes.len();
        let end = write.map(|write| {
            write(&mut self.bytes);
            self.bytes.len()
        });
        self.ends.push((key_end, end));
    }

    /// All of them, in the order in which they were added.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], Option<&[u8]>)> {
        let mut start = 0;
        self.ends.iter().map(move |&(key_end, end)| {
            let one = (&self.bytes[start..key_end], end.map(|end| &self.bytes[key_end..end]));
            start = end.unwrap_or(key_end);
            one
        })
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Bytes of all keys and of what they have.
    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_added_comes_out_in_order() {
        let mut packed = Packed::default();
        let nothing = None::<fn(&mut Vec<u8>)>;
        packed.add(b"a", Some(|bytes: &mut Vec<u8>| bytes.extend_from_slice(b"first")));
        packed.add(b"b", nothing);
        packed.add(b"", Some(|_: &mut Vec<u8>| ()));
        packed.add(b"a", nothing);
        let all: Vec<_> = packed.iter().collect();
        assert_eq!(all, [(&b"a"[..], Some(&b"first"[..])), (b"b", None), (b"", Some(b"")), (b"a", None)]);
        assert_eq!((packed.len(), packed.bytes()), (4, 8));
    }
}
