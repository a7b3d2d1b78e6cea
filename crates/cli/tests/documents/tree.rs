//! The Markdown files of the repository.

use std::fs;
use std::path::{Path, PathBuf};

pub(crate) fn root() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2);
    root.expect("the crate is two directories below the repository").to_owned()
}

pub(crate) fn read(file: &str) -> String {
    fs::read_to_string(root().join(file)).unwrap_or_else(|error| panic!("cannot read {file}: {error}"))
}

/// All Markdown files at the top of the repository and below `docs`, by their path from the root.
pub(crate) fn documents() -> Vec<String> {
    let mut found = markdown_in(".");
    found.retain(|file| !file.contains('/'));
    let mut left = vec!["docs".to_owned()];
    while let Some(dir) = left.pop() {
        found.extend(markdown_in(&dir));
        let entries = fs::read_dir(root().join(&dir)).expect("the directory can be read");
        let entries = entries.map(|entry| entry.expect("the entry can be read").path());
        let dirs = entries.filter(|path| path.is_dir()).map(|path| relative(&path));
        left.extend(dirs);
    }
    found.sort();
    found
}

fn markdown_in(dir: &str) -> Vec<String> {
    let entries = fs::read_dir(root().join(dir)).expect("the directory can be read");
    let paths = entries.map(|entry| entry.expect("the entry can be read").path());
    let is_markdown = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "md");
    paths.filter(is_markdown).map(|path| relative(&path)).collect()
}

/// The path from the root of the repository, without `.` and `..` in it.
pub(crate) fn relative(path: &Path) -> String {
    let mut parts: Vec<&str> = Vec::new();
    let below = path.strip_prefix(root()).expect("the file is in the repository");
    for part in below.components() {
        match part.as_os_str().to_str().expect("a name is text") {
            "." => {}
            ".." => drop(parts.pop()),
            name => parts.push(name),
        }
    }
    parts.join("/")
}

/// The lines of a document that are not in a code block, with their numbers.
pub(crate) fn prose_lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut in_code = false;
    text.lines().enumerate().filter_map(move |(index, line)| {
        let is_fence = line.trim_start().starts_with("```");
        let is_prose = !in_code && !is_fence;
        in_code ^= is_fence;
        is_prose.then_some((index + 1, line))
    })
}
