//! The expectation for a reply in a scenario.

use super::captures::Captures;
use super::value::Value;
use super::words::{Word, split};

/// The expected form of a reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Pattern {
    /// `_`: any reply.
    Any,
    /// Exactly this reply.
    Is(Value),
    /// `-ERR beginning...`
    ErrorLike(String),
    /// `$name`, `$name+500`
    Named { name: String, plus: i64 },
    /// `[a b]`; `[a b ...]` may have more.
    Array { items: Vec<Pattern>, open: bool },
    /// `{name value}`; `{name value ...}` may have more.
    Map { items: Vec<Pattern>, open: bool },
    /// A line of the text dialect, in which `_` and `$name.short` may replace words.
    Line(Vec<u8>),
}

impl Pattern {
    /// Parses the expectation of a RESP reply. `None` if its brackets are still open: it continues in the next line.
    pub(crate) fn parse_resp(text: &str) -> Result<Option<Self>, String> {
        let line = text.trim();
        if let Some(error) =
            line.strip_prefix('-').filter(|rest| rest.starts_with(|c: char| c.is_alphabetic()))
        {
            let beginning = error.strip_suffix("...").map(|start| Self::ErrorLike(start.to_owned()));
            return Ok(Some(beginning.unwrap_or_else(|| Self::Is(Value::Error(error.to_owned())))));
        }
        let words = split(line)?;
        let mut rest = &words[..];
        match one(&mut rest)? {
            Some(_) if !rest.is_empty() => Err("there are more words after the reply".to_owned()),
            pattern => Ok(pattern),
        }
    }

    /// Parses the expectation of a text line.
    pub(crate) fn parse_line(text: &str) -> Result<Self, String> {
        super::line_bytes(text).map(Self::Line)
    }

    /// Checks a reply against the expectation, and learns new names; the error is the reason for a mismatch.
    pub(crate) fn meet(&self, value: &Value, captures: &mut Captures) -> Result<(), String> {
        match (self, value) {
            (Self::Any, _) => Ok(()),
            (Self::Is(expected), value) if expected == value => Ok(()),
            (Self::ErrorLike(start), Value::Error(text)) if text.starts_with(start) => Ok(()),
            (Self::Named { name, plus }, value) => captures.meet(name, *plus, value),
            (Self::Array { items, open }, Value::Array(values)) => {
                meet_all(items, *open, &values.iter().collect::<Vec<_>>(), captures)
            }
            (Self::Map { items, open }, Value::Map(entries)) => {
                let flat: Vec<&Value> = entries.iter().flat_map(|(key, value)| [key, value]).collect();
                meet_all(items, *open, &flat, captures)
            }
            (Self::Line(expected), Value::Line(line)) => meet_line(expected, line, captures),
            _ => Err(String::new()),
        }
    }
}

fn meet_all(items: &[Pattern], open: bool, values: &[&Value], captures: &mut Captures) -> Result<(), String> {
    if values.len() < items.len() || (values.len() > items.len() && !open) {
        return Err(format!("{} elements instead of {}", values.len(), items.len()));
    }
    items.iter().zip(values).try_for_each(|(item, value)| item.meet(value, captures))
}

fn meet_line(expected: &[u8], line: &[u8], captures: &mut Captures) -> Result<(), String> {
    let expected: Vec<&[u8]> = expected.split(|&c| c == b' ').collect();
    let words: Vec<&[u8]> = line.split(|&c| c == b' ').collect();
    if expected.len() != words.len() {
        return Err(String::new());
    }
    expected.iter().zip(words).try_for_each(|(expected, word)| match *expected {
        b"_" => Ok(()),
        [b'$', ..] => captures.meet_word(&String::from_utf8_lossy(expected), word),
        expected if expected == word => Ok(()),
        _ => Err(String::new()),
    })
}

/// Reads one value from the front; `None` if the words end before it does.
fn one(words: &mut &[Word]) -> Result<Option<Pattern>, String> {
    let Some((word, rest)) = words.split_first() else { return Ok(None) };
    *words = rest;
    let word = match word {
        Word::Quoted(bytes) => return Ok(Some(Pattern::Is(Value::Bulk(bytes.clone())))),
        Word::Bare(word) => word.as_str(),
    };
    Ok(Some(match word {
        "_" => Pattern::Any,
        "null" => Pattern::Is(Value::Null),
        "[" => return Ok(many(words, "]")?.map(|(items, open)| Pattern::Array { items, open })),
        "{" => return Ok(many(words, "}")?.map(|(items, open)| Pattern::Map { items, open })),
        "]" | "}" | "..." => return Err(format!("unexpected {word}")),
        _ if word.starts_with('$') => named(&word[1..])?,
        _ if word.starts_with('+') => Pattern::Is(Value::Simple(word[1..].to_owned())),
        _ => match word.parse() {
            Ok(n) => Pattern::Is(Value::Int(n)),
            Err(_) => Pattern::Is(Value::Bulk(word.as_bytes().to_vec())),
        },
    }))
}

/// Reads values up to a bracket.
fn many(words: &mut &[Word], end: &str) -> Result<Option<(Vec<Pattern>, bool)>, String> {
    let mut items = Vec::new();
    loop {
        match words.first() {
            Some(Word::Bare(word)) if word == end => {
                *words = &words[1..];
                return Ok(Some((items, false)));
            }
            Some(Word::Bare(word)) if word == "..." => {
                *words = &words[1..];
                return match words.split_first() {
                    Some((Word::Bare(word), rest)) if word == end => {
                        *words = rest;
                        Ok(Some((items, true)))
                    }
                    Some(_) => Err("... must be the last element".to_owned()),
                    None => Ok(None),
                };
            }
            Some(_) => match one(words)? {
                Some(item) => items.push(item),
                None => return Ok(None),
            },
            None => return Ok(None),
        }
    }
}

fn named(reference: &str) -> Result<Pattern, String> {
    let Some((name, plus)) = reference.split_once('+') else {
        return Ok(Pattern::Named { name: reference.to_owned(), plus: 0 });
    };
    let plus = plus.parse().map_err(|_| format!("${reference}: expected a number after +"))?;
    Ok(Pattern::Named { name: name.to_owned(), plus })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(expected: &str, value: &Value, is_met: bool) {
        let pattern = Pattern::parse_resp(expected).unwrap().unwrap();
        let met = pattern.meet(value, &mut Captures::default());
        assert_eq!(met.is_ok(), is_met, "{expected} against {value}: {met:?}");
    }

    #[test]
    fn a_pattern_matches_only_its_replies() {
        let bulk = |text: &str| Value::Bulk(text.as_bytes().to_vec());
        let task = Value::Array(vec![bulk("q"), bulk("7-1"), Value::Int(7)]);
        check("[q $a 7]", &task, true);
        check("[\"q\" _ 7]", &task, true);
        check("[q ...]", &task, true);
        check("[q $a 7 ...]", &task, true);
        check("[q $a \"7\"]", &task, false);
        check("[q $a]", &task, false);
        check("[q $a $a]", &task, false);
        check("[q $a 7 8]", &task, false);
        check("{q 1}", &Value::Map(vec![(bulk("q"), Value::Int(1))]), true);
        check("[q 1]", &Value::Map(vec![(bulk("q"), Value::Int(1))]), false);
        check("-ERR no", &Value::Error("ERR no".into()), true);
        check("-ERR no", &Value::Error("ERR nonsense".into()), false);
        check("-ERR no...", &Value::Error("ERR nonsense".into()), true);
        check("-5", &Value::Int(-5), true);
        check("+OK", &Value::Simple("OK".into()), true);
        check("OK", &Value::Simple("OK".into()), false);
        check("null", &Value::Null, true);
        check("\"null\"", &Value::Null, false);
    }

    #[test]
    fn open_brackets_need_another_line() {
        assert_eq!(Pattern::parse_resp("[[a]"), Ok(None));
        assert_eq!(Pattern::parse_resp("[a ..."), Ok(None));
        for bad in ["]", "[a] b", "[... a]", "..."] {
            assert!(Pattern::parse_resp(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_line_may_have_wildcard_words() {
        let meets = |expected: &str, line: &str| {
            let pattern = Pattern::parse_line(expected).unwrap();
            pattern.meet(&Value::Line(line.into()), &mut Captures::default()).is_ok()
        };
        assert!(meets("TASKS 1 HEAP _", "TASKS 1 HEAP 1.25m"));
        assert!(!meets("TASKS 1 HEAP _", "TASKS 2 HEAP 1.25m"));
        assert!(!meets("nil", "nil "));
        assert!(meets("\"TASK $a.short BODY \"", "TASK 00abcdefgh BODY "));
    }
}
