//! Libraries that are preloaded into a process to replace a function of the system.

use std::{path::PathBuf, process::Command};

use tempfile::TempDir;

/// A library; its file is removed when this is dropped.
#[derive(Debug)]
pub(crate) struct Preload {
    folder: TempDir,
}

impl Preload {
    /// Compiles a file of the harness.
    pub(crate) fn compile(source: &str) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let preload = Self { folder };
        let source = format!("{}/harness/{source}", env!("CARGO_MANIFEST_DIR"));
        let compiled = Command::new("cc")
            .args(["-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o"])
            .arg(preload.library())
            .arg(&source)
            .status()
            .expect("cc, which tests/run installs");
        assert!(compiled.success(), "{source} does not compile");
        preload
    }

    /// Returns the value for the variable `LD_PRELOAD` of the process.
    pub(crate) fn library(&self) -> PathBuf {
        self.file("library.so")
    }

    /// Returns the path of a file in the folder of the library.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }
}
