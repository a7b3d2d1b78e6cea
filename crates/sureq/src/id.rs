//! [`Id`] and [`Receipt`].

use std::fmt;
use std::hash::{Hash, Hasher};

use sureq_core::TaskId;
use sureq_core::id::IdText;

/// The id of a task, as text: `1764000000000-1`, or any bytes in the key layouts of other programs.
#[derive(Clone)]
pub struct Id(Text);

/// Identifies one delivery of a task. An ack, extension or return with a receipt succeeds only while its delivery is
/// the current one. A later delivery of the same task has a larger [`Receipt::fence`].
#[derive(Clone)]
pub struct Receipt(Text);

#[derive(Clone)]
enum Text {
    Own(IdText),
    Foreign(Box<[u8]>),
}

impl Text {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Own(spelling) => spelling.as_bytes(),
            Self::Foreign(bytes) => bytes,
        }
    }
}

impl Id {
    pub(crate) fn own(id: TaskId) -> Self {
        Self(Text::Own(IdText::of_id(id)))
    }

    /// A foreign id; empty in layouts where a task gets its id at delivery.
    pub(crate) fn foreign_or_empty(foreign: Option<Box<[u8]>>) -> Self {
        Self::foreign(foreign.unwrap_or_default())
    }
}

impl Receipt {
    pub(crate) fn own(receipt: sureq_core::Receipt) -> Self {
        Self(Text::Own(IdText::of_receipt(receipt)))
    }

    /// Refers to the current delivery, for homes without receipts.
    pub(crate) fn of_current_delivery(id: TaskId) -> Self {
        Self(Text::Own(IdText::of_id(id)))
    }

    /// A fencing token: the incarnation of the home and the delivery number, which grow from delivery to delivery of
    /// one task.
    ///
    /// Store it with each write to another system, and let that system refuse a write with a smaller token for the
    /// same task, as the example `fencing` does. Tokens of different tasks cannot be compared. `None` if the home has
    /// no receipts.
    pub fn fence(&self) -> Option<(u64, u32)> {
        sureq_core::Receipt::parse(self.as_ref()).map(|receipt| (receipt.incarnation, receipt.delivery))
    }
}

macro_rules! impl_text {
    ($name:ident) => {
        impl $name {
            pub(crate) fn foreign(bytes: Box<[u8]>) -> Self {
                Self(Text::Foreign(bytes))
            }
        }

        impl AsRef<[u8]> for $name {
            fn as_ref(&self) -> &[u8] {
                self.0.bytes()
            }
        }

        impl From<&str> for $name {
            fn from(text: &str) -> Self {
                Self::foreign(text.as_bytes().into())
            }
        }

        impl From<String> for $name {
            fn from(text: String) -> Self {
                Self::foreign(text.into_bytes().into())
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

impl_text!(Id);
impl_text!(Receipt);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_text_is_an_equal_id() {
        let id = TaskId::new(1_764_000_000_000, 7).unwrap();
        assert_eq!(Id::own(id), Id::from("1764000000000-7"));
        assert_eq!(format!("{:>18}", Id::own(id)), "   1764000000000-7");
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
