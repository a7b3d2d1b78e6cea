//! The form of a reply: the part of a request that is needed to write its reply.

use std::borrow::Cow;

use super::request::Request;

/// The form of a reply, by its request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TextReplyForm<'b> {
    Added {
        /// The delay, which the reply repeats.
        delay_ms: u32,
    },
    Reserved,
    Deleted {
        /// The id, as the client wrote it.
        id: Cow<'b, [u8]>,
    },
    Returned {
        /// The id, as the client wrote it.
        id: Cow<'b, [u8]>,
    },
    Stats,
}

impl<'b> TextReplyForm<'b> {
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

    /// Converts it to a form that does not borrow from the request.
    pub fn into_owned(self) -> TextReplyForm<'static> {
        match self {
            Self::Added { delay_ms } => TextReplyForm::Added { delay_ms },
            Self::Reserved => TextReplyForm::Reserved,
            Self::Deleted { id } => TextReplyForm::Deleted { id: Cow::Owned(id.into_owned()) },
            Self::Returned { id } => TextReplyForm::Returned { id: Cow::Owned(id.into_owned()) },
            Self::Stats => TextReplyForm::Stats,
        }
    }

    pub fn heap_bytes(&self) -> usize {
        match self {
            Self::Deleted { id: Cow::Owned(id) } | Self::Returned { id: Cow::Owned(id) } => id.capacity(),
            _ => 0,
        }
    }
}
