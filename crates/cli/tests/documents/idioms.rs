//! Phrases that make prose hard to read for a stranger stay out of the documents, of `--help`, of comments, of the
//! texts that the product prints, and of the names of tests and scenarios.
//!
//! `idioms-allowed.txt` lists exceptions, one per line: a file (or a folder that ends in `/`), a colon, and a phrase or
//! `*` for any.

use std::fs;
use std::process::Command;

use crate::comments::{Language, comments, literals, prose, sources, test_names};
use crate::tree::{documents, prose_lines, read, relative, root};

/// Phrases that have a plainer equivalent, in lower case.
const PHRASES: [&str; 40] = [
    "whoever",
    "whomever",
    "whosoever",
    "what is told",
    "is told",
    "are told",
    "was told",
    "were told",
    "being told",
    "be told",
    "so many",
    "nobody's",
    "somebody's",
    "called off",
    "that which",
    "those who wait",
    "who one is",
    "who knows",
    "never ours",
    "befall",
    "befalls",
    "tells of",
    "in whose",
    "goes on",
    "go on",
    "went on",
    "comes again",
    "come again",
    "so long",
    "so much",
    "without a word",
    "nobody else",
    "much is due",
    "much was due",
    "by nothing",
    "is heard",
    "are heard",
    "was heard",
    "the like",
    "in one go",
];

/// Words that no sentence begins with, unless it is a question.
const OPENINGS: [&str; 3] = ["What ", "Whatever ", "Nobody "];

/// An idiom in a text: the line where it stands, and the phrase.
fn idioms(paragraphs: &[(usize, String)]) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (line, paragraph) in paragraphs {
        let lower = paragraph.to_lowercase();
        let words: String =
            lower.chars().map(|c| if c.is_alphanumeric() || c == '\'' { c } else { ' ' }).collect();
        let words = format!(" {} ", words.split_whitespace().collect::<Vec<_>>().join(" "));
        for phrase in PHRASES {
            if words.contains(&format!(" {phrase} ")) {
                found.push((*line, phrase.to_owned()));
            }
        }
        for sentence in sentences(paragraph) {
            let opening = OPENINGS.iter().find(|opening| sentence.starts_with(**opening));
            if let Some(opening) = opening
                && !sentence.ends_with('?')
            {
                found.push((*line, format!("{}…", opening.trim())));
            }
        }
    }
    found
}

/// The sentences of a paragraph, each with the mark that ends it.
fn sentences(paragraph: &str) -> Vec<&str> {
    let ends = paragraph.match_indices([' ', '|']).filter(|(at, _)| {
        let before = paragraph[..*at].trim_end_matches(['*', '"', ')']);
        before.ends_with(['.', '?', '!']) || paragraph[*at..].starts_with('|')
    });
    let mut starts: Vec<usize> = vec![0];
    starts.extend(ends.map(|(at, _)| at + 1));
    let bounds = starts.iter().copied().zip(starts.iter().copied().skip(1).chain([paragraph.len()]));
    bounds
        .map(|(from, to)| {
            paragraph[from..to].trim().trim_start_matches(['*', '"', '(']).trim_end_matches('*')
        })
        .collect()
}

/// The paragraphs of numbered lines with their first lines. Headings are left out.
fn paragraphs<'t>(lines: impl IntoIterator<Item = (usize, &'t str)>) -> Vec<(usize, String)> {
    let mut found: Vec<(usize, String)> = Vec::new();
    let mut last = 0;
    for (number, line) in lines {
        let trimmed = line.trim();
        let begins = trimmed.starts_with("- ")
            || trimmed.starts_with("* ")
            || trimmed.starts_with('|')
            || trimmed.split_once(". ").is_some_and(|(count, _)| count.parse::<u8>().is_ok());
        if trimmed.is_empty() || trimmed.starts_with('#') || trimmed.starts_with("<!--") {
            last = 0;
            continue;
        }
        let plain = without_code(trimmed.trim_start_matches(['-', '*', ' ']));
        match found.last_mut() {
            Some((_, paragraph)) if !begins && last + 1 == number => {
                paragraph.push(' ');
                paragraph.push_str(&plain);
            }
            _ => found.push((number, plain)),
        }
        last = number;
    }
    found
}

/// A line whose code spans are replaced by a placeholder, so that sentences keep their shape.
fn without_code(line: &str) -> String {
    line.split('`')
        .enumerate()
        .map(|(index, part)| if index.is_multiple_of(2) { part } else { "CODE" })
        .collect()
}

/// The part of the changelog that is not released yet: all of it before the second version.
fn unreleased(text: &str) -> &str {
    let versions: Vec<usize> = text.match_indices("\n## ").map(|(at, _)| at).collect();
    versions.get(1).map_or(text, |end| &text[..*end])
}

/// The output of `--help` for the command and all its subcommands, each with its command line.
fn help_texts() -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut left = vec![Vec::<String>::new()];
    while let Some(words) = left.pop() {
        let output = Command::new(env!("CARGO_BIN_EXE_sureq")).args(&words).arg("--help").output();
        let help = String::from_utf8(output.expect("the command runs").stdout).expect("help is text");
        if let Some((_, commands)) = help.split_once("\nCommands:\n") {
            let lines = commands.lines().take_while(|line| !line.trim().is_empty());
            let names = lines.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
            let names =
                names.filter_map(|line| line.split_whitespace().next()).filter(|name| *name != "help");
            left.extend(names.map(|name| [words.as_slice(), &[name.to_owned()]].concat()));
        }
        found.push((
            ["sureq".to_owned()].into_iter().chain(words).collect::<Vec<_>>().join(" ") + " --help",
            help,
        ));
    }
    found
}

struct Allowed(Vec<(String, String)>);

impl Allowed {
    fn read() -> Self {
        let text = include_str!("idioms-allowed.txt");
        let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
        let entries = lines.map(|line| line.split_once(": ").expect("a file, a colon and a phrase"));
        Self(entries.map(|(file, phrase)| (file.to_owned(), phrase.to_owned())).collect())
    }

    fn has(&self, file: &str, phrase: &str) -> bool {
        let covers = |entry: &str| entry == file || (entry.ends_with('/') && file.starts_with(entry));
        self.0.iter().any(|(entry, allowed)| covers(entry) && (allowed == "*" || allowed == phrase))
    }
}

#[test]
fn documents_and_help_are_free_of_idioms() {
    let allowed = Allowed::read();
    let mut texts: Vec<(String, String)> =
        documents().into_iter().map(|file| (file.clone(), read(&file))).collect();
    for (file, text) in &mut texts {
        if file == "CHANGELOG.md" {
            *text = unreleased(text).to_owned();
        }
    }
    texts.extend(help_texts());
    assert!(texts.len() > 40, "there are pages and help texts to check");
    let mut found = Vec::new();
    for (file, text) in &texts {
        for (line, phrase) in idioms(&paragraphs(prose_lines(text))) {
            if !allowed.has(file, &phrase) {
                found.push(format!("{file}:{line}: {phrase}"));
            }
        }
    }
    assert!(found.is_empty(), "{} idioms; say it plainly:\n{}", found.len(), found.join("\n"));
}

#[test]
fn comments_are_free_of_idioms() {
    let (allowed, mut found) = (Allowed::read(), Vec::new());
    for (file, language) in sources() {
        let comments = comments(language, &read(&file));
        for (line, phrase) in idioms(&paragraphs(prose(&comments))) {
            if !allowed.has(&file, &phrase) {
                found.push(format!("{file}:{line}: {phrase}"));
            }
        }
    }
    assert!(found.is_empty(), "{} idioms; say it plainly:\n{}", found.len(), found.join("\n"));
}

/// The crates whose string literals only tests and benchmarks print.
const NOT_PRODUCT: [&str; 3] = ["crates/testkit/", "crates/sim/", "crates/bench/"];

#[test]
fn texts_of_the_product_and_names_of_tests_are_free_of_idioms() {
    let (allowed, mut found) = (Allowed::read(), Vec::new());
    let mut check = |file: &str, lines: Vec<(usize, String)>| {
        for (line, phrase) in idioms(&lines) {
            if !allowed.has(file, &phrase) {
                found.push(format!("{file}:{line}: {phrase}"));
            }
        }
        lines.len()
    };
    let (mut texts, mut names) = (0, 0);
    for (file, _) in sources().into_iter().filter(|(_, language)| *language == Language::Rust) {
        let source = read(&file);
        if file.contains("/src/") && !NOT_PRODUCT.iter().any(|folder| file.starts_with(folder)) {
            texts += check(&file, literals(&source));
        }
        names += check(&file, test_names(&source));
    }
    assert!(texts > 1_000 && names > 1_000, "{texts} texts and {names} names are too few");
    assert!(found.is_empty(), "{} idioms; say it plainly:\n{}", found.len(), found.join("\n"));
}

#[test]
fn scenarios_are_free_of_idioms() {
    let (allowed, mut found) = (Allowed::read(), Vec::new());
    let scenarios = root().join("crates/testkit/scenarios");
    for entry in fs::read_dir(scenarios).expect("the directory can be read") {
        let file = relative(&entry.expect("the entry can be read").path());
        let text = read(&file);
        let comments = text.lines().enumerate();
        let comments = comments.filter_map(|(index, line)| Some((index + 1, line.strip_prefix("# ")?)));
        for (line, phrase) in idioms(&paragraphs(comments)) {
            if !allowed.has(&file, &phrase) {
                found.push(format!("{file}:{line}: {phrase}"));
            }
        }
    }
    assert!(found.is_empty(), "{} idioms; say it plainly:\n{}", found.len(), found.join("\n"));
}

#[test]
fn idioms_are_found_across_lines_and_questions_are_none() {
    let text = "# What is this\n\nWhat is it for? What a push stores is\ntold to whoever asks. `whoever`\n";
    let found = idioms(&paragraphs(prose_lines(text)));
    let found: Vec<String> = found.into_iter().map(|(_, phrase)| phrase).collect();
    assert_eq!(found, ["whoever", "is told", "What…"]);
}

/// The idioms in the comments of a source, with their lines.
fn in_comments(language: Language, text: &str) -> Vec<(usize, String)> {
    idioms(&paragraphs(prose(&comments(language, text))))
}

#[test]
fn idioms_are_found_in_comments_of_each_language_and_not_in_literals() {
    let rust = "//! What a push\n//! stores.\n\n/// Whatever\n/// comes.\nfn f() {\n    // is\n    // told\n    \
                say(\"it is told\", r#\"// is told\"#); // nobody's\n}\n";
    let expected = [(1, "What…"), (4, "Whatever…"), (7, "is told"), (9, "nobody's")];
    assert_eq!(in_comments(Language::Rust, rust), expected.map(|(line, phrase)| (line, phrase.to_owned())));
    let lua = "local s = '-- is told' -- called off\n-- is told\n";
    let expected = [(1, "called off"), (2, "is told")];
    assert_eq!(in_comments(Language::Lua, lua), expected.map(|(line, phrase)| (line, phrase.to_owned())));
    let hash = "x = '# is told' # so many\n";
    for language in [Language::Python, Language::Shell] {
        assert_eq!(in_comments(language, hash), [(1, "so many".to_owned())], "{language:?}");
    }
}
