//! The range tombstones of a table.
//!
//! ```text
//! tombstones  count varint │ { start │ end kind u8 │ end, when the kind is 1 │ seqno varint } …
//! ```
//!
//! A key is a length and bytes. Tombstones are sorted by start, then newest first.

use bifold_contract::{Corruption, RangeTombstone};

use crate::bytes::{Input, put_slice, put_varint};

/// Appends `tombstones` to `out`.
pub fn encode(tombstones: &[RangeTombstone], out: &mut Vec<u8>) {
    put_varint(out, tombstones.len() as u64);
    for tombstone in tombstones {
        put_slice(out, &tombstone.start);
        match &tombstone.end {
            Some(end) => {
                out.push(1);
                put_slice(out, end);
            }
            None => out.push(0),
        }
        put_varint(out, tombstone.seqno);
    }
}

/// Decodes what [`encode`] wrote.
///
/// # Errors
/// If it is damaged, or a tombstone's range is empty.
pub fn decode(content: &[u8]) -> Result<Vec<RangeTombstone>, Corruption> {
    let mut input = Input::new(content, "range tombstones");
    let count = input.varint()?;
    let mut tombstones = Vec::new();
    for _ in 0..count {
        let start: Box<[u8]> = input.slice()?.into();
        let at = input;
        let end: Option<Box<[u8]>> = match input.u8()? {
            0 => None,
            1 => Some(input.slice()?.into()),
            other => return Err(at.damage("0 or 1", other.to_string())),
        };
        if end.as_ref().is_some_and(|end| *end <= start) {
            return Err(at.damage("an end after the start", "one that is not"));
        }
        tombstones.push(RangeTombstone { start, end, seqno: input.varint()? });
    }
    input.end()?;
    Ok(tombstones)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn tombstones_come_back() {
        let tombstones = vec![
            RangeTombstone { start: b"a"[..].into(), end: Some(b"b"[..].into()), seqno: 9 },
            RangeTombstone { start: b"a"[..].into(), end: None, seqno: 300 },
        ];
        let mut out = Vec::new();
        encode(&tombstones, &mut out);
        assert_eq!(decode(&out), Ok(tombstones));
        for len in 0..out.len() {
            assert!(decode(&out[..len]).is_err(), "truncated to {len} bytes");
        }
    }

    #[test]
    fn a_tombstone_with_an_empty_range_is_refused() {
        let mut out = Vec::new();
        encode(&[RangeTombstone { start: b"b"[..].into(), end: Some(b"b"[..].into()), seqno: 9 }], &mut out);
        assert!(decode(&out).is_err());
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_decoder_panic(bytes: Vec<u8>) {
            let _any_answer = decode(&bytes);
        }
    }
}
