//! A reader of a file to which other processes append.

use std::{
    fs::{File, OpenOptions},
    io::{self, Read},
    path::Path,
};

use rustix::fs::{FallocateFlags, fallocate};

/// A growing file, and the position up to which it was read.
#[derive(Debug)]
pub struct Tail {
    file: File,
    // The beginning of an incomplete line.
    rest: Vec<u8>,
    read: u64,
    pruned: u64,
}

impl Tail {
    /// Starts at the first line of the file at `path`, which is created if it does not exist.
    ///
    /// # Errors
    ///
    /// If the folder does not exist.
    pub fn open(path: &Path) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        let file = options.read(true).append(true).create(true).open(path)?;
        Ok(Self {
            file,
            rest: Vec::new(),
            read: 0,
            pruned: 0,
        })
    }

    /// Returns the complete lines that were appended since the last call.
    pub fn lines(&mut self) -> String {
        let read = self.file.read_to_end(&mut self.rest).expect("a file");
        self.read += u64::try_from(read).expect("the size of a file");
        let end = self.rest.iter().rposition(|&byte| byte == b'\n');
        let lines: Vec<u8> = self.rest.drain(..end.map_or(0, |end| end + 1)).collect();
        String::from_utf8(lines).expect("text")
    }

    /// Frees the disk space of everything that was read, except for the last `keep` bytes. Offsets in the file do not change.
    ///
    /// The freed part reads as zeros. Does nothing on a file system without holes.
    pub fn prune(&mut self, keep: u64) {
        /// The smallest hole. Holes consist of whole blocks, and each costs a call.
        const STEP: u64 = 1 << 20;
        let end = self.read.saturating_sub(keep) / STEP * STEP;
        if end <= self.pruned {
            return;
        }
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(&self.file, hole, self.pruned, end - self.pruned).ok();
        self.pruned = end;
    }
}

#[cfg(test)]
mod tests {
    use std::{io::Write, os::unix::fs::MetadataExt};

    use super::*;

    #[test]
    fn pruning_frees_disk_space_and_reading_continues() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let mut tail = Tail::open(&path).unwrap();
        let mut file = OpenOptions::new().append(true).open(&path).unwrap();
        let line = "x".repeat(1023) + "\n";
        for _ in 0..4096 {
            file.write_all(line.as_bytes()).unwrap();
        }
        assert_eq!(tail.lines().len(), 4 << 20);
        tail.prune(1 << 20);
        let kept = file.metadata().unwrap().blocks() * 512;
        assert!(kept <= 2 << 20, "{kept} bytes on disk");
        file.write_all(b"more\n").unwrap();
        assert_eq!(tail.lines(), "more\n");
    }
}
