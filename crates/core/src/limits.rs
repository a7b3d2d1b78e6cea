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
    /// The longest name of a queue.
    QUEUE_NAME_BYTES_MAX: usize = 4 << 10;
    /// The largest payload of a task.
    PAYLOAD_BYTES_MAX: usize = 64 << 20;
    /// The longest name a producer may give a task.
    TASK_NAME_BYTES_MAX: usize = 4 << 10;
    /// The longest name of a worker.
    WORKER_NAME_BYTES_MAX: usize = 1 << 10;
    /// The longest reason of a failed try that is kept; the rest is cut off.
    REASON_BYTES_MAX: usize = 1 << 10;
    /// The most arguments one command may have.
    COMMAND_ARGS_MAX: usize = 1 << 20;
    /// The largest command in all, arguments and framing together.
    COMMAND_BYTES_MAX: usize = 128 << 20;
    /// How many tasks one push may add: it is stored as a whole, in one step, while other clients wait. Larger ones are
    /// refused; push in several commands.
    PUSH_TASKS_MAX: usize = 10_000;
    /// The longest line of a command that is not in RESP's array form.
    INLINE_BYTES_MAX: usize = 64 << 10;
    /// How many payload bytes one reply of POP or INSPECT may carry; it may answer fewer tasks because of it.
    REPLY_BYTES_MAX: usize = 64 << 20;
    /// How many tasks one reply of POP, RECOVER or INSPECT may carry.
    REPLY_TASKS_MAX: u32 = 1 << 20;
    /// How many queues one pop may name.
    POP_QUEUES_MAX: usize = 1 << 10;
    /// The longest pattern that queues are listed by.
    PATTERN_BYTES_MAX: usize = 4 << 10;
    /// How many steps of matching a pattern one call that lists queues may take; it then answers fewer, and a cursor.
    /// PUBSUB CHANNELS is refused.
    PATTERN_STEPS_MAX: usize = 1 << 20;
    /// The longest line of the text dialect, without its end.
    TEXT_LINE_BYTES_MAX: usize = 64 << 10;
    /// How much of an endless text line is read before its connection is closed.
    TEXT_ENDLESS_BYTES_MAX: usize = 1 << 20;
    /// Unread output of one connection beyond which its requests are no longer read.
    OUTPUT_BYTES_MAX: usize = 8 << 20;
    /// How many channels and patterns one connection may subscribe to.
    SUBSCRIPTIONS_MAX: usize = 100_000;
    /// The longest channel or pattern that can be subscribed to.
    CHANNEL_BYTES_MAX: usize = 8 << 10;
    /// How many steps the matching of the patterns of one connection may take per message; beyond this it is
    /// disconnected.
    NOTICE_STEPS_MAX: usize = 1 << 20;
    /// How much memory the server uses to remember which patterns match a channel.
    PATTERN_CACHE_BYTES_MAX: usize = 2 << 20;
    /// How far one subscriber may fall behind before it is disconnected.
    NOTICES_UNREAD_BYTES_MAX: usize = 8 << 20;
    /// How many bytes of notices may wait to become durable; beyond this all subscribers are disconnected.
    NOTICES_PENDING_BYTES_MAX: usize = 32 << 20;
    /// How many connections a server takes.
    CONNECTIONS_MAX: usize = 10_000;
    /// How much memory the waiting pops of a home on Redis may take, mostly by the names of their queues; further ones
    /// are refused with OOM.
    WAITING_BYTES_MAX: usize = 256 << 20;

    /// The most arguments of a command on a connection that has not authenticated.
    UNAUTHENTICATED_ARGS_MAX: usize = 10;
    /// The longest argument of such a command.
    UNAUTHENTICATED_ARG_BYTES_MAX: usize = 16 << 10;
    /// The largest such command, and how much is read ahead on a connection that has not authenticated.
    UNAUTHENTICATED_COMMAND_BYTES_MAX: usize = 24 << 10;
    /// Unread output of such a connection beyond which its requests are no longer read.
    UNAUTHENTICATED_OUTPUT_BYTES_MAX: usize = 4 << 10;
    /// How long a connection may take to authenticate before it is closed.
    UNAUTHENTICATED_MS_MAX: u64 = 60_000;
    /// The longest user name, password or token; a longer one is wrong.
    CREDENTIAL_BYTES_MAX: usize = 1 << 10;
    /// The delay of the reply to a wrong password.
    WRONG_PASSWORD_MS: u64 = 250;
    /// How many wrong passwords in a row close a connection.
    WRONG_PASSWORDS_MAX: u32 = 5;
    /// How many passwords may wait to be checked; a further one is refused and can be sent again.
    PASSWORDS_WAITING_MAX: usize = 1_000;
    /// How much memory the check of one password may use, by the parameters of its hash.
    PASSWORD_MEMORY_BYTES_MAX: usize = 64 << 20;

    /// Tries before a task is dead, unless it or its queue sets another number.
    TRIES_DEFAULT: u32 = 25;
    /// The first wait of the backoff, unless the task or its queue sets another.
    BACKOFF_MS_DEFAULT: u64 = 1_000;
    /// The longest wait of the backoff.
    BACKOFF_MS_MAX: u64 = 3_600_000;
    /// From this lapse or lost worker on, a task waits for its backoff instead of returning to the front.
    LAPSES_BEFORE_BACKOFF: u32 = 3;
    /// The time to live of a worker without a heartbeat, unless it sets another.
    WORKER_TTL_MS_DEFAULT: u64 = 3_000;
    /// The longest lease, delay, time to live or block: a hundred years.
    SPAN_MS_MAX: u64 = 100 * 366 * 86_400_000;
    /// The least time that a timed lease lasts after a restart, or its own length if that is shorter.
    LEASE_AFTER_START_MS: u64 = 10_000;
    /// How many past deliveries are kept of a task that was delivered more than once.
    DELIVERIES_KEPT: usize = 5;
    /// How many tasks one slice of work handles before other commands are served.
    SLICE_TASKS: usize = 1_000;
    /// How many queues one slice of a command goes through.
    SLICE_QUEUES: usize = 1_000;
    /// How many lapsed leases a heartbeat reports to its worker; of more, the newest.
    LAPSES_REPORTED_MAX: usize = 10_000;
    /// How long an empty queue is remembered for its statistics.
    EMPTY_QUEUE_MS: u64 = 3_600_000;
    /// How many empty queues are remembered at most.
    EMPTY_QUEUES_MAX: usize = 100_000;
}
