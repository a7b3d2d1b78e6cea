//! Options: words that stand in any order, most of them with a value behind them.
//!
//! An error names the option that it is about, so that whoever typed it need not guess.

use std::ops::RangeInclusive;

use super::error::{UsageError, quoted};
use crate::decimal::{read_i64, read_u64};
use sureq_core::limits::SPAN_MS_MAX;

/// How much of a word that is no option, or no setting, an error repeats.
pub(super) const QUOTED_WORD_BYTES_MAX: usize = 32;

/// Spans that may be nothing.
pub(super) const SPAN: RangeInclusive<u64> = 0..=SPAN_MS_MAX;

/// Spans that may not.
pub(super) const LASTING: RangeInclusive<u64> = 1..=SPAN_MS_MAX;

/// The words of a command that have not been read yet.
pub(super) struct Words<'a> {
    rest: &'a [&'a [u8]],
}

impl<'a> Words<'a> {
    pub(super) const fn new(rest: &'a [&'a [u8]]) -> Self {
        Self { rest }
    }

    /// All of them.
    pub(super) const fn rest(&self) -> &'a [&'a [u8]] {
        self.rest
    }

    /// The next word.
    pub(super) const fn next(&mut self) -> Option<&'a [u8]> {
        let [word, rest @ ..] = self.rest else { return None };
        self.rest = rest;
        Some(word)
    }

    /// The value of an option.
    pub(super) fn value(&mut self, option: &str) -> Result<&'a [u8], UsageError> {
        self.next().ok_or_else(|| UsageError::new(format!("ERR {option} needs a value behind it")))
    }

    /// The value of an option that is a number.
    pub(super) fn number(&mut self, option: &str, range: RangeInclusive<u64>) -> Result<u64, UsageError> {
        number(option, self.value(option)?, range)
    }

    /// The value of an option that may be below zero.
    pub(super) fn signed(&mut self, option: &str, range: RangeInclusive<i64>) -> Result<i64, UsageError> {
        let (low, high) = (*range.start(), *range.end());
        let n = read_i64(self.value(option)?).filter(|n| range.contains(n));
        n.ok_or_else(|| UsageError::new(format!("ERR {option} must be an integer from {low} to {high}")))
    }
}

/// A number within a range.
pub(super) fn number(option: &str, text: &[u8], range: RangeInclusive<u64>) -> Result<u64, UsageError> {
    let (low, high) = (*range.start(), *range.end());
    let n = read_u64(text).filter(|n| range.contains(n));
    n.ok_or_else(|| UsageError::new(format!("ERR {option} must be an integer from {low} to {high}")))
}

/// Puts the value of an option in its place, which is empty unless the option was given before.
pub(super) fn once<T>(place: &mut Option<T>, option: &str, value: T) -> Result<(), UsageError> {
    if place.replace(value).is_some() {
        return Err(UsageError::new(format!("ERR {option} is given twice")));
    }
    Ok(())
}

/// Refuses two options that exclude each other.
pub(super) fn not_both(first: (&str, bool), second: (&str, bool)) -> Result<(), UsageError> {
    if first.1 && second.1 {
        return Err(UsageError::new(format!("ERR {} and {} exclude each other", first.0, second.0)));
    }
    Ok(())
}

/// A word that is none of the options.
#[cold]
pub(super) fn unknown(word: &[u8], options: &str) -> UsageError {
    let word = quoted(word, QUOTED_WORD_BYTES_MAX);
    UsageError::new(format!("ERR unknown option '{word}': expected {options}"))
}

/// Whether the word is this option.
pub(super) const fn is(word: &[u8], option: &str) -> bool {
    word.eq_ignore_ascii_case(option.as_bytes())
}
