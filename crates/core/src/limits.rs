//! Every limit of the queue, in one place, with its unit in its name.
//!
//! docs/operate/limits.md is generated from [`TABLE`], which is made of the very lines below.

/// One row of docs/operate/limits.md.
#[derive(Clone, Copy, Debug)]
pub struct Limit {
    /// The constant's name.
    pub name: &'static str,
    /// Its value, in the unit that its name ends in.
    pub value: u64,
    /// The meaning of the limit.
    pub what: &'static str,
}

macro_rules! limits {
    ($($(#[doc = $what:literal])+ $name:ident: $kind:ty = $value:expr;)+) => {
        $($(#[doc = $what])+ pub const $name: $kind = $value;)+

        /// All limits, for the documentation.
        pub const TABLE: &[Limit] =
            &[$(Limit { name: stringify!($name), value: $name as u64, what: concat!($($what),+) }),+];
    };
}

limits! {
    /// Maximum length of the name of a queue.
    QUEUE_NAME_BYTES_MAX: usize = 4 << 10;
    /// Maximum size of the payload of a task.
    PAYLOAD_BYTES_MAX: usize = 64 << 20;
    /// Maximum length of the name of a task.
    TASK_NAME_BYTES_MAX: usize = 4 << 10;
    /// Maximum length of the name of a worker.
    WORKER_NAME_BYTES_MAX: usize = 1 << 10;
    /// Maximum length of the stored reason of a failed try; the rest is cut off.
    REASON_BYTES_MAX: usize = 1 << 10;
    /// Maximum arguments of one command.
    COMMAND_ARGS_MAX: usize = 1 << 20;
    /// Maximum size of one command, arguments and framing together.
    COMMAND_BYTES_MAX: usize = 128 << 20;
    /// Maximum tasks of one push. A push is all or nothing, so it is one step, for which other clients wait. Push more
    /// in several commands.
    PUSH_TASKS_MAX: usize = 10_000;
    /// Maximum length of a command line that is not in RESP's array form.
    INLINE_BYTES_MAX: usize = 64 << 10;
    /// Maximum payload bytes in one reply of POP or INSPECT, which returns fewer tasks rather than more bytes.
    REPLY_BYTES_MAX: usize = 64 << 20;
    /// Maximum tasks in one reply of POP, RECOVER or INSPECT.
    REPLY_TASKS_MAX: u32 = 1 << 20;
    /// Maximum queues of one pop.
    POP_QUEUES_MAX: usize = 1 << 10;
    /// Maximum length of a pattern that lists queues.
    PATTERN_BYTES_MAX: usize = 4 << 10;
    /// Maximum steps of pattern matching in one call that lists queues. The reply then has fewer queues and a cursor
    /// for the rest; PUBSUB CHANNELS, which has no cursor, is refused.
    PATTERN_STEPS_MAX: usize = 1 << 20;
    /// Maximum length of a line of the text dialect, without its end.
    TEXT_LINE_BYTES_MAX: usize = 64 << 10;
    /// Bytes of a text line without an end that are read before its connection is closed.
    TEXT_ENDLESS_BYTES_MAX: usize = 1 << 20;
    /// Unread output of one connection above which its requests are no longer read.
    OUTPUT_BYTES_MAX: usize = 8 << 20;
    /// Maximum channels and patterns that one connection is subscribed to.
    SUBSCRIPTIONS_MAX: usize = 100_000;
    /// Maximum length of a channel or pattern of a subscription.
    CHANNEL_BYTES_MAX: usize = 8 << 10;
    /// Maximum steps of matching one message with the patterns of one connection. Above it the connection is closed.
    NOTICE_STEPS_MAX: usize = 1 << 20;
    /// Memory for a cache of the patterns that match each channel.
    PATTERN_CACHE_BYTES_MAX: usize = 2 << 20;
    /// Maximum unread messages of one subscriber. Above it the subscriber is disconnected.
    NOTICES_UNREAD_BYTES_MAX: usize = 8 << 20;
    /// Maximum notices that wait to become durable. Above it all subscribers are disconnected.
    NOTICES_PENDING_BYTES_MAX: usize = 32 << 20;
    /// Maximum connections of a server.
    CONNECTIONS_MAX: usize = 10_000;
    /// Maximum memory of the waiting pops of a home on Redis, mostly the names of their queues. Further pops that would
    /// wait are refused with OOM.
    WAITING_BYTES_MAX: usize = 256 << 20;

    /// Maximum arguments of a command on a connection that has not authenticated.
    UNAUTHENTICATED_ARGS_MAX: usize = 10;
    /// Maximum length of an argument on such a connection.
    UNAUTHENTICATED_ARG_BYTES_MAX: usize = 16 << 10;
    /// Maximum size of a command on such a connection, and of the input that is read ahead.
    UNAUTHENTICATED_COMMAND_BYTES_MAX: usize = 24 << 10;
    /// Unread output of such a connection above which its requests are no longer read.
    UNAUTHENTICATED_OUTPUT_BYTES_MAX: usize = 4 << 10;
    /// Time after which a connection that has not authenticated is closed.
    UNAUTHENTICATED_MS_MAX: u64 = 60_000;
    /// Maximum length of a user name, password or token; a longer one is refused as wrong.
    CREDENTIAL_BYTES_MAX: usize = 1 << 10;
    /// Delay of the reply to a wrong password.
    WRONG_PASSWORD_MS: u64 = 250;
    /// Wrong passwords in a row after which a connection is closed.
    WRONG_PASSWORDS_MAX: u32 = 5;
    /// Maximum passwords that wait for their check. A further login is refused and can be retried.
    PASSWORDS_WAITING_MAX: usize = 1_000;
    /// Maximum memory for the check of one password, as the parameters of its hash require it.
    PASSWORD_MEMORY_BYTES_MAX: usize = 64 << 20;

    /// Tries before a task is dead, unless it or its queue sets another number.
    TRIES_DEFAULT: u32 = 25;
    /// First wait of the backoff, unless the task or its queue sets another.
    BACKOFF_MS_DEFAULT: u64 = 1_000;
    /// Maximum wait of the backoff.
    BACKOFF_MS_MAX: u64 = 3_600_000;
    /// From this lapse or lost worker on, a task waits for its backoff instead of returning to the front.
    LAPSES_BEFORE_BACKOFF: u32 = 3;
    /// Time to live of a worker without a heartbeat, unless it sets another.
    WORKER_TTL_MS_DEFAULT: u64 = 3_000;
    /// Maximum lease, delay, time to live or time to block: a hundred years.
    SPAN_MS_MAX: u64 = 100 * 366 * 86_400_000;
    /// Minimum time that a timed lease lasts after a restart, or its own length if that is shorter.
    LEASE_AFTER_START_MS: u64 = 10_000;
    /// Past deliveries that are stored of a task that was delivered more than once.
    DELIVERIES_KEPT: usize = 5;
    /// Tasks that one slice of work handles before other commands are served.
    SLICE_TASKS: usize = 1_000;
    /// Queues that one slice of a command goes through.
    SLICE_QUEUES: usize = 1_000;
    /// Maximum lapsed leases that a heartbeat reports to its worker: the newest ones.
    LAPSES_REPORTED_MAX: usize = 10_000;
    /// Time for which the statistics of an empty queue are kept.
    EMPTY_QUEUE_MS: u64 = 3_600_000;
    /// Maximum empty queues whose statistics are kept.
    EMPTY_QUEUES_MAX: usize = 100_000;
}
