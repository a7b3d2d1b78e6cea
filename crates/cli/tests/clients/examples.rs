//! The examples of docs/reference/commands.md, run in redis-cli, print the documented output.

use std::collections::HashMap;

use sureq_proto::verbs::TABLE;

use crate::Fixture;
use crate::redis_cli::redis_cli;

/// Shorter numbers are compared literally; longer ones are ids or times.
const NAMED_DIGITS: usize = 4;

/// Numbers of an example, and the values that they have in this run.
#[derive(Default)]
struct Numbers(HashMap<String, String>);

impl Numbers {
    /// A command with the numbers of this run.
    fn translate(&self, command: &str) -> String {
        let pieces = pieces(command);
        pieces.into_iter().map(|piece| self.0.get(piece).map_or(piece, String::as_str)).collect()
    }

    /// Whether a line matches the expected one; first learns the numbers in it.
    fn agree(&mut self, expected: &str, seen: &str) -> bool {
        let (expected, seen) = (pieces(expected), pieces(seen));
        let mut pairs = expected.iter().zip(&seen);
        expected.len() == seen.len()
            && pairs.all(|(&expected, &seen)| {
                if is_named(expected) && is_number(seen) {
                    *self.0.entry(expected.to_owned()).or_insert_with(|| seen.to_owned()) == seen
                } else {
                    expected == seen
                }
            })
    }
}

fn is_number(piece: &str) -> bool {
    !piece.is_empty() && piece.bytes().all(|c| c.is_ascii_digit())
}

fn is_named(piece: &str) -> bool {
    is_number(piece) && piece.len() >= NAMED_DIGITS
}

/// The numbers of a line and the text between them.
fn pieces(line: &str) -> Vec<&str> {
    let mut pieces = Vec::new();
    let mut rest = line;
    while let Some(first) = rest.chars().next() {
        let digits = first.is_ascii_digit();
        let (piece, behind) =
            rest.split_at(rest.find(|c: char| c.is_ascii_digit() != digits).unwrap_or(rest.len()));
        pieces.push(piece);
        rest = behind;
    }
    pieces
}

/// Splits a command into words; those in quotes may contain spaces.
fn words(command: &str) -> Vec<&str> {
    let parts = command.split('"').enumerate();
    parts
        .flat_map(|(at, part)| {
            if at % 2 == 1 { vec![part] } else { part.split(' ').filter(|word| !word.is_empty()).collect() }
        })
        .collect()
}

#[test]
fn every_example_prints_the_output_on_its_page() {
    // A subscriber continues to listen: `redis_cli_listens` covers that.
    for row in TABLE.iter().filter(|row| !["SUBSCRIBE", "PSUBSCRIBE"].contains(&row.name)) {
        let (it, mut numbers) = (Fixture::start(), Numbers::default());
        let example = row.example.strip_prefix("> ").expect("an example begins with a command");
        for part in example.split("\n> ") {
            let (command, shown) = part.split_once('\n').unwrap_or((part, ""));
            let seen = redis_cli(&it, &words(&numbers.translate(command)), b"");
            let (mut shown, mut seen_lines) = (shown.trim_end().lines().peekable(), seen.lines());
            while let Some(line) = shown.next_if(|line| *line != "...") {
                let seen_line = seen_lines.next().unwrap_or_default().trim_end();
                assert!(
                    numbers.agree(line, seen_line),
                    "{}: {command}\nexpected {line:?}\n     saw {seen_line:?} in\n{seen}",
                    row.name
                );
            }
            let rest = seen_lines.find(|line| !line.is_empty());
            assert!(
                shown.next().is_some() == rest.is_some(),
                "{}: {command} also answers {rest:?}",
                row.name
            );
        }
    }
}
