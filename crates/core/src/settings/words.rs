//! Settings as text: their names, and how values are parsed. All dialects use these names.

use core::fmt;

use super::{Change, Expired, Overflow, Settings};
use crate::id::decimal;
use crate::limits::{QUEUE_NAME_BYTES_MAX, SPAN_MS_MAX};

/// The maximum number of bytes of an unknown word that an error shows.
const QUOTED_BYTES_MAX: usize = 32;

/// Changes of settings, as values or as text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Changes<'a> {
    List(&'a [Change<'a>]),
    /// Text that has been validated.
    Words(SettingWords<'a>),
}

impl<'a> Changes<'a> {
    pub fn iter(self) -> impl Iterator<Item = Change<'a>> {
        let (list, words) = match self {
            Self::List(list) => (list, SettingWords { words: &[] }),
            Self::Words(words) => (&[][..], words),
        };
        list.iter().copied().chain(words.iter())
    }

    /// Whether there are no changes.
    pub const fn is_empty(self) -> bool {
        match self {
            Self::List(list) => list.is_empty(),
            Self::Words(SettingWords { words }) => words.is_empty(),
        }
    }
}

/// Pairs of a name and a valid value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SettingWords<'a> {
    words: &'a [&'a [u8]],
}

/// The reason why words are not settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadSetting<'a> {
    /// There is no setting of this name.
    Unknown(&'a [u8]),
    /// This setting occurs twice.
    Twice(&'static str),
    /// This setting has no value.
    NoValue(&'static str),
    /// The value of this setting is invalid.
    BadValue {
        name: &'static str,
        /// A description of the valid values.
        wanted: &'static str,
    },
}

impl fmt::Display for BadSetting<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Unknown(word) => {
                let cut = &word[..word.len().min(QUOTED_BYTES_MAX)];
                write!(f, "unknown setting '{}': expected one of ", cut.escape_ascii())?;
                for (at, name) in SettingWords::NAMES.iter().enumerate() {
                    write!(f, "{}{name}", if at > 0 { ", " } else { "" })?;
                }
                Ok(())
            }
            Self::Twice(name) => write!(f, "{name} is given twice"),
            Self::NoValue(name) => write!(f, "{name} needs a value"),
            Self::BadValue { name, wanted } => write!(f, "{name} must be {wanted}"),
        }
    }
}

/// The parser of one setting.
struct Kind {
    name: &'static str,
    wanted: &'static str,
    read: for<'a> fn(&'a [u8]) -> Option<Change<'a>>,
}

const MILLISECONDS: &str = "milliseconds, from 1 to 3162240000000, or 0 for the default";
const NUMBER: &str = "a number, or 0 for no limit";

const KINDS: [Kind; 10] = [
    Kind { name: "LEASE", wanted: MILLISECONDS, read: |value| Some(Change::LeaseMs(span(value)?)) },
    Kind {
        name: "TRIES",
        wanted: "a number up to 4294967295, or 0 for the default",
        read: |value| Some(Change::Tries(decimal(value)?.try_into().ok()?)),
    },
    Kind { name: "BACKOFF", wanted: MILLISECONDS, read: |value| Some(Change::BackoffMs(span(value)?)) },
    Kind { name: "TTL", wanted: MILLISECONDS, read: |value| Some(Change::TtlMs(span(value)?)) },
    Kind { name: "MAX-LENGTH", wanted: NUMBER, read: |value| Some(Change::MaxLength(decimal(value)?)) },
    Kind { name: "MAX-BYTES", wanted: NUMBER, read: |value| Some(Change::MaxBytes(decimal(value)?)) },
    Kind { name: "MAX-LEASED", wanted: NUMBER, read: |value| Some(Change::MaxLeased(decimal(value)?)) },
    Kind {
        name: "EXPIRED",
        wanted: "delete or dead",
        read: |value| match value {
            value if value.eq_ignore_ascii_case(b"delete") => Some(Change::Expired(Expired::Delete)),
            value if value.eq_ignore_ascii_case(b"dead") => Some(Change::Expired(Expired::Dead)),
            _ => None,
        },
    },
    Kind {
        name: "OVERFLOW",
        wanted: "refuse or drop-oldest",
        read: |value| match value {
            value if value.eq_ignore_ascii_case(b"refuse") => Some(Change::Overflow(Overflow::Refuse)),
            value if value.eq_ignore_ascii_case(b"drop-oldest") => {
                Some(Change::Overflow(Overflow::DropOldest))
            }
            _ => None,
        },
    },
    Kind {
        name: "DEAD-LETTER",
        wanted: "the name of a queue, or empty for none",
        read: |value| (value.len() <= QUEUE_NAME_BYTES_MAX).then_some(Change::DeadLetter(value)),
    },
];

fn span(value: &[u8]) -> Option<u64> {
    decimal(value).filter(|&ms| ms <= SPAN_MS_MAX)
}

impl<'a> SettingWords<'a> {
    /// The names of all settings, in the order in which they are shown.
    pub const NAMES: [&'static str; KINDS.len()] = {
        let mut names = [""; KINDS.len()];
        let mut at = 0;
        while at < names.len() {
            names[at] = KINDS[at].name;
            at += 1;
        }
        names
    };

    /// Parses all of the words. If one is invalid, none is accepted.
    pub fn read(words: &'a [&'a [u8]]) -> Result<Self, BadSetting<'a>> {
        let mut seen = [false; KINDS.len()];
        for pair in words.chunks(2) {
            let at = position(pair[0]).ok_or(BadSetting::Unknown(pair[0]))?;
            let Kind { name, wanted, read } = KINDS[at];
            if core::mem::replace(&mut seen[at], true) {
                return Err(BadSetting::Twice(name));
            }
            let value = pair.get(1).ok_or(BadSetting::NoValue(name))?;
            read(value).ok_or(BadSetting::BadValue { name, wanted })?;
        }
        Ok(Self { words })
    }

    fn iter(self) -> impl Iterator<Item = Change<'a>> {
        self.words.chunks_exact(2).filter_map(|pair| (KINDS[position(pair[0])?].read)(pair[1]))
    }
}

fn position(name: &[u8]) -> Option<usize> {
    KINDS.iter().position(|kind| kind.name.as_bytes().eq_ignore_ascii_case(name))
}

/// The displayed value of a setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SettingValue<'a> {
    /// A number; 0 means the default.
    Number(u64),
    /// A word or a name.
    Word(&'a [u8]),
}

const fn expired_word(expired: Expired) -> &'static [u8] {
    match expired {
        Expired::Delete => b"delete",
        Expired::Dead => b"dead",
    }
}

const fn overflow_word(overflow: Overflow) -> &'static [u8] {
    match overflow {
        Overflow::Refuse => b"refuse",
        Overflow::DropOldest => b"drop-oldest",
    }
}

impl<'a> Change<'a> {
    /// The name and the new value, as text.
    pub const fn name_and_value(&self) -> (&'static str, SettingValue<'a>) {
        let (at, value) = match *self {
            Change::LeaseMs(ms) => (0, SettingValue::Number(ms)),
            Change::Tries(n) => (1, SettingValue::Number(n as u64)),
            Change::BackoffMs(ms) => (2, SettingValue::Number(ms)),
            Change::TtlMs(ms) => (3, SettingValue::Number(ms)),
            Change::MaxLength(n) => (4, SettingValue::Number(n)),
            Change::MaxBytes(n) => (5, SettingValue::Number(n)),
            Change::MaxLeased(n) => (6, SettingValue::Number(n)),
            Change::Expired(expired) => (7, SettingValue::Word(expired_word(expired))),
            Change::Overflow(overflow) => (8, SettingValue::Word(overflow_word(overflow))),
            Change::DeadLetter(name) => (9, SettingValue::Word(name)),
        };
        (KINDS[at].name, value)
    }
}

impl Settings {
    /// The values, in the order of [`SettingWords::NAMES`].
    pub fn values(&self) -> [SettingValue<'_>; KINDS.len()] {
        let number = |n: Option<u64>| SettingValue::Number(n.unwrap_or(0));
        [
            number(self.lease_ms),
            number(self.tries.map(u64::from)),
            number(self.backoff_ms),
            number(self.ttl_ms),
            number(self.max_length),
            number(self.max_bytes),
            number(self.max_leased),
            SettingValue::Word(expired_word(self.expired)),
            SettingValue::Word(overflow_word(self.overflow)),
            SettingValue::Word(self.dead_letter.as_deref().unwrap_or_default()),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    /// Parsing the text of settings yields the same settings.
    #[test]
    fn displayed_settings_parse_to_themselves() {
        let mut settings = Settings::default();
        let words: [&[u8]; 20] = [
            b"lease",
            b"1",
            b"Tries",
            b"2",
            b"BACKOFF",
            b"3",
            b"ttl",
            b"4",
            b"max-length",
            b"5",
            b"max-bytes",
            b"6",
            b"max-leased",
            b"7",
            b"expired",
            b"Dead",
            b"overflow",
            b"DROP-OLDEST",
            b"dead-letter",
            b"d",
        ];
        let changes = Changes::Words(SettingWords::read(&words).unwrap());
        assert!(!changes.is_empty());
        changes.iter().for_each(|change| settings.change(&change));
        for (change, name) in changes.iter().zip(SettingWords::NAMES) {
            assert_eq!(change.name_and_value().0, name, "{change:?}");
        }
        let text_of = |value: SettingValue<'_>| match value {
            SettingValue::Number(n) => alloc::format!("{n}").into_bytes(),
            SettingValue::Word(word) => word.to_ascii_lowercase(),
        };
        let texts: Vec<Vec<u8>> = settings.values().map(text_of).into();
        let typed: Vec<Vec<u8>> = words.chunks(2).map(|pair| pair[1].to_ascii_lowercase()).collect();
        assert_eq!(texts, typed);
        let texts: Vec<Vec<u8>> = changes.iter().map(|change| text_of(change.name_and_value().1)).collect();
        assert_eq!(texts, typed);
    }

    #[test]
    fn each_kind_of_bad_word_has_its_error() {
        fn check(words: &[&[u8]], bad: BadSetting<'_>) {
            assert_eq!(SettingWords::read(words), Err(bad));
        }
        check(&[b"colour", b"red"], BadSetting::Unknown(b"colour"));
        check(&[b"ttl", b"1", b"TTL", b"2"], BadSetting::Twice("TTL"));
        check(&[b"ttl", b"1", b"lease"], BadSetting::NoValue("LEASE"));
        for (name, value) in [("LEASE", "-1"), ("TTL", "3162240000001"), ("BACKOFF", "1s"), ("LEASE", "")] {
            check(&[name.as_bytes(), value.as_bytes()], BadSetting::BadValue { name, wanted: MILLISECONDS });
        }
        let wanted = "a number up to 4294967295, or 0 for the default";
        check(&[b"tries", b"4294967296"], BadSetting::BadValue { name: "TRIES", wanted });
        check(&[b"expired", b"keep"], BadSetting::BadValue { name: "EXPIRED", wanted: "delete or dead" });
        assert_eq!(SPAN_MS_MAX, 3_162_240_000_000, "as the text says");
    }
}
