//! Pixels as PNG (ISO/IEC 15948): a signature and three chunks. The deflate stream is a crate's work; the rest is so
//! little that the crates which would write it bring more than they save.
//!
//! ```text
//! chunk: length of data, u32 big-endian · type, 4 letters · data · CRC-32 of type and data
//! IHDR:  width, height, u32 each · bits a sample 8 · colour type 2 (RGB) · 0, 0, 0: deflate, filters, not interlaced
//! IDAT:  zlib stream of rows, each a byte 0 (no filter) and three bytes a pixel
//! IEND:  nothing
//! ```

use miniz_oxide::deflate::compress_to_vec_zlib;

use super::raster::Pixels;

const SIGNATURE: [u8; 8] = *b"\x89PNG\r\n\x1a\n";

/// Of 1 to 10. Higher levels take longer for a few hundred bytes.
const COMPRESSION: u8 = 6;

/// Encodes pixels.
#[must_use]
pub fn encode(pixels: &Pixels) -> Vec<u8> {
    let mut header = Vec::with_capacity(13);
    // Pictures are some thousand pixels wide and high: what a u32 cannot hold is in no memory.
    header.extend((pixels.width as u32).to_be_bytes());
    header.extend((pixels.height as u32).to_be_bytes());
    header.extend([8, 2, 0, 0, 0]);
    // Each row begins with its filter. Flat colours repeat without one.
    let rows: Vec<u8> =
        pixels.rgb.chunks(pixels.width * 3).flat_map(|row| [0].into_iter().chain(row.iter().copied())).collect();
    let mut png = SIGNATURE.to_vec();
    chunk(&mut png, *b"IHDR", &header);
    chunk(&mut png, *b"IDAT", &compress_to_vec_zlib(&rows, COMPRESSION));
    chunk(&mut png, *b"IEND", &[]);
    png
}

fn chunk(png: &mut Vec<u8>, kind: [u8; 4], data: &[u8]) {
    png.extend((data.len() as u32).to_be_bytes());
    let checked = png.len();
    png.extend(kind);
    png.extend(data);
    let crc = crc32(&png[checked..]);
    png.extend(crc.to_be_bytes());
}

/// CRC-32 with the polynomial of zlib and PNG, bit by bit: pictures are about 100 KB.
fn crc32(bytes: &[u8]) -> u32 {
    let step = |crc: u32, _| if crc & 1 == 1 { (crc >> 1) ^ 0xEDB8_8320 } else { crc >> 1 };
    !bytes.iter().fold(u32::MAX, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), step))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_the_known_one() {
        assert_eq!(crc32(b"123456789"), 0xCBF4_3926);
        // What every PNG ends with.
        assert_eq!(crc32(b"IEND"), 0xAE42_6082);
    }

    #[test]
    fn the_rows_come_back() {
        let rgb: Vec<u8> = (0..2 * 3 * 3).collect();
        let png = encode(&Pixels { width: 2, height: 3, rgb });
        assert_eq!(png[..8], SIGNATURE);
        assert_eq!(png[8..29], *b"\0\0\0\rIHDR\0\0\0\x02\0\0\0\x03\x08\x02\0\0\0");
        let length = u32::from_be_bytes(png[33..37].try_into().unwrap()) as usize;
        let rows = miniz_oxide::inflate::decompress_to_vec_zlib(&png[41..41 + length]).unwrap();
        assert_eq!(rows, [0, 0, 1, 2, 3, 4, 5, 0, 6, 7, 8, 9, 10, 11, 0, 12, 13, 14, 15, 16, 17]);
    }
}
