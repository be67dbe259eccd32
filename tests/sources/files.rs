//! The files of the project.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// Returns the folder of the workspace.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Reads a file, by its path in the workspace.
pub(crate) fn read(file: &str) -> String {
    read_at(&root().join(file))
}

/// Reads a file.
pub(crate) fn read_at(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Returns the files of a folder and of the folders in it, if they have this extension.
pub(crate) fn below(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder);
    let entries = entries.unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut found = Vec::new();
    for entry in entries {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            found.extend(below(&path, extension));
        } else if path.extension().is_some_and(|own| own == extension) {
            found.push(path);
        }
    }
    found
}
