//! The configurable limits of connections. Their defaults and the fixed limits are in `sureq_core::limits`.

use std::time::Duration;

use sureq_core::limits;
use sureq_proto::resp::Limits;

/// The limits of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// The maximum number of open connections. Limited further by the file descriptors that the system allows.
    pub connections_max: usize,
    /// The maximum number of arguments of a command, including its name.
    pub command_args_max: usize,
    /// The maximum size of a command in bytes, including its framing.
    pub command_bytes_max: usize,
    /// Bytes of unread replies above which a connection is not read from.
    pub output_bytes_max: usize,
    /// The maximum size in bytes of a command before authentication.
    pub unauthenticated_command_bytes_max: usize,
    /// The time within which a client must authenticate; unlimited if `None`.
    pub unauthenticated_time: Option<Duration>,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            connections_max: limits::CONNECTIONS_MAX,
            command_args_max: limits::COMMAND_ARGS_MAX,
            command_bytes_max: limits::COMMAND_BYTES_MAX,
            output_bytes_max: limits::OUTPUT_BYTES_MAX,
            unauthenticated_command_bytes_max: limits::UNAUTHENTICATED_COMMAND_BYTES_MAX,
            unauthenticated_time: Some(Duration::from_millis(limits::UNAUTHENTICATED_MS_MAX)),
        }
    }
}

/// The limits that apply to a connection at present. They change when its client authenticates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Allowance {
    /// The maximum number of input bytes that are buffered.
    pub(crate) input_bytes_max: usize,
    /// Bytes of unsent replies above which no commands are executed.
    pub(crate) output_bytes_max: usize,
    /// The time within which the client must authenticate.
    pub(crate) time: Option<Duration>,
}

/// Room for a header behind the last byte that counts against the limit of a command: it can be the header that shows
/// that the command is too large.
const HEADER_ROOM: usize = 128;

impl Bounds {
    /// The parser limits after authentication.
    pub(crate) fn of_known(&self) -> Limits {
        Limits {
            args_max: self.command_args_max,
            bulk_bytes_max: limits::PAYLOAD_BYTES_MAX.min(self.command_bytes_max),
            command_bytes_max: self.command_bytes_max,
            inline_bytes_max: limits::INLINE_BYTES_MAX.min(self.command_bytes_max),
            ..Limits::TRUSTED
        }
    }

    /// The parser limits before authentication.
    pub(crate) fn of_unauthenticated(&self) -> Limits {
        let bytes_max = self.unauthenticated_command_bytes_max;
        Limits {
            bulk_bytes_max: limits::UNAUTHENTICATED_ARG_BYTES_MAX.min(bytes_max),
            command_bytes_max: bytes_max,
            inline_bytes_max: limits::UNAUTHENTICATED_ARG_BYTES_MAX.min(bytes_max),
            ..Limits::UNAUTHENTICATED
        }
    }

    pub(crate) const fn known(&self) -> Allowance {
        // The parser's limits bound an unfinished command, and reading ahead behind a waiting command has its own
        // limit.
        Allowance { input_bytes_max: usize::MAX, output_bytes_max: self.output_bytes_max, time: None }
    }

    pub(crate) fn unauthenticated(&self) -> Allowance {
        Allowance {
            input_bytes_max: self.unauthenticated_command_bytes_max + HEADER_ROOM,
            output_bytes_max: limits::UNAUTHENTICATED_OUTPUT_BYTES_MAX.min(self.output_bytes_max),
            time: self.unauthenticated_time,
        }
    }
}
