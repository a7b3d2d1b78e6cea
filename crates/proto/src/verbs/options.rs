//! Reads and writes the options of a command by their declaration.
//!
//! Each error names the option that it is about.

use std::ops::RangeInclusive;

use super::args::{Kind, OPTIONS_MAX, Opt, Options};
use super::error::{UsageError, quoted};
use super::worker;
use crate::command_encoder::CommandWords;
use crate::decimal::{read_i64, read_u64};
use sureq_core::command::WorkerRef;

/// The maximum number of bytes of an unknown word that an error repeats.
const QUOTED_WORD_BYTES_MAX: usize = 32;

#[derive(Clone, Copy, Debug)]
pub(super) enum Value<'a> {
    Flag,
    Text(&'a [u8]),
    Number(u64),
    Signed(i64),
    Worker(WorkerRef<'a>),
}

/// The options that were given, by their index in the list.
#[derive(Clone, Copy, Debug)]
pub(super) struct Given<'a> {
    options: &'static Options,
    values: [Option<Value<'a>>; OPTIONS_MAX],
}

impl<'a> Given<'a> {
    pub(super) const fn none(options: &'static Options) -> Self {
        Self { options, values: [None; OPTIONS_MAX] }
    }

    /// Reads options up to the last word.
    pub(super) fn read(options: &'static Options, words: &'a [&'a [u8]]) -> Result<Self, UsageError> {
        let mut given = Self::none(options);
        let mut rest = words;
        while let Some(word) = rest.first() {
            if !given.take(&mut rest)? {
                return Err(unknown(word, options.list));
            }
        }
        given.check()?;
        Ok(given)
    }

    /// Reads one option and its value from the start of `words`. Returns false if there is none.
    #[inline]
    pub(super) fn take(&mut self, words: &mut &'a [&'a [u8]]) -> Result<bool, UsageError> {
        let [word, rest @ ..] = *words else { return Ok(false) };
        let Some(at) = self.options.find(word) else { return Ok(false) };
        let opt = &self.options.list[at];
        let value = match opt.args {
            [] => {
                *words = rest;
                Value::Flag
            }
            [arg, ..] => {
                let [value, rest @ ..] = rest else { return Err(UsageError::no_value(opt.name)) };
                *words = rest;
                read_value(opt.name, &arg.kind, value)?
            }
        };
        self.put(at, value)?;
        Ok(true)
    }

    /// Adds a value that the caller has read.
    #[inline]
    pub(super) fn put(&mut self, at: usize, value: Value<'a>) -> Result<(), UsageError> {
        if self.values[at].replace(value).is_some() {
            return Err(UsageError::given_twice(self.options.list[at].name));
        }
        Ok(())
    }

    /// Refuses options that exclude each other.
    pub(super) fn check(&self) -> Result<(), UsageError> {
        let list = self.options.list;
        for &(one, other) in self.options.exclusive() {
            if self.has(one) && self.has(other) {
                return Err(exclude_each_other(list[one].name, list[other].name));
            }
        }
        Ok(())
    }

    pub(super) const fn has(&self, at: usize) -> bool {
        self.values[at].is_some()
    }

    pub(super) const fn text(&self, at: usize) -> Option<&'a [u8]> {
        match self.values[at] {
            Some(Value::Text(text)) => Some(text),
            _ => None,
        }
    }

    pub(super) const fn number(&self, at: usize) -> Option<u64> {
        match self.values[at] {
            Some(Value::Number(n)) => Some(n),
            _ => None,
        }
    }

    pub(super) const fn signed(&self, at: usize) -> Option<i64> {
        match self.values[at] {
            Some(Value::Signed(n)) => Some(n),
            _ => None,
        }
    }

    pub(super) const fn worker(&self, at: usize) -> Option<WorkerRef<'a>> {
        match self.values[at] {
            Some(Value::Worker(worker)) => Some(worker),
            _ => None,
        }
    }

    /// Sets an option, or removes it if there is no value.
    pub(super) const fn set(&mut self, at: usize, value: Option<Value<'a>>) {
        self.values[at] = value;
    }

    /// Appends the options that are set, in the order of the syntax line.
    pub(super) fn write(&self, words: &mut CommandWords) {
        for (opt, value) in self.options.list.iter().zip(&self.values) {
            let Some(value) = value else { continue };
            words.word(opt.name);
            match *value {
                Value::Flag => {}
                Value::Text(text) => _ = words.word(text),
                Value::Number(n) => _ = words.number(n),
                Value::Signed(n) => _ = words.signed(n),
                Value::Worker(worker) => _ = words.worker(worker),
            }
        }
    }
}

/// The index of the option with this word.
pub(super) fn find(list: &[Opt], word: &[u8]) -> Option<usize> {
    list.iter().position(|opt| is(word, opt.name))
}

#[inline]
fn read_value<'a>(name: &str, kind: &Kind, word: &'a [u8]) -> Result<Value<'a>, UsageError> {
    Ok(match *kind {
        Kind::Number(low, high) => Value::Number(number(name, word, low..=high)?),
        Kind::Signed(low, high) => {
            let n = read_i64(word).filter(|n| (low..=high).contains(n));
            Value::Signed(n.ok_or_else(|| UsageError::out_of_range(name, low, high))?)
        }
        Kind::Worker => Value::Worker(worker::read(word)?),
        _ => Value::Text(word),
    })
}

/// Reads a number within a range.
#[inline]
pub(super) fn number(name: &str, word: &[u8], range: RangeInclusive<u64>) -> Result<u64, UsageError> {
    let (low, high) = (*range.start(), *range.end());
    read_u64(word).filter(|n| range.contains(n)).ok_or_else(|| UsageError::out_of_range(name, low, high))
}

/// Refuses two options that exclude each other.
pub(super) fn not_both(first: (&str, bool), second: (&str, bool)) -> Result<(), UsageError> {
    if first.1 && second.1 { Err(exclude_each_other(first.0, second.0)) } else { Ok(()) }
}

#[cold]
fn exclude_each_other(one: &str, other: &str) -> UsageError {
    UsageError::new(format!("ERR {one} and {other} exclude each other"))
}

/// The error for a word that is none of the options.
#[cold]
pub(super) fn unknown(word: &[u8], options: &[Opt]) -> UsageError {
    let names: Vec<&str> = options.iter().map(|opt| opt.name).collect();
    unknown_word(word, &names)
}

/// The error for a word that is none of these.
#[cold]
pub(super) fn unknown_word(word: &[u8], expected: &[&str]) -> UsageError {
    let word = quoted(word, QUOTED_WORD_BYTES_MAX);
    let expected = match expected {
        [] => String::new(),
        [only] => (*only).to_owned(),
        [some @ .., last] => format!("{} or {last}", some.join(", ")),
    };
    UsageError::new(format!("ERR unknown option '{word}': expected {expected}"))
}

/// Whether the word is this option. Case does not matter.
pub(super) const fn is(word: &[u8], option: &str) -> bool {
    word.eq_ignore_ascii_case(option.as_bytes())
}
