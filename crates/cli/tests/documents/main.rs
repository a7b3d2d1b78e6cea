//! The documents hold together: links lead somewhere, every page can be found, and the prose is plain.

mod idioms;
mod links;
mod tree;

use tree::{documents, prose_lines, read};

/// ARCHITECTURE.md is the map that a newcomer reads in one sitting. Details belong in docs/understand.
#[test]
fn the_architecture_document_stays_short() {
    let bytes = read("ARCHITECTURE.md").len();
    assert!(bytes <= 12 * 1024, "ARCHITECTURE.md has {bytes} bytes, more than 12 KB");
}

/// Rewrapped when their text is next rewritten.
const STILL_WIDE: [&str; 2] = ["docs/understand/benchmarks.md", "docs/understand/testing.md"];

/// Rows of tables cannot be broken into lines; everything else wraps at 120 columns.
#[test]
fn lines_wrap_at_120_columns() {
    let mut long = Vec::new();
    for document in documents().into_iter().filter(|file| !STILL_WIDE.contains(&file.as_str())) {
        for (number, line) in prose_lines(&read(&document)) {
            let is_table = line.trim_start().starts_with('|');
            if !is_table && line.chars().count() > 120 {
                long.push(format!("{document}:{number}"));
            }
        }
    }
    assert!(long.is_empty(), "lines over 120 columns:\n{}", long.join("\n"));
}
