//! An index in parts, for tables whose index is long: a reader that has no memory for all of it reads one part.
//!
//! ```text
//! index section   sealed part │ sealed part │ … │ sealed top │ bytes of the sealed top u32
//! part            where its first block begins u64 │ index of its blocks
//! top             index of the parts: the fence of a part is that of its last block, its end is where the part ends
//!                 in the section
//! ```
//!
//! Parts and top have the form of an [`Index`]. Together the parts have the blocks of one index, in its order, so a
//! reader with memory to spare makes the whole index of them ([`whole`]).

use bifold_contract::Corruption;

use super::index::{Index, IndexBuilder};

/// A part ends when it has so many blocks, or
const PART_BLOCKS: usize = 64;

/// about so many bytes.
const PART_BYTES: usize = 4 << 10;

/// Bytes of the number at the end of the section.
pub const TRAILER_BYTES: usize = 4;

/// More than a writer puts into an index.
const BYTES_MAX: usize = u32::MAX as usize / 2 + (1 << 20);

/// Bytes before the index in a part.
const FIRST_BYTES: usize = 8;

/// Whether an index is stored in parts: it would be more than one.
#[must_use]
pub fn are_due(whole: &IndexBuilder) -> bool {
    whole.blocks() > PART_BLOCKS || whole.blocks() > 1 && whole.bytes_max() > 2 * PART_BYTES
}

/// Divides the blocks of `whole` into parts. For each, `append` gets its content and appends it to the section; it
/// returns where the part ends there. Returns the content of the top.
///
/// # Panics
/// As [`IndexBuilder::finish`].
pub fn split(whole: &IndexBuilder, mut append: impl FnMut(&[u8]) -> u64) -> Vec<u8> {
    let (mut top, mut part, mut content) = (IndexBuilder::default(), IndexBuilder::default(), Vec::new());
    let mut first = 0u64;
    for (at, (fence, end)) in whole.entries().enumerate() {
        part.add(fence, end);
        let is_full = part.blocks() == PART_BLOCKS || part.bytes_max() >= PART_BYTES;
        if !is_full && at + 1 < whole.blocks() {
            continue;
        }
        content.clear();
        content.extend_from_slice(&first.to_le_bytes());
        std::mem::take(&mut part).finish(&mut content);
        top.add(fence, append(&content));
        first = end;
    }
    content.clear();
    top.finish(&mut content);
    content
}

/// A part as an index of its blocks.
///
/// # Errors
/// If the bytes are no part. With any number of blocks, the whole index would be any number of times longer: it has
/// each fence as a whole, and a part has what they share only once.
#[inline]
pub fn parse(content: &[u8]) -> Result<Index<'_>, Corruption> {
    let damage = |expected: String, found: String| Corruption::new(0, "part of a table index", expected, found);
    let Some((first, index)) = content.split_first_chunk::<FIRST_BYTES>() else {
        return Err(damage("the beginning of its first block".into(), format!("{} bytes", content.len())));
    };
    let index = Index::parse(index)?;
    if index.blocks() > PART_BLOCKS {
        return Err(damage(format!("at most {PART_BLOCKS} blocks"), index.blocks().to_string()));
    }
    Ok(index.beginning_at(u64::from_le_bytes(*first)))
}

/// The whole index of these parts.
///
/// # Errors
/// If a part is damaged, or does not begin where the one before ends.
pub fn whole<C: AsRef<[u8]>>(parts: impl IntoIterator<Item = C>) -> Result<Vec<u8>, Corruption> {
    let (mut builder, mut end, mut last) = (IndexBuilder::default(), 0, Vec::new());
    for content in parts {
        let part = parse(content.as_ref())?;
        for block in 0..part.blocks() {
            let (fence, place) = (part.fence(block), part.place(block));
            let follows = |fence: &Vec<u8>| *fence >= last && builder.bytes_max() + fence.len() < BYTES_MAX;
            let (Some(fence), Some(place)) = (fence.filter(follows), place.filter(|place| place.start == end)) else {
                let expected = format!("a fence that follows the one before, of a block that begins at {end}");
                return Err(Corruption::new(0, "table index", expected, format!("block {block} of a part: {place:?}")));
            };
            builder.add(&fence, place.end);
            (end, last) = (place.end, fence);
        }
    }
    let mut out = Vec::new();
    if builder.blocks() > 0 {
        builder.finish(&mut out);
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_part_with_more_blocks_than_a_writer_puts_there_is_damage() {
        for (blocks, is_part) in [(PART_BLOCKS as u64, true), (PART_BLOCKS as u64 + 1, false)] {
            let mut builder = IndexBuilder::default();
            (1..=blocks).for_each(|at| builder.add(&at.to_be_bytes(), at));
            let mut content = vec![0; FIRST_BYTES];
            builder.finish(&mut content);
            assert_eq!((parse(&content).is_ok(), whole([content]).is_ok()), (is_part, is_part), "{blocks} blocks");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        #[test]
        fn parts_have_the_blocks_of_the_whole_and_the_top_finds_them(
            mut fences in prop::collection::btree_set(prop::collection::vec(0u8..4, 1..60), 1..2000),
            probe in prop::collection::vec(0u8..4, 0..20),
        ) {
            fences.insert(vec![9]);
            let mut builder = IndexBuilder::default();
            (1u64..).zip(&fences).for_each(|(at, fence)| builder.add(fence, at * 1000));
            let (mut parts, mut end) = (Vec::new(), 0);
            let top = split(&builder, |content| {
                parts.push(content.to_vec());
                end += content.len() as u64 + 9;
                end
            });
            let mut expected = Vec::new();
            builder.finish(&mut expected);
            prop_assert_eq!(whole(&parts).unwrap(), expected.clone());
            let (all, top) = (Index::parse(&expected).unwrap(), Index::parse(&top).unwrap());
            prop_assert_eq!(top.blocks(), parts.len());
            for key in fences.iter().step_by(17).chain([&probe]) {
                let part = top.find(key);
                if part == parts.len() {
                    prop_assert_eq!(all.find(key), all.blocks());
                    continue;
                }
                let index = parse(&parts[part]).unwrap();
                let found = index.find(key);
                prop_assert!(found < index.blocks());
                prop_assert_eq!(index.place(found), all.place(all.find(key)));
            }
        }

        #[test]
        fn no_bytes_make_it_panic(bytes: Vec<u8>, more: Vec<u8>) {
            let _any_answer = (parse(&bytes).is_ok(), whole([bytes, more]).is_ok());
        }
    }
}
