//! What tasks and deliveries are called.

use std::fmt;
use std::hash::{Hash, Hasher};

use sureq_core::TaskId;
use sureq_core::id::IdText;

/// A task's id. It is text: `1764000000000-1` where sureq keeps the queue, whatever they spell where others do.
#[derive(Clone)]
pub struct Id(Spelt);

/// One delivery of a task: whoever finishes, extends or returns by it succeeds only while that delivery is the current one.
///
/// A later delivery of the same task has a larger [`Receipt::fence`].
#[derive(Clone)]
pub struct Receipt(Spelt);

#[derive(Clone)]
enum Spelt {
    Ours(IdText),
    Theirs(Box<[u8]>),
}

impl Spelt {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Ours(spelling) => spelling.as_bytes(),
            Self::Theirs(bytes) => bytes,
        }
    }
}

impl Id {
    pub(crate) fn ours(id: TaskId) -> Self {
        Self(Spelt::Ours(IdText::of_id(id)))
    }

    /// An id that others spell. It is empty where a task gets its id when it is taken.
    pub(crate) fn later(spelt: Option<Box<[u8]>>) -> Self {
        Self::theirs(spelt.unwrap_or_default())
    }
}

impl Receipt {
    pub(crate) fn ours(receipt: sureq_core::Receipt) -> Self {
        Self(Spelt::Ours(IdText::of_receipt(receipt)))
    }

    /// For a delivery of which the home told no receipt: the current one, whichever that is.
    pub(crate) fn of_any_delivery(id: TaskId) -> Self {
        Self(Spelt::Ours(IdText::of_id(id)))
    }

    /// A number pair that grows from delivery to delivery of one task, for a store that takes a write only if it comes with a
    /// larger one than the last of the same task: the incarnation of the home first, then the delivery. Fences of different tasks cannot be compared: the first delivery of a new
    /// task has a smaller one than the second of an old one. Keep it by task, as the example `fencing` does. None where the home
    /// has no receipts.
    pub fn fence(&self) -> Option<(u64, u32)> {
        sureq_core::Receipt::parse(self.as_ref()).map(|receipt| (receipt.incarnation, receipt.delivery))
    }
}

macro_rules! spelt {
    ($name:ident) => {
        impl $name {
            pub(crate) fn theirs(bytes: Box<[u8]>) -> Self {
                Self(Spelt::Theirs(bytes))
            }
        }

        impl AsRef<[u8]> for $name {
            fn as_ref(&self) -> &[u8] {
                self.0.bytes()
            }
        }

        impl From<&str> for $name {
            fn from(text: &str) -> Self {
                Self::theirs(text.as_bytes().into())
            }
        }

        impl From<String> for $name {
            fn from(text: String) -> Self {
                Self::theirs(text.into_bytes().into())
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&String::from_utf8_lossy(self.as_ref()))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self)
            }
        }

        impl PartialEq for $name {
            fn eq(&self, other: &Self) -> bool {
                self.as_ref() == other.as_ref()
            }
        }

        impl Eq for $name {}

        impl Hash for $name {
            fn hash<H: Hasher>(&self, state: &mut H) {
                self.as_ref().hash(state);
            }
        }
    };
}

spelt!(Id);
spelt!(Receipt);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_what_they_spell() {
        let id = TaskId::new(1_764_000_000_000, 7).unwrap();
        assert_eq!(Id::ours(id), Id::from("1764000000000-7"));
        assert_eq!(format!("{:>18}", Id::ours(id)), "   1764000000000-7");
        assert_eq!(Id::from("a").to_string(), "a");
    }

    #[test]
    fn fences_grow_with_deliveries_and_incarnations() {
        let fence = |text: &str| Receipt::from(text).fence().unwrap();
        assert!(fence("1-1@2.5") < fence("1-1@3.5"));
        assert!(fence("1-1@3.5") < fence("1-1@1.6"));
        assert_eq!(Receipt::from("item-7").fence(), None);
    }
}
