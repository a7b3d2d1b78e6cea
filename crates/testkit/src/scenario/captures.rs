//! The names of ids and times in a scenario: `$a`, and `$a.short` for the ten-letter form of the text dialect.

use std::collections::BTreeMap;

use sureq_core::TaskId;

use super::value::Value;

/// Names and their texts.
#[derive(Clone, Debug, Default)]
pub(crate) struct Captures {
    by_name: BTreeMap<String, Value>,
    made_up: usize,
}

impl Captures {
    /// The text of a reference in a request: `$a` or `$a.short`.
    pub(crate) fn resolve(&self, reference: &str) -> Result<Vec<u8>, String> {
        let (name, is_short) = names(reference)?;
        match self.by_name.get(name) {
            None => Err(format!("${name} has not been seen yet")),
            Some(Value::Bulk(id)) if is_short => Ok(short_of(id)?),
            Some(Value::Bulk(bytes)) => Ok(bytes.clone()),
            Some(other) => Ok(other.to_string().into_bytes()),
        }
    }

    /// Whether `$name` plus a number is this value; a new name gets the value. Two names never have the same text: no
    /// id is assigned twice.
    pub(crate) fn meet(&mut self, name: &str, plus: i64, value: &Value) -> Result<(), String> {
        match (self.by_name.get(name), value) {
            (Some(Value::Int(known)), Value::Int(n)) if known.wrapping_add(plus) == *n => Ok(()),
            (Some(known), value) if plus == 0 && known == value => Ok(()),
            (Some(known), _) => Err(format!("${name} is {known}")),
            (None, Value::Int(n)) => self.learn(name, Value::Int(n.wrapping_sub(plus))),
            (None, Value::Bulk(_)) => match self.name_of(value) {
                Some(other) => Err(format!("${name} is the same as ${other}")),
                None => self.learn(name, value.clone()),
            },
            (None, other) => Err(format!("{other} is nothing that has a name")),
        }
    }

    /// The same for a word of a text line.
    pub(crate) fn meet_word(&mut self, reference: &str, word: &[u8]) -> Result<(), String> {
        let (name, is_short) = names(reference)?;
        let value = if is_short {
            let id = TaskId::parse_short(word).ok_or("not the ten letters of an id")?;
            id.to_string().into_bytes()
        } else {
            word.to_vec()
        };
        self.meet(name, 0, &Value::Bulk(value))
    }

    /// The value with names in place of its ids; ids without a name get one.
    pub(crate) fn render(&mut self, value: &Value) -> String {
        match value {
            Value::Array(items) => {
                let items: Vec<_> = items.iter().map(|item| self.render(item)).collect();
                format!("[{}]", items.join(" "))
            }
            Value::Bulk(bytes) => match self.name_or_new(bytes) {
                Some(name) => format!("${name}"),
                None => value.to_string(),
            },
            Value::Line(line) => {
                let text = value.to_string();
                let words = line.split(|&c| c == b' ');
                let ids = words.filter_map(|word| Some((word, TaskId::parse_short(word)?)));
                ids.fold(text, |text, (word, id)| match self.name_or_new(id.to_string().as_bytes()) {
                    Some(name) => text.replace(&*String::from_utf8_lossy(word), &format!("${name}.short")),
                    None => text,
                })
            }
            other => other.to_string(),
        }
    }

    fn name_or_new(&mut self, bytes: &[u8]) -> Option<String> {
        let value = Value::Bulk(bytes.to_vec());
        if let Some(name) = self.name_of(&value) {
            return Some(name.to_owned());
        }
        // Only ids of a plausible time: other texts must not be hidden behind a name.
        TaskId::parse(bytes).filter(|id| id.ms() > 1_000_000_000_000)?;
        self.made_up += 1;
        let name = format!("id{}", self.made_up);
        self.by_name.insert(name.clone(), value);
        Some(name)
    }

    fn name_of(&self, value: &Value) -> Option<&str> {
        self.by_name.iter().find(|(_, known)| *known == value).map(|(name, _)| &**name)
    }

    #[expect(clippy::unnecessary_wraps, reason = "one arm of a match whose others can fail")]
    fn learn(&mut self, name: &str, value: Value) -> Result<(), String> {
        self.by_name.insert(name.to_owned(), value);
        Ok(())
    }
}

/// The name after the dollar, and whether the short form is meant.
fn names(reference: &str) -> Result<(&str, bool), String> {
    let name = reference.strip_prefix('$').ok_or("a reference begins with $")?;
    let (name, is_short) = name.strip_suffix(".short").map_or((name, false), |name| (name, true));
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
    if name.is_empty() || !name.chars().all(plain) {
        return Err(format!("{reference} is no name"));
    }
    Ok((name, is_short))
}

fn short_of(id: &[u8]) -> Result<Vec<u8>, String> {
    let id = TaskId::parse(id).ok_or("only an id has a short spelling")?;
    Ok(id.short().to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bulk(text: &str) -> Value {
        Value::Bulk(text.as_bytes().to_vec())
    }

    #[test]
    fn a_name_stands_for_its_first_match() {
        let mut captures = Captures::default();
        captures.meet("a", 0, &bulk("1767225600000-1")).unwrap();
        captures.meet("a", 0, &bulk("1767225600000-1")).unwrap();
        assert!(captures.meet("a", 0, &bulk("1767225600000-2")).is_err());
        assert_eq!(captures.meet("b", 0, &bulk("1767225600000-1")).unwrap_err(), "$b is the same as $a");
        let short = captures.resolve("$a.short").unwrap();
        captures.meet_word("$a.short", &short).unwrap();
        assert!(captures.meet_word("$a.short", b"0000000001").is_err());
        assert_eq!(captures.resolve("$a").unwrap(), b"1767225600000-1");
        assert!(captures.resolve("$nobody").is_err());
    }

    #[test]
    fn times_match_by_their_distance() {
        let mut captures = Captures::default();
        captures.meet("t", 0, &Value::Int(1_000)).unwrap();
        captures.meet("t", 500, &Value::Int(1_500)).unwrap();
        assert!(captures.meet("t", 500, &Value::Int(1_501)).is_err());
    }

    #[test]
    fn a_rendered_reply_names_its_ids() {
        let mut captures = Captures::default();
        captures.meet("a", 0, &bulk("1767225600000-1")).unwrap();
        let reply =
            Value::Array(vec![bulk("q"), bulk("1767225600000-1"), bulk("1767225600000-2"), bulk("7-1")]);
        assert_eq!(captures.render(&reply), "[q $a $id1 \"7-1\"]");
        let line = [b"TASK ", &*captures.resolve("$a.short").unwrap(), b" BODY x"].concat();
        assert_eq!(captures.render(&Value::Line(line)), "TASK $a.short BODY x");
    }
}
