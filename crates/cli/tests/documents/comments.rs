//! The prose in the sources of the repository: comments, string literals, and names of tests.

use std::fs;
use std::path::Path;

use crate::tree::{relative, root};

/// A language, as far as its comments and string literals differ from those of others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Language {
    Rust,
    Lua,
    Python,
    Shell,
}

/// A line of a comment.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct CommentLine {
    /// Counted from 1.
    pub(crate) number: usize,
    /// Its text, without the marker.
    pub(crate) text: String,
    marker: &'static str,
    /// Whether the line holds nothing else.
    is_alone: bool,
}

/// A comment: where its text begins and ends, and what introduces it.
struct Span {
    start: usize,
    end: usize,
    marker: &'static str,
}

/// Folders that hold no sources of ours.
const SKIPPED: [&str; 5] = ["target", "node_modules", "__pycache__", "sureq-data", "golden"];

/// Hidden folders with sources.
const HIDDEN: [&str; 1] = [".ci"];

/// All sources in a language whose comments are read, by their path from the root of the repository.
pub(crate) fn sources() -> Vec<(String, Language)> {
    let (mut found, mut left) = (Vec::new(), vec![root()]);
    while let Some(dir) = left.pop() {
        for entry in fs::read_dir(&dir).expect("the directory can be read") {
            let path = entry.expect("the entry can be read").path();
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            let is_hidden = name.starts_with('.') && !HIDDEN.contains(&name);
            if path.is_symlink() || is_hidden || SKIPPED.contains(&name) {
                continue;
            }
            if path.is_dir() {
                left.push(path);
            } else if let Some(language) = language_of(&path) {
                found.push((relative(&path), language));
            }
        }
    }
    found.sort_by(|(a, _), (b, _)| a.cmp(b));
    found
}

/// The language of a file by the end of its name or, if that has none, by its first line.
fn language_of(path: &Path) -> Option<Language> {
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("rs") => return Some(Language::Rust),
        Some("lua") => return Some(Language::Lua),
        Some("py") => return Some(Language::Python),
        Some("sh") => return Some(Language::Shell),
        Some(_) => return None,
        None => {}
    }
    let bytes = fs::read(path).ok()?;
    let first = bytes.strip_prefix(b"#!")?.split(|&byte| byte == b'\n').next()?;
    let first = String::from_utf8_lossy(first);
    if first.contains("python") {
        return Some(Language::Python);
    }
    first.contains("sh").then_some(Language::Shell)
}

/// The comments of a source, line by line.
pub(crate) fn comments(language: Language, text: &str) -> Vec<CommentLine> {
    let mut scanner = Scanner::new(text);
    match language {
        Language::Rust => scanner.rust(),
        Language::Lua => scanner.lua(),
        Language::Python => scanner.python(),
        Language::Shell => scanner.shell(),
    }
    let begins: Vec<usize> = [0].into_iter().chain(text.match_indices('\n').map(|(at, _)| at + 1)).collect();
    scanner.spans.iter().flat_map(|span| lines_of(text, &begins, span)).collect()
}

/// The string literals of Rust code before its unit tests, each as one line with the number of its first line.
pub(crate) fn literals(text: &str) -> Vec<(usize, String)> {
    let tests = text.match_indices("#[cfg(test)]\n").find(|(at, mark)| {
        let next = text[at + mark.len()..].lines().next().unwrap_or_default();
        next.contains("mod ") && next.ends_with('{')
    });
    let code = tests.map_or(text, |(at, _)| &text[..at]);
    let mut scanner = Scanner::new(code);
    scanner.rust();
    let literals = scanner.literals.iter();
    literals
        .map(|&(start, end)| {
            let plain = code[start..end].replace("\\\"", "\"").replace("\\n", " ").replace('\\', " ");
            let words: Vec<&str> = plain.split_whitespace().collect();
            (code[..start].matches('\n').count() + 1, words.join(" "))
        })
        .collect()
}

/// The names of the tests in Rust code as words, with the numbers of their lines.
pub(crate) fn test_names(text: &str) -> Vec<(usize, String)> {
    let (mut found, mut is_test) = (Vec::new(), false);
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        is_test |= line.starts_with("#[") && (line.ends_with("test]") || line.contains("::test("));
        let function = line.strip_prefix("async ").unwrap_or(line).strip_prefix("fn ");
        if let Some(name) = function.filter(|_| is_test) {
            let name = name.split(['(', '<']).next().unwrap_or_default();
            found.push((index + 1, name.replace('_', " ")));
            is_test = false;
        }
    }
    found
}

/// The lines of a comment in a text whose lines begin at these offsets.
fn lines_of(text: &str, begins: &[usize], span: &Span) -> Vec<CommentLine> {
    let first = begins.partition_point(|&begin| begin <= span.start);
    let before = text[begins[first - 1]..span.start].trim_start();
    let is_block = !matches!(span.marker, "//" | "///" | "//!" | "--" | "#");
    let lines = text[span.start..span.end].lines().enumerate();
    lines
        .map(|(index, line)| CommentLine {
            number: first + index,
            // The lines of a block may begin with asterisks.
            text: if is_block { line.trim_start().trim_start_matches("* ") } else { line }.to_owned(),
            marker: span.marker,
            is_alone: index > 0 || before.len() == span.marker.len(),
        })
        .collect()
}

/// The prose of comments as numbered lines, as [`crate::idioms`] reads those of a document. An empty line separates
/// comments that do not belong together. Code in fences is left out.
pub(crate) fn prose(comments: &[CommentLine]) -> Vec<(usize, &str)> {
    let (mut found, mut in_code) = (Vec::new(), false);
    for (index, line) in comments.iter().enumerate() {
        let goes_on = index.checked_sub(1).map(|before| &comments[before]).is_some_and(|before| {
            before.number + 1 == line.number
                && before.marker == line.marker
                && before.is_alone
                && line.is_alone
        });
        if !goes_on {
            found.push((line.number, ""));
            in_code = false;
        }
        let is_fence = line.text.trim_start().starts_with("```");
        if !in_code && !is_fence {
            found.push((line.number, line.text.as_str()));
        }
        in_code ^= is_fence;
    }
    found
}

/// Finds comments, and the string literals of Rust.
struct Scanner<'t> {
    text: &'t str,
    at: usize,
    spans: Vec<Span>,
    /// Where the text of each string literal begins and ends.
    literals: Vec<(usize, usize)>,
}

impl<'t> Scanner<'t> {
    fn new(text: &'t str) -> Self {
        Self { text, at: 0, spans: Vec::new(), literals: Vec::new() }
    }

    fn rest(&self) -> &str {
        &self.text[self.at..]
    }

    fn before(&self) -> Option<char> {
        self.text[..self.at].chars().next_back()
    }

    fn is_done(&self) -> bool {
        self.at == self.text.len()
    }

    fn step(&mut self) {
        self.at += self.rest().chars().next().map_or(0, char::len_utf8);
    }

    /// Passes over the text up to and including `end`, or to the end of the file. Answers where `end` begins.
    fn pass(&mut self, end: &str) -> usize {
        let found = self.rest().find(end).map(|at| self.at + at);
        self.at = found.map_or(self.text.len(), |at| at + end.len());
        found.unwrap_or(self.text.len())
    }

    /// Passes over the rest of a string literal in which a backslash escapes the next character.
    fn pass_string(&mut self, quote: &str) -> usize {
        while !self.is_done() {
            if self.rest().starts_with(quote) {
                self.at += quote.len();
                return self.at - quote.len();
            }
            if self.rest().starts_with('\\') {
                self.step();
            }
            self.step();
        }
        self.at
    }

    /// Takes the rest of the line as a comment.
    fn line(&mut self, marker: &'static str) {
        let start = self.at + marker.len();
        let end = self.rest().find('\n').map_or(self.text.len(), |at| self.at + at);
        self.spans.push(Span { start: start.min(end), end, marker });
        self.at = end;
    }

    fn rust(&mut self) {
        while !self.is_done() {
            let rest = self.rest();
            let is_word = self.before().is_some_and(|c| c.is_alphanumeric() || c == '_');
            if rest.starts_with("//!") {
                self.line("//!");
            } else if rest.starts_with("///") && !rest.starts_with("////") {
                self.line("///");
            } else if rest.starts_with("//") {
                self.line("//");
            } else if rest.starts_with("/*") {
                self.rust_block();
            } else if let Some(hashes) = raw_string(rest).filter(|_| !is_word) {
                let begin = rest.find('"').expect("a raw string has a quote");
                let end = format!("\"{}", "#".repeat(hashes));
                self.at += begin + 1;
                let start = self.at;
                let end = self.pass(&end);
                self.literals.push((start, end));
            } else if rest.starts_with('"') {
                self.step();
                let start = self.at;
                let end = self.pass_string("\"");
                self.literals.push((start, end));
            } else if rest.starts_with('\'') {
                self.rust_quote();
            } else {
                self.step();
            }
        }
    }

    /// A block comment, which may hold others.
    fn rust_block(&mut self) {
        let (start, mut depth) = (self.at + 2, 0);
        while !self.is_done() {
            if self.rest().starts_with("/*") {
                (depth, self.at) = (depth + 1, self.at + 2);
            } else if self.rest().starts_with("*/") {
                (depth, self.at) = (depth - 1, self.at + 2);
                if depth == 0 {
                    self.spans.push(Span { start, end: self.at - 2, marker: "/*" });
                    return;
                }
            } else {
                self.step();
            }
        }
    }

    /// A character literal, or the quote of a lifetime.
    fn rust_quote(&mut self) {
        self.step();
        if self.rest().starts_with('\\') {
            self.pass_string("'");
        } else {
            let mut next = self.rest().chars();
            if let (Some(one), Some('\'')) = (next.next(), next.next()) {
                self.at += one.len_utf8() + 1;
            }
        }
    }

    fn lua(&mut self) {
        while !self.is_done() {
            let rest = self.rest();
            if let Some(comment) = rest.strip_prefix("--") {
                match long_bracket(comment) {
                    Some(end) => {
                        let start = self.at + 2 + end.len();
                        self.at = start;
                        let end = self.pass(&end);
                        self.spans.push(Span { start, end, marker: "--[[" });
                    }
                    None => self.line("--"),
                }
            } else if let Some(end) = long_bracket(rest) {
                self.at += end.len();
                self.pass(&end);
            } else if rest.starts_with(['"', '\'']) {
                let quote = rest[..1].to_owned();
                self.step();
                self.pass_string(&quote);
            } else {
                self.step();
            }
        }
    }

    fn python(&mut self) {
        let mut depth = 0_usize;
        while !self.is_done() {
            let rest = self.rest();
            let triple = ["\"\"\"", "'''"].into_iter().find(|quote| rest.starts_with(quote));
            if let Some(quote) = triple {
                let begin = self.text[..self.at].rfind('\n').map_or(0, |at| at + 1);
                let is_docstring = depth == 0 && self.text[begin..self.at].trim().is_empty();
                self.at += quote.len();
                let start = self.at;
                let end = self.pass_string(quote);
                if is_docstring {
                    self.spans.push(Span { start, end, marker: quote });
                }
            } else if rest.starts_with(['"', '\'']) {
                let quote = rest[..1].to_owned();
                self.step();
                self.pass_string(&quote);
            } else if rest.starts_with('#') {
                self.line("#");
            } else {
                match rest.chars().next() {
                    Some('(' | '[' | '{') => depth += 1,
                    Some(')' | ']' | '}') => depth = depth.saturating_sub(1),
                    _ => {}
                }
                self.step();
            }
        }
    }

    fn shell(&mut self) {
        // Words that end the texts which begin on the next line.
        let mut texts: Vec<String> = Vec::new();
        while !self.is_done() {
            let rest = self.rest();
            let begins_word = self.before().is_none_or(|c| c.is_whitespace() || ";&|(".contains(c));
            if rest.starts_with('\n') {
                self.step();
                for end in texts.drain(..) {
                    while !self.is_done() && self.rest().lines().next().map(str::trim) != Some(&end) {
                        self.pass("\n");
                    }
                }
            } else if rest.starts_with('#') && begins_word {
                self.line("#");
            } else if rest.starts_with('\\') {
                self.step();
                self.step();
            } else if rest.starts_with('\'') {
                self.step();
                self.pass("'");
            } else if rest.starts_with('"') {
                self.step();
                self.pass_string("\"");
            } else if rest.starts_with("<<") && !rest.starts_with("<<<") {
                let word =
                    rest[2..].trim_start_matches('-').trim_start().trim_start_matches(['\'', '"', '\\']);
                let word: String = word.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
                texts.extend(Some(word).filter(|word| word.starts_with(char::is_alphabetic)));
                self.at += 2;
            } else {
                self.step();
            }
        }
    }
}

/// The number of hashes of a raw string literal that begins here.
fn raw_string(text: &str) -> Option<usize> {
    let rest = text.strip_prefix(['b', 'c']).unwrap_or(text).strip_prefix('r')?;
    let behind = rest.trim_start_matches('#');
    behind.starts_with('"').then_some(rest.len() - behind.len())
}

/// The end of a long bracket of Lua that begins here.
fn long_bracket(text: &str) -> Option<String> {
    let rest = text.strip_prefix('[')?;
    let behind = rest.trim_start_matches('=');
    behind.starts_with('[').then(|| format!("]{}]", "=".repeat(rest.len() - behind.len())))
}

#[cfg(test)]
mod tests {
    use super::{Language, comments, literals, prose, test_names};

    /// The texts of the comments of a source, with their lines.
    fn found(language: Language, text: &str) -> Vec<(usize, String)> {
        let comments = comments(language, text).into_iter();
        comments.map(|line| (line.number, line.text.trim().to_owned())).collect()
    }

    fn lines(expected: &[(usize, &str)]) -> Vec<(usize, String)> {
        expected.iter().map(|(number, text)| (*number, (*text).to_owned())).collect()
    }

    #[test]
    fn comments_of_rust_are_found_and_literals_are_not() {
        let text = "//! a\n/// b\nfn f<'x>(c: char) -> &'x str { // c\n    let _ = ('\"', '\\'', b\"// no\");\n    \
                    /* d /* e */\n     * f */ r#\"// \"no\"#\n    // g\n    \"\\\"// no\" }\n";
        let expected = [(1, "a"), (2, "b"), (3, "c"), (5, "d /* e */"), (6, "f"), (7, "g")];
        assert_eq!(found(Language::Rust, text), lines(&expected));
    }

    #[test]
    fn literals_before_the_tests_are_found() {
        let text = "fn f() {\n    (\"a \\\"b\\\" \\\n    c\\nd\", r#\"e \"f\"\"#) // \"no\"\n}\n#[cfg(test)]\nmod g;\n\
                    const H: &str = \"h\";\n#[cfg(test)]\nmod tests {\n    \"no\"\n}\n";
        assert_eq!(literals(text), lines(&[(2, "a \"b\" c d"), (3, "e \"f\""), (7, "h")]));
    }

    #[test]
    fn names_of_tests_are_found_and_other_functions_are_not() {
        let text = "#[cfg(test)]\nfn no() {}\n#[test]\n#[ignore]\nfn a_b() {}\n    #[tokio::test(start_paused = true)]\n    \
                    async fn c<T>() {}\nfn no_more() {}\n";
        assert_eq!(test_names(text), lines(&[(5, "a b"), (7, "c")]));
    }

    #[test]
    fn comments_of_lua_are_found_and_literals_are_not() {
        let text = "-- a\nlocal s = '-- no' .. \"\\\"-- no\" .. [[ -- no ]] -- b\n--[==[ c\nd ]] ]==]\n";
        assert_eq!(found(Language::Lua, text), lines(&[(1, "a"), (2, "b"), (3, "c"), (4, "d ]]")]));
    }

    #[test]
    fn comments_of_python_are_found_and_literals_are_not() {
        let text = "\"\"\"a\"\"\"\ndef f():\n    '''b\n    c'''\n    return g(\"# no\", '\\'# no',\n        \
                    \"\"\"# no\"\"\")  # d\n";
        let expected = [(1, "a"), (3, "b"), (4, "c"), (6, "d")];
        assert_eq!(found(Language::Python, text), lines(&expected));
    }

    #[test]
    fn comments_of_shell_are_found_and_literals_are_not() {
        let text =
            "#!/bin/sh\n# a\necho '# no' \"# no\" \\# no$#no ${x#no} # b\ncat <<END # c\n# no\nEND\n# d\n";
        let expected = [(1, "!/bin/sh"), (2, "a"), (3, "b"), (4, "c"), (7, "d")];
        assert_eq!(found(Language::Shell, text), lines(&expected));
    }

    #[test]
    fn comments_that_do_not_belong_together_are_separated() {
        let text = "// a\n// b\n/// c\n/// ```\n/// code\n/// ```\n/// d\nx, // e\ny, // f\n";
        let comments = comments(Language::Rust, text);
        let prose: Vec<&str> = prose(&comments).into_iter().map(|(_, text)| text.trim()).collect();
        assert_eq!(prose, ["", "a", "b", "", "c", "d", "", "e", "", "f"]);
    }
}
