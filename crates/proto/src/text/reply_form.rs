//! The form of a reply: all that has to be known of a request to write it.

use std::borrow::Cow;

use super::request::Request;

/// The form of a reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReplyForm<'b> {
    /// To `ADD`.
    Added {
        /// The delay, which the reply repeats.
        delay_ms: u32,
    },
    /// To `RESERVE`.
    Reserved,
    /// To `DELETE`.
    Deleted {
        /// The id, as it was given.
        id: Cow<'b, [u8]>,
    },
    /// To `RETURN`.
    Returned {
        /// The id, as it was given.
        id: Cow<'b, [u8]>,
    },
    /// To `STATS`.
    Stats,
}

impl<'b> ReplyForm<'b> {
    /// The form of the reply to a request.
    pub const fn of(request: &Request<'b>) -> Self {
        match *request {
            Request::Add { delay_ms, .. } => Self::Added { delay_ms },
            Request::Reserve => Self::Reserved,
            Request::Delete { id } => Self::Deleted { id: Cow::Borrowed(id) },
            Request::Return { id, .. } => Self::Returned { id: Cow::Borrowed(id) },
            Request::Stats => Self::Stats,
        }
    }

    /// A form that does not borrow the request.
    pub fn into_owned(self) -> ReplyForm<'static> {
        match self {
            Self::Added { delay_ms } => ReplyForm::Added { delay_ms },
            Self::Reserved => ReplyForm::Reserved,
            Self::Deleted { id } => ReplyForm::Deleted { id: Cow::Owned(id.into_owned()) },
            Self::Returned { id } => ReplyForm::Returned { id: Cow::Owned(id.into_owned()) },
            Self::Stats => ReplyForm::Stats,
        }
    }

    /// The bytes that it owns on the heap.
    pub fn heap_bytes(&self) -> usize {
        match self {
            Self::Deleted { id: Cow::Owned(id) } | Self::Returned { id: Cow::Owned(id) } => id.capacity(),
            _ => 0,
        }
    }
}
