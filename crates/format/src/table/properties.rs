//! The properties of a table, so that it can be verified and salvaged without the manifest.
//!
//! ```text
//! properties  entries │ tombstones │ range tombstones │ smallest seqno │ largest seqno │ blocks │ largest block │
//!             restart interval │ filter bits per key │ unbounded u8 │ smallest key │ largest key │
//!             [ entries that expire │ first instant │ last instant ]
//! ```
//!
//! Numbers are varints; a key is a length and bytes. The file's id is in its footer, and its length is the file size.

use bifold_contract::{Corruption, Expiring, FileId, TableMeta, expiry::INSTANT_MAX};

use crate::{
    block::sealed::BLOCK_BYTES_MAX,
    bytes::{Input, put_slice, put_varint},
    filter::HASH_BITS,
};

/// No table has so many entries or blocks, and sums over tables do not overflow.
const COUNT_MAX: u64 = 1 << 48;

/// The properties of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Properties {
    /// The same metadata as in the manifest.
    pub meta: TableMeta,
    /// Data blocks in it.
    pub blocks: u64,
    /// Bytes of the largest data block, uncompressed: readers allocate no more than this for a block.
    pub block_bytes_max: usize,
    /// In each block, every entry at this interval has its whole key.
    pub restart_interval: usize,
    /// Size of the filter. 0: there is none. [`HASH_BITS`]: the hashes of the keys are stored in its place.
    pub filter_bits_per_key: u32,
}

impl Properties {
    /// Whether the table has the hashes of its keys in place of a filter.
    #[must_use]
    pub fn has_key_hashes(&self) -> bool {
        self.filter_bits_per_key == HASH_BITS
    }

    /// Appends them to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let meta = &self.meta;
        let numbers = [
            meta.entries,
            meta.tombstones,
            meta.range_tombstones,
            meta.min_seqno,
            meta.max_seqno,
            self.blocks,
            self.block_bytes_max as u64,
            self.restart_interval as u64,
            u64::from(self.filter_bits_per_key),
        ];
        numbers.iter().for_each(|&number| put_varint(out, number));
        out.push(u8::from(meta.unbounded));
        put_slice(out, &meta.smallest);
        put_slice(out, &meta.largest);
        put_expiring(out, meta.expiring);
    }

    /// Decodes the properties of the table `id`, whose file has `bytes` bytes.
    ///
    /// # Errors
    /// If they are damaged.
    pub fn decode(content: &[u8], id: FileId, bytes: u64) -> Result<Self, Corruption> {
        let mut input = Input::new(content, "table properties");
        let entries = input.varint_up_to(COUNT_MAX)?;
        let (tombstones, range_tombstones) = (input.varint_up_to(entries)?, input.varint_up_to(COUNT_MAX)?);
        let (min_seqno, max_seqno, blocks) = (input.varint()?, input.varint()?, input.varint_up_to(COUNT_MAX)?);
        let at = input;
        let block_bytes_max = input.varint32()? as usize;
        if block_bytes_max > BLOCK_BYTES_MAX {
            return Err(at.damage(format!("blocks of at most {BLOCK_BYTES_MAX} bytes"), block_bytes_max.to_string()));
        }
        let (restart_interval, filter_bits_per_key) = (input.varint32()? as usize, input.varint32()?);
        let at = input;
        let unbounded = match input.u8()? {
            0 => false,
            1 => true,
            other => return Err(at.damage("0 or 1", other.to_string())),
        };
        let at = input;
        let (smallest, largest): (Box<[u8]>, Box<[u8]>) = (input.slice()?.into(), input.slice()?.into());
        if smallest > largest {
            return Err(at.damage("a smallest and a largest key in order", "two that are not"));
        }
        let at = input;
        let expiring = expiring(&mut input)?;
        if expiring.entries > entries {
            return Err(at.damage(format!("at most {entries} entries that expire"), expiring.entries.to_string()));
        }
        input.end()?;
        let meta = TableMeta {
            id,
            bytes,
            entries,
            tombstones,
            range_tombstones,
            smallest,
            largest,
            unbounded,
            min_seqno,
            max_seqno,
            expiring,
        };
        Ok(Self { meta, blocks, block_bytes_max, restart_interval, filter_bits_per_key })
    }
}

/// Appends what a table has of entries that expire, at the end of its description: nothing if it has none.
pub(crate) fn put_expiring(out: &mut Vec<u8>, expiring: Expiring) {
    if expiring.entries > 0 {
        [expiring.entries, expiring.first, expiring.last].into_iter().for_each(|number| put_varint(out, number));
    }
}

/// Decodes what [`put_expiring`] wrote, at the end of a description.
///
/// # Errors
/// If it is damaged.
pub(crate) fn expiring(input: &mut Input<'_>) -> Result<Expiring, Corruption> {
    if input.is_empty() {
        return Ok(Expiring::default());
    }
    let at = *input;
    let expiring = Expiring { entries: input.varint()?, first: input.varint()?, last: input.varint()? };
    let is_possible = expiring.entries > 0 && expiring.first <= expiring.last && expiring.last <= INSTANT_MAX;
    let expected = "entries that expire, and two instants in order";
    if is_possible { Ok(expiring) } else { Err(at.damage(expected, format!("{expiring:?}"))) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn some() -> Properties {
        let meta = TableMeta {
            id: 7,
            bytes: 5000,
            entries: 300,
            tombstones: 2,
            range_tombstones: 1,
            smallest: b"a"[..].into(),
            largest: b"zebra"[..].into(),
            unbounded: true,
            min_seqno: 40,
            max_seqno: 900_000,
            expiring: Expiring::default(),
        };
        Properties { meta, blocks: 2, block_bytes_max: 4100, restart_interval: 16, filter_bits_per_key: 10 }
    }

    #[test]
    fn properties_come_back() {
        let mut out = Vec::new();
        some().encode(&mut out);
        assert_eq!(Properties::decode(&out, 7, 5000), Ok(some()));
        for len in 0..out.len() {
            assert!(Properties::decode(&out[..len], 7, 5000).is_err(), "truncated to {len} bytes");
        }
        let plain_bytes = out.len();
        let mut expiring = some();
        expiring.meta.expiring = Expiring { entries: 3, first: 1_764_000_000_000, last: 1_764_000_060_000 };
        out.clear();
        expiring.encode(&mut out);
        assert_eq!(Properties::decode(&out, 7, 5000), Ok(expiring));
        for len in plain_bytes + 1..out.len() {
            assert!(Properties::decode(&out[..len], 7, 5000).is_err(), "truncated to {len} bytes");
        }
    }

    #[test]
    fn what_no_table_has_is_refused() {
        let meta = || some().meta;
        let is_refused = |meta: TableMeta| {
            let mut out = Vec::new();
            Properties { meta, ..some() }.encode(&mut out);
            Properties::decode(&out, 7, 5000).is_err()
        };
        assert!(!is_refused(meta()));
        assert!(is_refused(TableMeta { largest: b"A"[..].into(), ..meta() }), "keys in this order");
        assert!(is_refused(TableMeta { entries: u64::MAX / 2, ..meta() }), "so many entries");
        assert!(is_refused(TableMeta { tombstones: 301, ..meta() }), "more tombstones than entries");
        let expiring = Expiring { entries: 301, first: 1, last: 2 };
        assert!(is_refused(TableMeta { expiring, ..meta() }), "more that expire than entries");
    }

    #[test]
    fn an_impossible_block_size_is_refused() {
        let mut out = Vec::new();
        Properties { block_bytes_max: BLOCK_BYTES_MAX + 1, ..some() }.encode(&mut out);
        assert!(Properties::decode(&out, 7, 5000).is_err());
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_decoder_panic(bytes: Vec<u8>) {
            let _any_answer = Properties::decode(&bytes, 7, 5000);
        }
    }
}
