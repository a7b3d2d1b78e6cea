//! The limits of connections that can be set. Their defaults, and the limits that cannot be set, are in
//! `sureq_core::limits`.

use std::time::Duration;

use sureq_core::limits;
use sureq_proto::resp::Limits;

/// The limits of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Connections, as far as the system has descriptors for them.
    pub connections_max: usize,
    /// Words of a command.
    pub command_args_max: usize,
    /// Bytes of a command, framing included.
    pub command_bytes_max: usize,
    /// Bytes of unread replies before a connection is no longer read from.
    pub output_bytes_max: usize,
    /// Bytes of a command of a peer that has not authenticated.
    pub stranger_command_bytes_max: usize,
    /// How long a peer may take to authenticate.
    pub stranger_time: Option<Duration>,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            connections_max: limits::CONNECTIONS_MAX,
            command_args_max: limits::COMMAND_ARGS_MAX,
            command_bytes_max: limits::COMMAND_BYTES_MAX,
            output_bytes_max: limits::OUTPUT_BYTES_MAX,
            stranger_command_bytes_max: limits::STRANGER_COMMAND_BYTES_MAX,
            stranger_time: Some(Duration::from_millis(limits::STRANGER_MS_MAX)),
        }
    }
}

/// The limits of a connection, until its peer authenticates as someone else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Allowance {
    /// Bytes of input that are kept.
    pub(crate) input_bytes_max: usize,
    /// Bytes of unsent replies before nothing more is executed.
    pub(crate) output_bytes_max: usize,
    /// How long the peer may take to authenticate.
    pub(crate) time: Option<Duration>,
}

/// Behind the last byte that counts against the limit of a command, there can be a header that shows that it is over.
const HEADER_ROOM: usize = 128;

impl Bounds {
    /// For the commands of a peer that has authenticated.
    pub(crate) fn of_known(&self) -> Limits {
        Limits {
            args_max: self.command_args_max,
            bulk_bytes_max: limits::PAYLOAD_BYTES_MAX.min(self.command_bytes_max),
            command_bytes_max: self.command_bytes_max,
            inline_bytes_max: limits::INLINE_BYTES_MAX.min(self.command_bytes_max),
            ..Limits::TRUSTED
        }
    }

    /// For the commands of a peer that has not authenticated.
    pub(crate) fn of_strangers(&self) -> Limits {
        let bytes_max = self.stranger_command_bytes_max;
        Limits {
            bulk_bytes_max: limits::STRANGER_ARG_BYTES_MAX.min(bytes_max),
            command_bytes_max: bytes_max,
            inline_bytes_max: limits::STRANGER_ARG_BYTES_MAX.min(bytes_max),
            ..Limits::UNAUTHENTICATED
        }
    }

    pub(crate) const fn known(&self) -> Allowance {
        // The parser's limits hold what is kept of a command, and what is read ahead of one that waits has its own.
        Allowance { input_bytes_max: usize::MAX, output_bytes_max: self.output_bytes_max, time: None }
    }

    pub(crate) fn stranger(&self) -> Allowance {
        Allowance {
            input_bytes_max: self.stranger_command_bytes_max + HEADER_ROOM,
            output_bytes_max: limits::STRANGER_OUTPUT_BYTES_MAX.min(self.output_bytes_max),
            time: self.stranger_time,
        }
    }
}
