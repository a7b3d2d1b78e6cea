//! The documents hold together: links lead somewhere, every page can be found, and the prose is plain. Comments in
//! sources are checked like prose.

mod comments;
mod idioms;
mod links;
mod tree;

use comments::{comments, sources};
use tree::{documents, prose_lines, read};

/// ARCHITECTURE.md is the map that a newcomer reads in one sitting. Details belong in docs/understand.
#[test]
fn the_architecture_document_stays_short() {
    let bytes = read("ARCHITECTURE.md").len();
    assert!(bytes <= 12 * 1024, "ARCHITECTURE.md has {bytes} bytes, more than 12 KB");
}

/// Rows of tables cannot be broken into lines; everything else wraps at 120 columns.
#[test]
fn lines_wrap_at_120_columns() {
    let mut long = Vec::new();
    for document in documents() {
        for (number, line) in prose_lines(&read(&document)) {
            let is_table = line.trim_start().starts_with('|');
            if !is_table && line.chars().count() > 120 {
                long.push(format!("{document}:{number}"));
            }
        }
    }
    assert!(long.is_empty(), "lines over 120 columns:\n{}", long.join("\n"));
}

/// A row of a table and an address have no place to break.
#[test]
fn comments_wrap_at_120_columns() {
    let mut long = Vec::new();
    for (file, language) in sources() {
        let text = read(&file);
        let lines: Vec<&str> = text.lines().collect();
        for comment in comments(language, &text) {
            let line = lines[comment.number - 1];
            let may_be_wide = comment.text.trim_start().starts_with('|') || comment.text.contains("https://");
            if !may_be_wide && line.chars().count() > 120 {
                long.push(format!("{file}:{}", comment.number));
            }
        }
    }
    assert!(long.is_empty(), "{} comment lines over 120 columns:\n{}", long.len(), long.join("\n"));
}
