//! Compression of blocks.
//!
//! ```text
//! compressed body   uncompressed length u32 │ compressed bytes
//! ```
//!
//! A block is stored as it is unless compression makes it at least an eighth smaller: a reader would pay for nothing.
//! The length is checked before memory is allocated for it: against what the reader expects and, if it is much more
//! than the compressed bytes, against the most that their structure can yield, which is known without decompressing
//! them.

use std::{cell::RefCell, iter, ops::RangeInclusive, sync::Arc};

use bifold_contract::{Corruption, planted};
use serde::{Deserialize, Serialize};
use zstd::bulk;

/// How table blocks and values are compressed. What shrinks by less than an eighth is stored as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Compression {
    /// Not at all. The default.
    #[default]
    None,
    /// LZ4 blocks: fast, modest ratio.
    Lz4,
    /// Zstandard, level 1: smaller, slower.
    Zstd,
}

/// The lowest level of Zstandard, since tables are rewritten several times.
const ZSTD_LEVEL: i32 = 1;

/// How the body of a block is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Method {
    /// As it is.
    Plain = 0,
    /// LZ4 block format.
    Lz4 = 1,
    /// One Zstandard frame.
    Zstd = 2,
}

/// Bytes of the length in front of the compressed bytes.
const LENGTH_BYTES: usize = 4;

/// Up to this ratio the length is trusted without looking at the structure of the compressed bytes.
const RATIO_BELIEVED: usize = 16;

/// The most bytes that one Zstandard block holds.
const ZSTD_BLOCK_BYTES_MAX: usize = 128 << 10;

impl Method {
    /// The method stored as `byte`, or `None` when no method has that number.
    #[must_use]
    pub fn from_byte(byte: u8) -> Option<Self> {
        match byte {
            0 => Some(Self::Plain),
            1 => Some(Self::Lz4),
            2 => Some(Self::Zstd),
            _ => None,
        }
    }
}

/// Compresses blocks or values one after the other, with reusable memory.
pub struct Compressor {
    compression: Compression,
    zstd: Option<bulk::Compressor<'static>>,
    scratch: Vec<u8>,
}

impl Compressor {
    /// A compressor for this kind of compression.
    #[must_use]
    pub fn new(compression: Compression) -> Self {
        let zstd = match compression {
            // Without a context (out of memory) blocks are stored as they are, which is always right.
            Compression::Zstd => bulk::Compressor::new(ZSTD_LEVEL).ok(),
            Compression::None | Compression::Lz4 => None,
        };
        Self { compression, zstd, scratch: Vec::new() }
    }

    /// From now on compresses in this way.
    pub fn switch_to(&mut self, compression: Compression) {
        if self.compression != compression {
            *self = Self::new(compression);
        }
    }

    /// Replaces `out[start..]` with its compressed form if that is at least an eighth shorter. Returns how it is stored
    /// now.
    ///
    /// # Panics
    /// If `start` is past the end of `out`.
    pub fn compress(&mut self, out: &mut Vec<u8>, start: usize) -> Method {
        let body = &out[start..];
        let Ok(len) = u32::try_from(body.len()) else { return Method::Plain };
        let (method, written) = match (self.compression, &mut self.zstd) {
            (Compression::Lz4, _) => {
                self.scratch.resize(lz4_flex::block::get_maximum_output_size(body.len()), 0);
                (Method::Lz4, lz4_flex::block::compress_into(body, &mut self.scratch).ok())
            }
            (Compression::Zstd, Some(zstd)) => {
                self.scratch.resize(zstd::zstd_safe::compress_bound(body.len()), 0);
                (Method::Zstd, zstd.compress_to_buffer(body, &mut self.scratch[..]).ok())
            }
            (Compression::None | Compression::Zstd, _) => (Method::Plain, None),
        };
        match written {
            Some(written) if LENGTH_BYTES + written <= body.len() - body.len() / 8 => {
                out.truncate(start);
                out.extend_from_slice(&len.to_le_bytes());
                out.extend_from_slice(&self.scratch[..written]);
                method
            }
            _ => Method::Plain,
        }
    }
}

thread_local! {
    /// A decompression context is 150 KiB and takes longer to create than a block takes to decompress.
    static ZSTD: RefCell<Option<bulk::Decompressor<'static>>> = const { RefCell::new(None) };
}

/// The uncompressed form of `body`, which may have at most `size_max` bytes.
///
/// # Errors
/// If `body` does not decompress to the length it states.
pub fn decompress(method: Method, body: &[u8], size_max: usize) -> Result<Arc<[u8]>, Corruption> {
    let damage = |expected: String, found: String| Corruption::new(0, "compressed block", expected, found);
    let Some((len, packed)) = body.split_first_chunk::<LENGTH_BYTES>().filter(|_| method != Method::Plain) else {
        return Err(damage("a length and compressed bytes".into(), format!("{} bytes", body.len())));
    };
    let len = u32::from_le_bytes(*len) as usize;
    let possible = output_max(method, packed, len);
    if len > size_max.min(possible) {
        return Err(damage(format!("at most {} bytes uncompressed", size_max.min(possible)), format!("{len} bytes")));
    }
    let mut block: Arc<[u8]> = zeroed(len);
    let written = Arc::get_mut(&mut block).and_then(|out| match method {
        Method::Plain => None,
        Method::Lz4 => lz4_flex::block::decompress_into(packed, out).ok(),
        Method::Zstd => decompress_zstd(packed, out),
    });
    match written {
        Some(written) if written == len => Ok(block),
        Some(written) => Err(damage(format!("{len} bytes uncompressed"), format!("{written} bytes"))),
        None => Err(damage(format!("{len} bytes uncompressed"), "bytes that do not decompress".into())),
    }
}

/// How long a body is that was compressed by `method` and begins with `bytes`, in bytes: its structure says where it
/// ends. `None` if none can begin there whose uncompressed length, in bytes, is among `sizes`.
#[must_use]
pub fn packed_len(method: Method, bytes: &[u8], sizes: RangeInclusive<usize>) -> Option<usize> {
    let (claimed, packed) = bytes.split_first_chunk::<LENGTH_BYTES>()?;
    let claimed = u32::from_le_bytes(*claimed) as usize;
    let len = match method {
        _ if !sizes.contains(&claimed) => None,
        Method::Plain => None,
        Method::Lz4 => lz4_len(packed, claimed),
        Method::Zstd => zstd_frame(packed).map(|(_, len)| len),
    };
    Some(LENGTH_BYTES + len?)
}

/// An upper bound on the decompressed size of `packed`. Returns `wanted` without a closer look if that is plausible.
fn output_max(method: Method, packed: &[u8], wanted: usize) -> usize {
    match method {
        _ if planted!("believe_lengths") => wanted,
        _ if wanted / RATIO_BELIEVED <= packed.len() => wanted,
        Method::Plain => 0,
        Method::Lz4 => lz4_output_max(packed),
        Method::Zstd => zstd_frame(packed).map_or(0, |(output, _)| output),
    }
}

/// The output size of an LZ4 block: the lengths of literals and matches of its sequences. (LZ4 block format,
/// "Sequences".)
fn lz4_output_max(packed: &[u8]) -> usize {
    let mut rest = packed.iter().copied();
    let mut output = 0usize;
    while let Some(token) = rest.next() {
        let length = |first: u8, rest: &mut dyn Iterator<Item = u8>| {
            let mut length = usize::from(first);
            let mut last = if first == 15 { u8::MAX } else { 0 };
            while last == u8::MAX {
                last = rest.next().unwrap_or(0);
                length += usize::from(last);
            }
            length
        };
        let literals = length(token >> 4, &mut rest);
        output += literals;
        if literals > 0 && rest.nth(literals - 1).is_none() || rest.nth(1).is_none() {
            return output;
        }
        output += length(token & 15, &mut rest) + 4;
    }
    output
}

/// How many of `bytes` are an LZ4 block that yields `output` bytes. It ends with literals, so with those that complete
/// the output. `None` if its sequences make no sense or yield another number.
fn lz4_len(bytes: &[u8], output: usize) -> Option<usize> {
    let (mut rest, mut yielded) = (bytes, 0usize);
    loop {
        let (&token, behind) = rest.split_first()?;
        let (literals, behind) = lz4_length(token >> 4, behind)?;
        let behind = behind.get(literals..)?;
        yielded += literals;
        if yielded >= output {
            return (yielded == output).then(|| bytes.len() - behind.len());
        }
        let (distance, behind) = behind.split_first_chunk::<2>()?;
        // A match is of bytes that there are.
        if !(1..=yielded).contains(&usize::from(u16::from_le_bytes(*distance))) {
            return None;
        }
        let (matched, behind) = lz4_length(token & 15, behind)?;
        yielded += matched + 4;
        rest = behind;
    }
}

/// The length that begins with these four bits of a token and goes on in `rest`, and what is behind it.
fn lz4_length(bits: u8, mut rest: &[u8]) -> Option<(usize, &[u8])> {
    let mut length = usize::from(bits);
    let mut last = if bits == 15 { u8::MAX } else { 0 };
    while last == u8::MAX {
        (last, rest) = rest.split_first().map(|(&next, behind)| (next, behind))?;
        length += usize::from(last);
    }
    Some((length, rest))
}

/// What the blocks of the Zstandard frame at the beginning of `packed` hold at most, by their headers, and the length
/// of the frame; `None` when the headers make no sense. (RFC 8878, 3.1.1.)
fn zstd_frame(packed: &[u8]) -> Option<(usize, usize)> {
    let (magic, rest) = packed.split_first_chunk::<4>()?;
    let (&descriptor, rest) = rest.split_first().filter(|_| u32::from_le_bytes(*magic) == 0xFD2F_B528)?;
    let is_single = descriptor >> 5 & 1 == 1;
    let dictionary = [0, 1, 2, 4][usize::from(descriptor & 3)];
    let content = [usize::from(is_single), 2, 4, 8][usize::from(descriptor >> 6)];
    let mut rest = rest.get(usize::from(!is_single) + dictionary + content..)?;
    let mut output = 0usize;
    loop {
        let (header, body) = rest.split_first_chunk::<3>()?;
        let header = u32::from_le_bytes([header[0], header[1], header[2], 0]);
        let size = (header >> 3) as usize;
        let (stored, held) = match header >> 1 & 3 {
            0 => (size, size),
            1 => (1, size),
            2 => (size, ZSTD_BLOCK_BYTES_MAX),
            _ => return None,
        };
        output += held.min(ZSTD_BLOCK_BYTES_MAX);
        rest = body.get(stored..)?;
        if header & 1 == 1 {
            let checksum = if descriptor >> 2 & 1 == 1 { 4 } else { 0 };
            return Some((output, packed.len() - rest.len() + checksum));
        }
    }
}

fn decompress_zstd(packed: &[u8], out: &mut [u8]) -> Option<usize> {
    let with_kept = ZSTD.try_with(|context| {
        let mut context = context.borrow_mut();
        if context.is_none() {
            *context = bulk::Decompressor::new().ok();
        }
        context.as_mut()?.decompress_to_buffer(packed, &mut *out).ok()
    });
    // While the thread ends, it is freed. Another destructor may still read.
    with_kept.unwrap_or_else(|_freed| bulk::Decompressor::new().ok()?.decompress_to_buffer(packed, out).ok())
}

/// A shared buffer of zeros, to be filled while it has only one owner.
#[must_use]
pub fn zeroed(len: usize) -> Arc<[u8]> {
    // An iterator of known length is collected into one allocation; a vector would be copied into a second one.
    iter::repeat_n(0, len).collect()
}

#[cfg(test)]
mod tests {
    use std::{sync::mpsc, thread};

    use proptest::prelude::*;

    use super::*;

    fn compressed(compression: Compression, body: &[u8]) -> (Method, Vec<u8>) {
        let mut out = b"before".to_vec();
        out.extend_from_slice(body);
        let method = Compressor::new(compression).compress(&mut out, 6);
        assert_eq!(&out[..6], b"before");
        (method, out.split_off(6))
    }

    #[test]
    fn compressible_data_comes_back_and_other_data_is_stored_as_it_is() {
        let text = b"one block like another, ".repeat(100);
        let mut noise = vec![0u8; 2000];
        let mut state = 1u32;
        noise.fill_with(|| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        });
        for (compression, expected) in [(Compression::Lz4, Method::Lz4), (Compression::Zstd, Method::Zstd)] {
            let (method, packed) = compressed(compression, &text);
            assert_eq!(method, expected);
            assert!(packed.len() < text.len() / 4);
            assert_eq!(*decompress(method, &packed, text.len()).unwrap(), *text);
            assert!(decompress(method, &packed, text.len() - 1).is_err(), "larger than the reader expects");
            assert_eq!(compressed(compression, &noise), (Method::Plain, noise.clone()));
            assert_eq!(compressed(compression, b""), (Method::Plain, Vec::new()));
        }
        assert_eq!(compressed(Compression::None, &text), (Method::Plain, text));
    }

    #[test]
    fn a_length_that_the_compressed_bytes_cannot_have_is_refused_before_memory_is_allocated() {
        let text = b"a value like another, ".repeat(60);
        for (method, compression) in [(Method::Lz4, Compression::Lz4), (Method::Zstd, Compression::Zstd)] {
            let (_, mut packed) = compressed(compression, &text);
            assert!(output_max(method, &packed[LENGTH_BYTES..], 1 << 30) <= 256 << 10);
            for claimed in [1 << 30, u32::MAX] {
                packed[..LENGTH_BYTES].copy_from_slice(&claimed.to_le_bytes());
                let damage = decompress(method, &packed, usize::MAX).unwrap_err();
                assert!(damage.expected.starts_with("at most "), "{method:?}: {damage:?}");
            }
        }
    }

    #[test]
    fn extremely_compressible_data_comes_back() {
        for len in [0, 1, 100, 4 << 10, 128 << 10, (128 << 10) + 1, 3 << 20] {
            let zeros = vec![0; len];
            for (method, compression) in [(Method::Lz4, Compression::Lz4), (Method::Zstd, Compression::Zstd)] {
                let (stored, packed) = compressed(compression, &zeros);
                if stored == method {
                    assert_eq!(*decompress(method, &packed, len).unwrap(), *zeros, "{method:?}, {len} bytes");
                }
            }
        }
    }

    /// Decompresses a block when it is dropped, and says whether that went well.
    struct AtEnd {
        packed: Vec<u8>,
        len: usize,
        went_well: mpsc::Sender<bool>,
    }

    impl Drop for AtEnd {
        fn drop(&mut self) {
            let block = decompress(Method::Zstd, &self.packed, self.len);
            let _nobody_listens = self.went_well.send(block.is_ok());
        }
    }

    thread_local! {
        static AT_END: RefCell<Option<AtEnd>> = const { RefCell::new(None) };
    }

    #[test]
    fn a_block_is_decompressed_while_its_thread_ends() {
        let text = b"one block like another, ".repeat(100);
        let (method, packed) = compressed(Compression::Zstd, &text);
        assert_eq!(method, Method::Zstd);
        let (went_well, outcome) = mpsc::channel();
        let thread = thread::spawn(move || {
            // What a thread has used first is dropped last: behind the context.
            AT_END.set(Some(AtEnd { packed: packed.clone(), len: text.len(), went_well }));
            assert_eq!(*decompress(Method::Zstd, &packed, text.len()).unwrap(), *text);
        });
        thread.join().unwrap();
        assert_eq!(outcome.recv(), Ok(true));
    }

    proptest! {
        #[test]
        fn no_bytes_make_decompression_panic(body in prop::collection::vec(any::<u8>(), 0..200), len in 0u32..5000) {
            let mut framed = len.to_le_bytes().to_vec();
            framed.extend_from_slice(&body);
            for method in [Method::Plain, Method::Lz4, Method::Zstd] {
                if let Ok(block) = decompress(method, &framed, 4096) {
                    prop_assert!(block.len() == len as usize && block.len() <= 4096);
                }
                let _any_answer = packed_len(method, &framed, 0..=4096);
            }
        }

        #[test]
        fn no_output_is_longer_than_its_bound(
            pieces in prop::collection::vec((any::<u8>(), 1usize..2000), 1..40),
            noise in prop::collection::vec(any::<u8>(), 0..300),
        ) {
            let mut body: Vec<u8> = pieces.iter().flat_map(|&(byte, times)| iter::repeat_n(byte, times)).collect();
            body.extend(noise);
            let mut out = vec![0; lz4_flex::block::get_maximum_output_size(body.len())];
            let written = lz4_flex::block::compress_into(&body, &mut out).unwrap();
            prop_assert_eq!(lz4_output_max(&out[..written]), body.len());
            // Whatever is behind it.
            prop_assert_eq!(lz4_len(&out, body.len()), Some(written));
            let mut packed = bulk::compress(&body, 1).unwrap();
            let written = packed.len();
            packed.extend_from_slice(&body);
            let (output, len) = zstd_frame(&packed).unwrap();
            prop_assert!(output >= body.len() && len == written);
        }
    }
}
