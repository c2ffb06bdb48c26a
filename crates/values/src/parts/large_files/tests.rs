//! Files of large values: what is written comes back, what is damaged is found, and what is not needed goes.

use bifold_contract::{Error, LargeRef};
use bifold_format::large::CHUNK_BYTES;
use bifold_io::memory::MemoryFs;

use super::*;
use crate::parts::value_files::scratch::value_files;

const KEY: &[u8] = b"the key";

fn files(fs: &MemoryFs) -> LargeFiles {
    LargeFiles::open(value_files(fs, 4).context(), &LargeEdit::default())
}

fn value(len: u64) -> Vec<u8> {
    (0..len).map(|n| (n.wrapping_mul(0x9E37_79B9) >> 16) as u8).collect()
}

fn write(files: &LargeFiles, value: &[u8]) -> LargeRef {
    let mut writer = files.create(KEY).unwrap();
    value.chunks(CHUNK_BYTES as usize).for_each(|chunk| writer.append(chunk).unwrap());
    let named = writer.finish().unwrap();
    writer.keep();
    files.refer(named, KEY.len());
    named
}

/// What the manifest says of it.
fn recorded(files: &LargeFiles, named: LargeRef) -> LargeFileMeta {
    let bytes = LargeLayout::of(KEY.len(), named.len).file_bytes();
    LargeFileMeta { keyspace: files.home.keyspace, named, bytes }
}

fn names_in(files: &LargeFiles) -> Vec<String> {
    files.home.dir.list().unwrap()
}

#[test]
fn a_value_comes_back_from_any_position() {
    let files = files(&MemoryFs::new());
    for len in [1, CHUNK_BYTES, CHUNK_BYTES + 1, 3 * CHUNK_BYTES + 99] {
        let expected = value(len);
        let named = write(&files, &expected);
        assert_eq!(files.locate(KEY, named).unwrap(), Located::Whole);
        assert_eq!(files.read(KEY, named, IoSource::Get).unwrap().unwrap(), &expected[..]);
        let mut reading = LargeReading::new(files.find(KEY.len(), named).unwrap(), KEY, IoSource::Get).unwrap();
        for position in [len - 1, 0, len / 2, len, CHUNK_BYTES - 1, CHUNK_BYTES, u64::MAX] {
            let found = reading.bytes_at(position).unwrap();
            let rest = expected.get(usize::try_from(position).unwrap_or(usize::MAX)..).unwrap_or_default();
            assert_eq!(found.is_empty(), rest.is_empty(), "{len} bytes, {position}");
            assert_eq!(found, &rest[..found.len()]);
        }
        assert!(files.memory_bytes() <= 2 * CHUNK_BYTES, "one chunk of this reader");
        verify(&files.home.dir, &recorded(&files, named)).unwrap();
    }
    assert_eq!(files.memory_bytes(), 0);
}

#[test]
fn a_file_that_nothing_names_is_deleted_and_others_when_nobody_reads_them() {
    let fs = MemoryFs::new();
    let files = files(&fs);
    drop(files.create(KEY).unwrap());
    assert_eq!(names_in(&files), [""; 0]);
    let (named, other) = (write(&files, &value(10)), write(&files, &value(20)));
    let held = files.find(KEY.len(), named).unwrap();
    files.installed(&LargeEdit { unneeded: vec![named.file, other.file], ..LargeEdit::default() });
    assert_eq!(names_in(&files), [names::large(named.file)], "somebody reads it");
    assert!(files.find(KEY.len(), named).is_none());
    let mut reading = LargeReading::new(held, KEY, IoSource::Get).unwrap();
    assert_eq!(reading.bytes_at(3).unwrap(), &value(10)[3..]);
    drop(reading);
    assert_eq!(names_in(&files), [""; 0]);
}

#[test]
fn damage_anywhere_is_an_error_with_file_and_offset() {
    let fs = MemoryFs::new();
    let written = files(&fs);
    let expected = value(CHUNK_BYTES + 300);
    let named = write(&written, &expected);
    let path = written.home.dir.file(&names::large(named.file));
    let bytes = fs.read(&path).unwrap();
    let step = bytes.len() / 50;
    for at in (0..bytes.len()).step_by(step).chain(bytes.len() - 40..bytes.len()) {
        let mut damaged = bytes.clone();
        damaged[at] ^= 4;
        fs.write_durable(&path, &damaged);
        // Nothing is known of the file.
        let files = LargeFiles::open(value_files(&fs, 4).context(), &LargeEdit::default());
        files.refer(named, KEY.len());
        let error = files.read(KEY, named, IoSource::Get).unwrap_err();
        let Error::Corruption { path: of, detail } = error else { panic!("{at}: {error}") };
        assert!(of == path && detail.offset <= at as u64, "byte {at}: {detail:?}");
        assert!(verify(&files.home.dir, &recorded(&files, named)).is_err(), "byte {at}");
        // A reader hands out what comes before, and nothing that is damaged.
        let found = files.find(KEY.len(), named).map(|file| LargeReading::new(file, KEY, IoSource::Get));
        if let Some(Ok(mut reading)) = found {
            for position in [0, CHUNK_BYTES] {
                if let Ok(seen) = reading.bytes_at(position) {
                    assert_eq!(seen, &expected[position as usize..][..seen.len()], "byte {at}");
                }
            }
        }
    }
    for len in [0, 31, 500, bytes.len() - 1] {
        fs.write_durable(&path, &bytes[..len]);
        let files = LargeFiles::open(value_files(&fs, 4).context(), &LargeEdit::default());
        assert_eq!(files.locate(KEY, named).unwrap(), Located::Missing);
        files.refer(named, KEY.len());
        assert!(files.read(KEY, named, IoSource::Get).is_err(), "{len} bytes");
    }
}

/// The manifest does not say of which key a file is, but how long the file is.
#[test]
fn a_file_whose_key_has_another_length_than_was_recorded_is_damage() {
    let files = files(&MemoryFs::new());
    let named = write(&files, &value(300));
    let (dir, recorded) = (&files.home.dir, recorded(&files, named));
    verify(dir, &recorded).unwrap();
    for key_len in [KEY.len() - 1, KEY.len() + 1] {
        let of_another = LargeFileMeta { bytes: LargeLayout::of(key_len, named.len).file_bytes(), ..recorded };
        let found = verify(dir, &of_another);
        let Err(Error::Corruption { path, .. }) = found else { panic!("a key of {key_len} bytes: {found:?}") };
        assert_eq!(path, dir.file(&names::large(named.file)));
    }
}
