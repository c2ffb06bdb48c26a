//! Tests for gaps that surviving mutants have shown: `reliability/mutants.md`.

use bifold_format::compression::{Compression, Compressor, Method, decompress};

/// Bytes that do not compress.
fn noise(len: usize) -> Vec<u8> {
    let mut state = 1u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    (0..len).map(|_| next()).collect()
}

#[test]
fn a_block_is_stored_compressed_if_that_saves_an_eighth_and_not_if_it_saves_less() {
    for compression in [Compression::Lz4, Compression::Zstd] {
        for (noisy, is_worth_it) in [(4096 * 15 / 16, false), (4096 * 3 / 4, true)] {
            let mut body = noise(noisy);
            body.resize(4096, 7);
            let method = Compressor::new(compression).compress(&mut body, 0);
            assert_eq!(method != Method::Plain, is_worth_it, "{compression:?}, {noisy} bytes of noise");
            assert_eq!(body.len() < 4096, is_worth_it);
        }
    }
}

#[test]
fn bytes_that_decompress_to_fewer_than_they_say_are_damage() {
    for compression in [Compression::Lz4, Compression::Zstd] {
        let text = b"one block like another, ".repeat(10);
        let mut packed = text.clone();
        let method = Compressor::new(compression).compress(&mut packed, 0);
        assert_eq!(*decompress(method, &packed, 1 << 16).unwrap(), *text);
        packed[..4].copy_from_slice(&(text.len() as u32 + 1).to_le_bytes());
        assert!(decompress(method, &packed, 1 << 16).is_err(), "{method:?}");
    }
}
