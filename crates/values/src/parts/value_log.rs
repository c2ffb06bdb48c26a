//! Values in the order of arrival: the file that commits append to, and the next one when it is full.

use std::sync::{Arc, Mutex};

use bifold_contract::{FileId, Pointer, Result, SeqNo};
use bifold_format::{compression::Compressor, value};

use super::{
    sync::LockExt,
    value_files::{ValueFile, ValueFiles},
};
use crate::placements::Settings;

/// The end of a log of values.
pub struct ValueLog {
    files: Arc<ValueFiles>,
    options: Settings,
    head: Mutex<Head>,
}

struct Head {
    file: Option<Arc<ValueFile>>,
    record: Vec<u8>,
    compressor: Compressor,
}

impl ValueLog {
    /// A log that appends to files of about `options.file_bytes`; it begins with a new one.
    #[must_use]
    pub fn new(files: Arc<ValueFiles>, options: &Settings) -> Self {
        let head = Head { file: None, record: Vec::new(), compressor: Compressor::new(options.now().compression) };
        Self { files, options: options.clone(), head: Mutex::new(head) }
    }

    /// Appends a value and returns where it is.
    ///
    /// # Errors
    /// I/O errors; nothing must be appended after one.
    pub fn append(&self, seqno: SeqNo, key: &[u8], value: &[u8]) -> Result<Pointer> {
        let options = self.options.now();
        let mut head = self.head.hold();
        let Head { file, record, compressor } = &mut *head;
        let file = match file {
            Some(file) if file.len() < options.file_bytes => file,
            other => other.insert(self.files.begin(0)?),
        };
        record.clear();
        compressor.switch_to(options.compression);
        value::encode_value(record, (file.id, file.len()), seqno, key, value, compressor);
        self.files.append(file, record)
    }

    /// The file that is appended to.
    #[must_use]
    pub fn head(&self) -> Option<FileId> {
        self.head.hold().file.as_ref().map(|file| file.id)
    }

    /// The files in use to which nothing is appended any more, oldest first. GC may take these.
    #[must_use]
    pub fn sealed(&self) -> Vec<Arc<ValueFile>> {
        // The files are listed first: a file that a commit begins after that is not among them, and the file before it
        // is full.
        let mut files = self.files.in_use();
        let head = self.head();
        files.retain(|file| Some(file.id) != head);
        files
    }

    /// Nothing is appended to the present file any more.
    pub fn seal(&self) {
        self.head.hold().file = None;
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use bifold_io::memory::MemoryFs;

    use super::*;
    use crate::{
        parts::value_files::scratch::value_files,
        placements::{SMALL, ValueOptions},
    };

    #[test]
    fn files_that_a_commit_begins_are_not_sealed() {
        for _ in 0..200 {
            let files = Arc::new(value_files(&MemoryFs::new(), 100));
            let log = ValueLog::new(files, &Settings::new(ValueOptions { file_bytes: 1, ..SMALL }));
            thread::scope(|scope| {
                let appends = scope.spawn(|| {
                    for seqno in 1..=100 {
                        log.append(seqno, b"key", b"value").unwrap();
                    }
                });
                while !appends.is_finished() {
                    // Each file gets one record, so an empty one is still to be appended to.
                    assert!(log.sealed().iter().all(|file| !file.is_empty()));
                }
            });
            assert_eq!(log.sealed().len(), 99);
            log.seal();
            assert_eq!(log.sealed().len(), 100);
        }
    }
}
