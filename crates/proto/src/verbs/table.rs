//! The one table of RESP commands. Parsing, arity, COMMAND's replies, help and docs/reference/commands.md all come
//! from it.
//!
//! A new command is a row here, with the role it needs, and a parse function beside its kin. The rows that matter most for
//! speed go first.

use super::{Group, Keys, Role, Row, Sub, keys, manage, pubsub, queue, session, task, worker};

const WRITE: &[&str] = &["write", "denyoom", "fast"];
const CHANGE: &[&str] = &["write", "fast"];
const BLOCKING: &[&str] = &["write", "noscript", "blocking", "movablekeys"];
const READ: &[&str] = &["readonly", "fast"];
const READ_SLOW: &[&str] = &["readonly"];
const SERVER: &[&str] = &["loading", "stale", "fast"];
const LISTENING: &[&str] = &["pubsub", "noscript", "loading", "stale"];
const HANDSHAKE: &[&str] = &["noscript", "loading", "stale", "fast", "no_auth", "allow_busy"];

/// What a row has that does not say otherwise.
const BASE: Row = Row {
    name: "",
    arity: 0,
    // Whoever forgets to say which role a command needs has not given it to everybody.
    role: Some(Role::Admin),
    flags: SERVER,
    keys: Keys::NONE,
    group: Group::Server,
    summary: "",
    syntax: "",
    reply: "",
    notes: "",
    example: "",
    subs: &[],
    parse: session::ping,
};

/// Each command, once.
pub const TABLE: &[Row] = &[
    Row {
        name: "RQ.PUSH",
        arity: -3,
        role: Some(Role::Produce),
        flags: WRITE,
        keys: Keys::FIRST,
        group: Group::Queue,
        summary: "Adds tasks to the end of a queue.",
        syntax: "RQ.PUSH key payload [payload ...]",
        reply: "An array of ids, one for each payload, in order.",
        notes: "The first push makes the queue. A payload is any bytes, and may be empty. All payloads are \
                added, or none.",
        example: "> RQ.PUSH emails hello world\n1) \"1601155608777-1\"\n2) \"1601155608777-2\"",
        parse: queue::push,
        ..BASE
    },
    Row {
        name: "RQ.POP",
        arity: -2,
        role: Some(Role::Consume),
        flags: BLOCKING,
        group: Group::Queue,
        summary: "Pops tasks under a lease; they stay in the store until they are acknowledged.",
        syntax: "RQ.POP [COUNT n] [BLOCK ms] [LEASE ms] [WORKER w#n] [CONN] [META] key [key ...]",
        reply: "An array of `[key, id, payload]`; empty if there is no task; null if BLOCK timed out. With \
                LEASE, WORKER or CONN each entry is `[key, id, payload, receipt, deliveries]`. META adds a \
                map of name, tries, pushed-at and last reason.",
        notes: "Options come in any order before the keys; an option word is never a key. COUNT defaults to \
                1; a bare number before the keys is a count too, if a key follows it. Tasks come from the \
                first queue until it is empty, then from the next. BLOCK is the longest wait in milliseconds; \
                BLOCK 0 waits for ever. The lease ends after LEASE milliseconds, when the heartbeat of WORKER \
                stops, or with CONN when this connection closes.",
        example: "> RQ.PUSH emails hello world\n1) \"1601155608777-1\"\n2) \"1601155608777-2\"\n\
                  > RQ.POP COUNT 2 BLOCK 1000 emails\n1) 1) \"emails\"\n   2) \"1601155608777-1\"\n\
                  \x20  3) \"hello\"\n2) 1) \"emails\"\n   2) \"1601155608777-2\"\n   3) \"world\"",
        parse: queue::pop,
        ..BASE
    },
    Row {
        name: "RQ.ACK",
        arity: -3,
        role: Some(Role::Consume),
        flags: CHANGE,
        keys: Keys::FIRST,
        group: Group::Queue,
        summary: "Finishes leased tasks.",
        syntax: "RQ.ACK key id|receipt [id|receipt ...]",
        reply: "An array of the arguments that this call finished, as they were given.",
        notes: "A receipt counts only while its delivery is the current one. A bare id also finishes a task \
                whose lease lapsed and that waits again. A malformed id is an error, and nothing is finished; \
                an unknown id is left out.",
        example: "> RQ.PUSH emails hello\n1) \"1601155608777-1\"\n> RQ.POP emails\n1) 1) \"emails\"\n\
                  \x20  2) \"1601155608777-1\"\n   3) \"hello\"\n> RQ.ACK emails 1601155608777-1\n\
                  1) \"1601155608777-1\"",
        parse: queue::ack,
        ..BASE
    },
    Row {
        name: "RQ.RECOVER",
        arity: 4,
        role: Some(Role::Consume),
        flags: CHANGE,
        keys: Keys::FIRST,
        group: Group::Queue,
        summary: "Takes over tasks that were popped without a lease and never finished.",
        syntax: "RQ.RECOVER key count elapsed",
        reply: "An array of `[id, payload]`.",
        notes: "Takes at most `count` tasks whose last delivery is at least `elapsed` milliseconds ago, the oldest first, \
                each at most once per call. Tasks with a lease, a worker or a connection come back by themselves and are \
                not touched.",
        example: "> RQ.PUSH emails hello\n1) \"1601155608777-1\"\n> RQ.POP emails\n1) 1) \"emails\"\n\
                  \x20  2) \"1601155608777-1\"\n   3) \"hello\"\n> RQ.RECOVER emails 10 0\n\
                  1) 1) \"1601155608777-1\"\n   2) \"hello\"",
        parse: queue::recover,
        ..BASE
    },
    Row {
        name: "RQ.INSPECT",
        arity: -4,
        role: Some(Role::Read),
        flags: READ_SLOW,
        keys: Keys::FIRST,
        group: Group::Queue,
        summary: "Shows tasks without changing them.",
        syntax: "RQ.INSPECT key [PENDING|DELAYED|DEAD] start count",
        reply: "An array. Ready tasks (the default): `[id, payload]`. PENDING (leased): `[id, payload, last \
                delivery, elapsed, deliveries]`. DELAYED: `[id, payload, due]`. DEAD: `[id, payload, died at, \
                reason, failed, lapsed, lost]`. Times are in milliseconds.",
        notes: "A negative start counts from the end.",
        example: "> RQ.PUSH emails hello\n1) \"1601155608777-1\"\n> RQ.POP emails\n1) 1) \"emails\"\n\
                  \x20  2) \"1601155608777-1\"\n   3) \"hello\"\n> RQ.INSPECT emails PENDING 0 1\n\
                  1) 1) \"1601155608777-1\"\n   2) \"hello\"\n   3) (integer) 1601155609999\n\
                  \x20  4) (integer) 1222\n   5) (integer) 1",
        parse: queue::inspect,
        ..BASE
    },
    Row {
        name: "RQ.INFO",
        arity: 2,
        role: Some(Role::Read),
        flags: READ,
        keys: Keys::FIRST,
        group: Group::Queue,
        summary: "Shows the counts, ages and settings of a queue.",
        syntax: "RQ.INFO key",
        reply: "A map (in RESP2 a flat array): `undelivered`, `delivered`, `ready`, `delayed`, `leased`, `dead`, \
                `waiting_bytes`, `oldest_ms`, `paused` (since when, or 0), `pushed`, `finished`, `workers`, `pushed_per_second`, \
                `finished_per_second` (of the last ten seconds), then the settings.",
        notes: "Costs the same however many tasks there are. In the keys of other programs (`layout=`) only `undelivered`, \
                `delivered`, `ready` and `leased` are known, and the other fields are left out.",
        example: "> RQ.PUSH emails hello world\n1) \"1601155608777-1\"\n2) \"1601155608777-2\"\n\
                  > RQ.INFO emails\n 1) \"undelivered\"\n 2) (integer) 2\n 3) \"delivered\"\n 4) (integer) 0\n\
                  ...",
        parse: queue::info,
        ..BASE
    },
    Row {
        name: "RQ.ADD",
        arity: -3,
        role: Some(Role::Produce),
        flags: WRITE,
        keys: Keys::FIRST,
        group: Group::Queue,
        summary: "Adds one task with a name, a delay, a priority or limits of its own.",
        syntax: "RQ.ADD key payload [NAME name] [DELAY ms|AT unix-ms] [PRIORITY n] [TRIES n] [BACKOFF ms] [TTL ms] [UNIQUE]",
        reply: "`[id, added, state]`: added is 1, or 0 if a task of the queue has the name already; then id and state are \
                that task's, and nothing is added.",
        notes: "A name is free again when its task is gone; a dead task keeps it. UNIQUE makes the payload \
                the name. DELAY counts from now, AT follows the wall clock. PRIORITY is from -128 to 127, \
                larger first. TRIES and BACKOFF override those of the queue. BACKOFF is the first wait after \
                a failure; each further wait is twice as long, up to an hour, less a jitter of up to a half. \
                TTL limits how long the task may wait, counted from now; the queue's EXPIRED says whether it \
                is then deleted or dead.",
        example: "> RQ.ADD emails hello NAME greeting DELAY 60000\n1) \"1601155608777-1\"\n2) (integer) 1\n3) \"delayed\"\n\
                  > RQ.ADD emails hello NAME greeting\n1) \"1601155608777-1\"\n2) (integer) 0\n3) \"delayed\"",
        parse: task::add,
        ..BASE
    },
    Row {
        name: "RQ.EXTEND",
        arity: 4,
        role: Some(Role::Consume),
        flags: CHANGE,
        keys: Keys::FIRST,
        group: Group::Queue,
        summary: "Moves the deadline of a lease to `ms` milliseconds from now.",
        syntax: "RQ.EXTEND key id|receipt ms",
        reply: "1; 0 if this delivery is not the current one; `CANCELLED` if the task was cancelled.",
        notes: "A lease that had no deadline gets one.",
        example: "> RQ.PUSH emails hello\n1) \"1601155608777-1\"\n> RQ.POP LEASE 30000 emails\n1) 1) \"emails\"\n   \
                  2) \"1601155608777-1\"\n   3) \"hello\"\n   4) \"1601155608777-1@1.1601155600000\"\n   5) (integer) 1\n\
                  > RQ.EXTEND emails 1601155608777-1@1.1601155600000 60000\n(integer) 1",
        parse: task::extend,
        ..BASE
    },
    Row {
        name: "RQ.RETURN",
        arity: -3,
        role: Some(Role::Consume),
        flags: CHANGE,
        keys: Keys::FIRST,
        group: Group::Queue,
        summary: "Requeues a leased task.",
        syntax: "RQ.RETURN key id|receipt [DELAY ms] [FRONT|BACK] [FAILED reason [DEAD]]",
        reply: "1; 0 if this delivery is not the current one; `CANCELLED` if the task was cancelled, and is \
                therefore gone.",
        notes: "To the front, at no cost of a try, by default. FAILED costs a try and delays the task by the \
                backoff, or by DELAY if given; the task is dead if that was its last try, or if DEAD is \
                given. The first 1024 bytes of the reason are kept.",
        example: "> RQ.PUSH emails hello\n1) \"1601155608777-1\"\n> RQ.POP emails\n1) 1) \"emails\"\n   2) \"1601155608777-1\"\n   \
                  3) \"hello\"\n> RQ.RETURN emails 1601155608777-1 FAILED \"no route to host\"\n(integer) 1",
        parse: task::give_back,
        ..BASE
    },
    Row {
        name: "RQ.CANCEL",
        arity: -4,
        role: Some(Role::Produce),
        flags: CHANGE,
        keys: Keys::FIRST,
        group: Group::Queue,
        summary: "Cancels tasks: waiting ones are removed, leased ones are marked for their holders.",
        syntax: "RQ.CANCEL key (ID id [id ...] | NAME name [name ...] | PAYLOAD payload)",
        reply: "The number of tasks cancelled by this call.",
        notes: "The holder of a leased task learns it from its next RQ.EXTEND or RQ.WORKER BEAT. It may still \
                finish the task; if it returns the task, or its lease ends, the task is gone. Dead tasks are \
                not touched. PAYLOAD searches all tasks of the queue, in steps, and other clients are served \
                in between. If the store closes meanwhile, or a payload cannot be read, the reply is an \
                error, and part of the work may have been done.",
        example: "> RQ.ADD emails hello NAME greeting\n1) \"1601155608777-1\"\n2) (integer) 1\n3) \"ready\"\n\
                  > RQ.CANCEL emails NAME greeting\n(integer) 1",
        parse: task::cancel,
        ..BASE
    },
    Row {
        name: "RQ.BURY",
        arity: -3,
        role: Some(Role::Consume),
        flags: CHANGE,
        keys: Keys::FIRST,
        group: Group::Queue,
        summary: "Makes tasks dead at once, or moves them to the dead-letter queue if there is one.",
        syntax: "RQ.BURY key id|receipt [id|receipt ...]",
        reply: "The number of tasks.",
        notes: "They are kept until RQ.REVIVE brings them back or RQ.DELETE removes them.",
        example: "> RQ.PUSH emails hello\n1) \"1601155608777-1\"\n> RQ.BURY emails 1601155608777-1\n(integer) 1",
        parse: task::bury,
        ..BASE
    },
    Row {
        name: "RQ.REVIVE",
        arity: -3,
        flags: CHANGE,
        keys: Keys::FIRST,
        group: Group::Queue,
        summary: "Moves dead tasks to the end of the queue, ready again.",
        syntax: "RQ.REVIVE key (ALL | id [id ...])",
        reply: "The number of tasks.",
        notes: "Their tries start from zero; their delivery numbers go on.",
        example: "> RQ.PUSH emails hello\n1) \"1601155608777-1\"\n> RQ.BURY emails 1601155608777-1\n(integer) 1\n\
                  > RQ.REVIVE emails ALL\n(integer) 1",
        parse: task::revive,
        ..BASE
    },
    Row {
        name: "RQ.DELETE",
        arity: -3,
        flags: CHANGE,
        keys: Keys::FIRST,
        group: Group::Queue,
        summary: "Removes tasks in any state.",
        syntax: "RQ.DELETE key id [id ...]",
        reply: "The number of tasks.",
        notes: "The holder of a leased task gets no message, and its ack finishes nothing. RQ.CANCEL lets the \
                holder know.",
        example: "> RQ.PUSH emails hello\n1) \"1601155608777-1\"\n> RQ.DELETE emails 1601155608777-1\n(integer) 1",
        parse: task::delete,
        ..BASE
    },
    Row {
        name: "RQ.EXPLAIN",
        arity: 3,
        role: Some(Role::Read),
        flags: READ,
        keys: Keys::FIRST,
        group: Group::Queue,
        summary: "Says why a task is not running now.",
        syntax: "RQ.EXPLAIN key id",
        reply: "A map: `id`, `state`, `why` (a sentence), `deliveries`, `failed`, `lapsed`, `lost`, \
                `tries_max`, `reason` (of the last failure, or null), then fields of the state. Ready: \
                `ahead`. Delayed: `until`, `in_ms`. Both, if the queue blocks its tasks: `paused_since`, \
                `leased`, `leased_max` (otherwise 0). Leased: `since`, `until` (0: no deadline), `cancelled`, \
                `holder`. Dead: `died`. Null if there is no such task.",
        example: "> RQ.PUSH emails hello\n1) \"1601155608777-1\"\n> RQ.PAUSE emails\nOK\n\
                  > RQ.EXPLAIN emails 1601155608777-1\n 1) \"id\"\n 2) \"1601155608777-1\"\n 3) \"state\"\n\
                  \x204) \"ready\"\n 5) \"why\"\n 6) \"queue paused since 1601155608999; ready, 0 ahead\"\n...",
        parse: task::explain,
        ..BASE
    },
    Row {
        name: "RQ.PAUSE",
        arity: 2,
        flags: CHANGE,
        keys: Keys::FIRST,
        group: Group::Queue,
        summary: "Stops delivering tasks of a queue.",
        syntax: "RQ.PAUSE key",
        reply: "OK.",
        notes: "Everything else goes on. A pause lasts until RQ.RESUME, over restarts, and also while the queue is empty.",
        example: "> RQ.PAUSE emails\nOK",
        parse: manage::pause,
        ..BASE
    },
    Row {
        name: "RQ.RESUME",
        arity: 2,
        flags: CHANGE,
        keys: Keys::FIRST,
        group: Group::Queue,
        summary: "Resumes delivering tasks of a queue.",
        syntax: "RQ.RESUME key",
        reply: "OK.",
        example: "> RQ.PAUSE emails\nOK\n> RQ.RESUME emails\nOK",
        parse: manage::resume,
        ..BASE
    },
    Row {
        name: "RQ.PURGE",
        arity: -2,
        flags: &["write"],
        keys: Keys::FIRST,
        group: Group::Queue,
        summary: "Removes all tasks of a state, or of all states but leased.",
        syntax: "RQ.PURGE key [READY|DELAYED|DEAD]",
        reply: "The number of tasks.",
        notes: "Leased tasks are never purged.",
        example: "> RQ.PUSH emails hello world\n1) \"1601155608777-1\"\n2) \"1601155608777-2\"\n> RQ.PURGE emails\n(integer) 2",
        parse: manage::purge,
        ..BASE
    },
    Row {
        name: "RQ.CONFIG",
        arity: -2,
        flags: CHANGE,
        keys: Keys::FIRST,
        group: Group::Queue,
        summary: "Shows the settings of a queue, and changes them.",
        syntax: "RQ.CONFIG key [option value ...]",
        reply: "A map of all settings as they are now.",
        notes: "LEASE: the deadline of a pop that names none, in milliseconds. TRIES: tries before a task is \
                dead. BACKOFF: the first wait after a failure. TTL: the longest time that a task may wait; \
                EXPIRED: `delete` or `dead` after that. MAX-LENGTH, MAX-BYTES: limits of waiting tasks; \
                OVERFLOW: a push beyond is refused (`refuse`), or the oldest tasks of the lowest priority are \
                dropped (`drop-oldest`). MAX-LEASED: tasks that may be leased at once. DEAD-LETTER: the queue \
                that dying tasks move to. 0, or an empty name, clears a setting. A change does not affect \
                past events.",
        example: "> RQ.CONFIG emails TRIES 5 MAX-LEASED 10\n 1) \"lease\"\n 2) (integer) 0\n 3) \"tries\"\n\
                  \x204) (integer) 5\n...",
        parse: manage::config,
        ..BASE
    },
    Row {
        name: "RQ.QUEUES",
        arity: -1,
        role: Some(Role::Read),
        flags: READ_SLOW,
        group: Group::Queue,
        summary: "Lists the queues that have tasks, with their counts.",
        syntax: "RQ.QUEUES [MATCH glob] [COUNT n] [CURSOR c]",
        reply: "The cursor of the next page, 0 if there is none, and an array of `[name, ready, delayed, leased, dead]`.",
        notes: "COUNT is the number of queues to look at, 100 by default.",
        example: "> RQ.PUSH emails hello\n1) \"1601155608777-1\"\n> RQ.QUEUES\n1) \"0\"\n2) 1) 1) \"emails\"\n      \
                  2) (integer) 1\n      3) (integer) 0\n      4) (integer) 0\n      5) (integer) 0",
        parse: manage::queues,
        ..BASE
    },
    Row {
        name: "RQ.WORKER",
        arity: -2,
        role: Some(Role::Consume),
        flags: CHANGE,
        group: Group::Queue,
        summary: "Registers workers, whose tasks are requeued when their heartbeat stops.",
        syntax: "RQ.WORKER subcommand [argument ...]",
        reply: "START: `name#n`, the worker's incarnation, to be used in all further commands. BEAT: the \
                receipts of its cancelled tasks, repeated until their lease ends, and of its lapsed leases, \
                once. WORK: OK. REST, STOP, FAIL: the number of requeued tasks. LIST: `[name#n, time to live, \
                tasks]` of each live worker. An incarnation that is no longer alive gets a GONE error, or \
                GONE replaced if another worker of its name is alive.",
        notes: "A worker without a heartbeat for its time to live (3000 ms by default) is lost: all its \
                tasks, and only its own, go back to the front of their queues, in order. Only START and BEAT \
                renew the time. START under the name of a live worker makes that one lost. WORK and REST \
                record which queues it works on, for information; RQ.POP does not need them. STOP and REST \
                cost the tasks no try.",
        example: "> RQ.WORKER START mailer TTL 10000\n\"mailer#210157654325690369\"\n> RQ.PUSH emails hello\n\
                  1) \"1601155608777-1\"\n> RQ.POP WORKER mailer#210157654325690369 emails\n1) 1) \"emails\"\n   \
                  2) \"1601155608777-1\"\n   3) \"hello\"\n   4) \"1601155608777-1@1.1601155600000\"\n   5) (integer) 1\n\
                  > RQ.WORKER FAIL mailer\n(integer) 1",
        subs: WORKER,
        parse: worker::help,
        ..BASE
    },
    Row {
        name: "DEL",
        arity: -2,
        flags: CHANGE,
        keys: Keys::ALL,
        group: Group::Keys,
        summary: "Removes queues with all their tasks, settings and pause.",
        syntax: "DEL key [key ...]",
        reply: "The number of these queues that had tasks.",
        notes: "Leased tasks are removed too.",
        example: "> RQ.PUSH emails hello\n1) \"1601155608777-1\"\n> DEL emails\n(integer) 1",
        parse: keys::del,
        ..BASE
    },
    Row {
        name: "UNLINK",
        arity: -2,
        flags: CHANGE,
        keys: Keys::ALL,
        group: Group::Keys,
        summary: "The same as DEL.",
        syntax: "UNLINK key [key ...]",
        reply: "The number of these queues that had tasks.",
        example: "> RQ.PUSH emails hello\n1) \"1601155608777-1\"\n> UNLINK emails\n(integer) 1",
        parse: keys::del,
        ..BASE
    },
    Row {
        name: "EXISTS",
        arity: -2,
        role: Some(Role::Read),
        flags: READ,
        keys: Keys::ALL,
        group: Group::Keys,
        summary: "Counts which of these queues have tasks.",
        syntax: "EXISTS key [key ...]",
        reply: "A number; a queue that is named twice counts twice.",
        example: "> RQ.PUSH emails hello\n1) \"1601155608777-1\"\n> EXISTS emails nothing\n(integer) 1",
        parse: keys::exists,
        ..BASE
    },
    Row {
        name: "TYPE",
        arity: 2,
        role: Some(Role::Read),
        flags: READ,
        keys: Keys::FIRST,
        group: Group::Keys,
        summary: "Answers whether a key is a queue.",
        syntax: "TYPE key",
        reply: "`RELIABLEQ`, or `none` if it has no tasks.",
        example: "> RQ.PUSH emails hello\n1) \"1601155608777-1\"\n> TYPE emails\nRELIABLEQ",
        parse: keys::kind,
        ..BASE
    },
    Row {
        name: "KEYS",
        arity: 2,
        role: Some(Role::Read),
        flags: READ_SLOW,
        group: Group::Keys,
        summary: "Lists the queues that have tasks.",
        syntax: "KEYS pattern",
        reply: "An array of names.",
        notes: "One reply for all queues; SCAN answers a page at a time.",
        example: "> RQ.PUSH emails hello\n1) \"1601155608777-1\"\n> KEYS *\n1) \"emails\"",
        parse: keys::keys,
        ..BASE
    },
    Row {
        name: "SCAN",
        arity: -2,
        role: Some(Role::Read),
        flags: READ_SLOW,
        group: Group::Keys,
        summary: "Lists the queues that have tasks, a page at a time.",
        syntax: "SCAN cursor [MATCH pattern] [COUNT count] [TYPE type]",
        reply: "The cursor of the next page, 0 if there is none, and an array of names.",
        example: "> RQ.PUSH emails hello\n1) \"1601155608777-1\"\n> SCAN 0 MATCH e* COUNT 100\n1) \"0\"\n\
                  2) 1) \"emails\"",
        parse: keys::scan,
        ..BASE
    },
    Row {
        name: "DBSIZE",
        arity: 1,
        role: Some(Role::Read),
        flags: READ,
        group: Group::Keys,
        summary: "Counts the queues that have tasks.",
        syntax: "DBSIZE",
        reply: "A number.",
        example: "> RQ.PUSH emails hello\n1) \"1601155608777-1\"\n> DBSIZE\n(integer) 1",
        parse: keys::dbsize,
        ..BASE
    },
    Row {
        name: "SUBSCRIBE",
        arity: -2,
        flags: LISTENING,
        role: Some(Role::Read),
        group: Group::PubSub,
        summary: "Subscribes to channels of queues.",
        syntax: "SUBSCRIBE channel [channel ...]",
        reply: "For each channel a message `subscribe`, the channel, and the number of subscriptions. \
                Notifications then arrive as `message`, the channel, and the payload.",
        notes: "`sureq:work:<queue>` carries the number of tasks that became ready, `sureq:done:<queue>` the \
                id of a finished task, `sureq:cancel:<queue>` the id of a cancelled one, \
                `sureq:delete:<queue>` the number of tasks that were removed otherwise. Nothing is ever \
                published on other channels. In RESP2 a subscribed connection can only subscribe, \
                unsubscribe, PING, QUIT and RESET. See [notifications](notifications.md).",
        example: "> SUBSCRIBE sureq:work:emails\n1) \"subscribe\"\n2) \"sureq:work:emails\"\n3) (integer) 1\n\
                  1) \"message\"\n2) \"sureq:work:emails\"\n3) \"2\"",
        parse: pubsub::subscribe,
        ..BASE
    },
    Row {
        name: "UNSUBSCRIBE",
        arity: -1,
        flags: LISTENING,
        role: None,
        group: Group::PubSub,
        summary: "Unsubscribes from channels.",
        syntax: "UNSUBSCRIBE [channel ...]",
        reply: "For each channel a message `unsubscribe`, the channel, and the number of subscriptions left.",
        notes: "Without a channel, from all of them.",
        example: "> UNSUBSCRIBE sureq:work:emails\n1) \"unsubscribe\"\n2) \"sureq:work:emails\"\n3) (integer) 0",
        parse: pubsub::unsubscribe,
        ..BASE
    },
    Row {
        name: "PSUBSCRIBE",
        arity: -2,
        flags: LISTENING,
        role: Some(Role::Read),
        group: Group::PubSub,
        summary: "Subscribes to all channels that match a pattern.",
        syntax: "PSUBSCRIBE pattern [pattern ...]",
        reply: "For each pattern a message `psubscribe`, the pattern, and the number of subscriptions. \
                Notifications then arrive as `pmessage`, the pattern, the channel, and the payload.",
        notes: "Patterns are those of KEYS: `*`, `?`, `[a-z]`, and `\\` to escape a character.",
        example: "> PSUBSCRIBE sureq:done:*\n1) \"psubscribe\"\n2) \"sureq:done:*\"\n3) (integer) 1\n\
                  1) \"pmessage\"\n2) \"sureq:done:*\"\n3) \"sureq:done:emails\"\n4) \"1601155608777-1\"",
        parse: pubsub::psubscribe,
        ..BASE
    },
    Row {
        name: "PUNSUBSCRIBE",
        arity: -1,
        flags: LISTENING,
        role: None,
        group: Group::PubSub,
        summary: "Unsubscribes from patterns.",
        syntax: "PUNSUBSCRIBE [pattern ...]",
        reply: "For each pattern a message `punsubscribe`, the pattern, and the number of subscriptions left.",
        notes: "Without a pattern, from all of them.",
        example: "> PUNSUBSCRIBE sureq:done:*\n1) \"punsubscribe\"\n2) \"sureq:done:*\"\n3) (integer) 0",
        parse: pubsub::punsubscribe,
        ..BASE
    },
    Row {
        name: "PUBSUB",
        arity: -2,
        flags: &["pubsub", "loading", "stale"],
        group: Group::PubSub,
        summary: "Lists subscribed channels and patterns.",
        syntax: "PUBSUB subcommand [argument ...]",
        reply: "Depends on the subcommand.",
        example: "> PUBSUB NUMSUB sureq:work:emails\n1) \"sureq:work:emails\"\n2) (integer) 0",
        subs: PUBSUB,
        ..BASE
    },
    Row {
        name: "PING",
        arity: -1,
        role: None,
        group: Group::Connection,
        summary: "Answers PONG.",
        syntax: "PING [message]",
        reply: "`PONG`, or the message.",
        example: "> PING\nPONG",
        parse: session::ping,
        ..BASE
    },
    Row {
        name: "ECHO",
        arity: 2,
        role: None,
        group: Group::Connection,
        summary: "Answers with its argument.",
        syntax: "ECHO message",
        reply: "The message.",
        example: "> ECHO hi\n\"hi\"",
        parse: session::echo,
        ..BASE
    },
    Row {
        name: "HELLO",
        arity: -1,
        role: None,
        flags: HANDSHAKE,
        group: Group::Connection,
        summary: "Chooses the protocol version, and authenticates.",
        syntax: "HELLO [protover [AUTH username password] [SETNAME clientname]]",
        reply: "A map: server, version, proto, id, mode, role, modules.",
        example: "> HELLO 3\n1# \"server\" => \"sureq\"\n...",
        parse: session::hello,
        ..BASE
    },
    Row {
        name: "AUTH",
        arity: -2,
        role: None,
        flags: HANDSHAKE,
        group: Group::Connection,
        summary: "Authenticates the connection.",
        syntax: "AUTH [username] password",
        reply: "`OK`, or an error that begins with WRONGPASS.",
        notes: "Without a name it is the user `default`, or the user whose token is given as the password. \
                After five wrong passwords in a row the connection is closed. On a server without users it is \
                an error.",
        example: "> AUTH secret\n(error) ERR AUTH called without any password configured: this server knows no users",
        parse: session::auth,
        ..BASE
    },
    Row {
        name: "ACL",
        arity: -2,
        role: None,
        group: Group::Connection,
        summary: "Answers the name of the user.",
        syntax: "ACL WHOAMI",
        reply: "The name of the user; `default` on a server without users.",
        example: "> ACL WHOAMI\n\"default\"",
        subs: ACL,
        ..BASE
    },
    Row {
        name: "CLIENT",
        arity: -2,
        role: None,
        group: Group::Connection,
        summary: "Names and lists connections.",
        syntax: "CLIENT subcommand [argument ...]",
        reply: "Depends on the subcommand.",
        example: "> CLIENT SETNAME worker-7\nOK",
        subs: CLIENT,
        ..BASE
    },
    Row {
        name: "SELECT",
        arity: 2,
        role: None,
        group: Group::Connection,
        summary: "Chooses the database; there is only 0.",
        syntax: "SELECT 0",
        reply: "`OK`; an error for any other number.",
        example: "> SELECT 0\nOK",
        parse: session::select,
        ..BASE
    },
    Row {
        name: "RESET",
        arity: 1,
        role: None,
        flags: HANDSHAKE,
        group: Group::Connection,
        summary: "Resets the connection to its initial state.",
        syntax: "RESET",
        reply: "`RESET`.",
        notes: "Protocol version 2, no name, not authenticated.",
        example: "> RESET\nRESET",
        parse: session::reset,
        ..BASE
    },
    Row {
        name: "QUIT",
        arity: -1,
        role: None,
        flags: HANDSHAKE,
        group: Group::Connection,
        summary: "Closes the connection.",
        syntax: "QUIT",
        reply: "`OK`.",
        example: "> QUIT\nOK",
        parse: session::quit,
        ..BASE
    },
    Row {
        name: "INFO",
        arity: -1,
        role: None,
        summary: "Answers figures of the server.",
        syntax: "INFO [section ...]",
        notes: INFO_FIELDS,
        reply: "A text of `name:value` lines.",
        example: "> INFO server\n# Server\nredis_version:7.4.0\n...",
        parse: session::info,
        ..BASE
    },
    Row {
        name: "COMMAND",
        arity: -1,
        role: None,
        summary: "Describes the commands.",
        syntax: "COMMAND [subcommand [argument ...]]",
        reply: "Depends on the subcommand; without one, the reply of COMMAND INFO.",
        example: "> COMMAND GETKEYS RQ.POP COUNT 10 emails reports\n1) \"emails\"\n2) \"reports\"",
        subs: COMMAND,
        parse: session::command,
        ..BASE
    },
    Row {
        name: "CONFIG",
        arity: -2,
        role: None,
        flags: &["noscript", "loading", "stale"],
        summary: "Answers tools that query Redis' settings.",
        syntax: "CONFIG GET parameter [parameter ...]",
        reply: "An empty map: this server has none of Redis' settings.",
        example: "> CONFIG GET save\n(empty array)",
        subs: CONFIG,
        ..BASE
    },
    Row {
        name: "TIME",
        arity: 1,
        role: None,
        summary: "Answers the server's clock.",
        syntax: "TIME",
        reply: "The unix time in seconds, and the microseconds of the current one.",
        example: "> TIME\n1) \"1601155608\"\n2) \"777123\"",
        parse: session::time,
        ..BASE
    },
];

const ACL: &[Sub] = &[
    Sub {
        name: "WHOAMI",
        arity: 2,
        syntax: "WHOAMI",
        summary: "The name of the user.",
        parse: session::acl_whoami,
    },
    Sub { name: "HELP", arity: 2, syntax: "HELP", summary: "This text.", parse: session::acl_help },
];

const WORKER: &[Sub] = &[
    Sub {
        name: "START",
        arity: -3,
        syntax: "START <name> [TTL <ms>]",
        summary: "Registers a worker.",
        parse: worker::start,
    },
    Sub {
        name: "BEAT",
        arity: 3,
        syntax: "BEAT <name#n>",
        summary: "Sends a heartbeat.",
        parse: worker::beat,
    },
    Sub {
        name: "WORK",
        arity: 4,
        syntax: "WORK <name#n> <key>",
        summary: "Records that it works on a queue.",
        parse: worker::work,
    },
    Sub {
        name: "REST",
        arity: 4,
        syntax: "REST <name#n> <key>",
        summary: "Ends that, and requeues its tasks of the queue.",
        parse: worker::rest,
    },
    Sub {
        name: "STOP",
        arity: 3,
        syntax: "STOP <name#n>",
        summary: "Ends the worker, and requeues its tasks.",
        parse: worker::stop,
    },
    Sub {
        name: "FAIL",
        arity: 3,
        syntax: "FAIL <name>",
        summary: "Declares a worker lost.",
        parse: worker::fail,
    },
    Sub { name: "LIST", arity: 2, syntax: "LIST", summary: "Lists live workers.", parse: worker::list },
    Sub { name: "HELP", arity: 2, syntax: "HELP", summary: "This text.", parse: worker::help },
];

const PUBSUB: &[Sub] = &[
    Sub {
        name: "CHANNELS",
        arity: -2,
        syntax: "CHANNELS [<pattern>]",
        summary: "The channels that have subscribers.",
        parse: pubsub::channels,
    },
    Sub {
        name: "NUMSUB",
        arity: -2,
        syntax: "NUMSUB [<channel> ...]",
        summary: "The number of subscribers of channels, without patterns.",
        parse: pubsub::numsub,
    },
    Sub {
        name: "NUMPAT",
        arity: 2,
        syntax: "NUMPAT",
        summary: "The number of patterns with subscribers.",
        parse: pubsub::numpat,
    },
    Sub { name: "HELP", arity: 2, syntax: "HELP", summary: "This text.", parse: pubsub::help },
];

const CLIENT: &[Sub] = &[
    Sub {
        name: "ID",
        arity: 2,
        syntax: "ID",
        summary: "The number of this connection.",
        parse: session::client_id,
    },
    Sub {
        name: "SETNAME",
        arity: 3,
        syntax: "SETNAME <name>",
        summary: "Names this connection.",
        parse: session::client_setname,
    },
    Sub {
        name: "GETNAME",
        arity: 2,
        syntax: "GETNAME",
        summary: "The name of this connection, or null.",
        parse: session::client_getname,
    },
    Sub {
        name: "SETINFO",
        arity: 4,
        syntax: "SETINFO LIB-NAME|LIB-VER <value>",
        summary: "Records which library the client uses.",
        parse: session::client_setinfo,
    },
    Sub {
        name: "INFO",
        arity: 2,
        syntax: "INFO",
        summary: "A line on this connection.",
        parse: session::client_info,
    },
    Sub {
        name: "LIST",
        arity: -2,
        syntax: "LIST [TYPE NORMAL|MASTER|REPLICA|PUBSUB | ID <id> ...]",
        summary: "A line on each connection.",
        parse: session::client_list,
    },
    Sub {
        name: "NO-EVICT",
        arity: 3,
        syntax: "NO-EVICT ON|OFF",
        summary: "Accepted; no connection is evicted here.",
        parse: session::client_on_off,
    },
    Sub {
        name: "NO-TOUCH",
        arity: 3,
        syntax: "NO-TOUCH ON|OFF",
        summary: "Accepted; nothing is touched here.",
        parse: session::client_on_off,
    },
    Sub { name: "HELP", arity: 2, syntax: "HELP", summary: "This text.", parse: session::client_help },
];

const COMMAND: &[Sub] = &[
    Sub {
        name: "COUNT",
        arity: 2,
        syntax: "COUNT",
        summary: "The number of commands.",
        parse: session::command_count,
    },
    Sub {
        name: "INFO",
        arity: -2,
        syntax: "INFO [<command> ...]",
        summary: "Arity, flags and keys of commands.",
        parse: session::command_info,
    },
    Sub {
        name: "DOCS",
        arity: -2,
        syntax: "DOCS [<command> ...]",
        summary: "The documentation of commands.",
        parse: session::command_docs,
    },
    Sub {
        name: "LIST",
        arity: 2,
        syntax: "LIST",
        summary: "The names of all commands.",
        parse: session::command_list,
    },
    Sub {
        name: "GETKEYS",
        arity: -3,
        syntax: "GETKEYS <command> [<argument> ...]",
        summary: "Which arguments of a command are keys.",
        parse: session::command_getkeys,
    },
    Sub { name: "HELP", arity: 2, syntax: "HELP", summary: "This text.", parse: session::command_help },
];

const CONFIG: &[Sub] = &[
    Sub {
        name: "GET",
        arity: -3,
        syntax: "GET <pattern> ...",
        summary: "Redis' settings: always an empty map.",
        parse: session::config_get,
    },
    Sub { name: "HELP", arity: 2, syntax: "HELP", summary: "This text.", parse: session::config_help },
];

/// The fields of INFO about the store.
const INFO_FIELDS: &str = "Sections are `server`, `clients`, `memory`, `persistence` and `stats`. Counters begin at 0 with each start. Fields
about the log are 0 with homes other than a directory.

| field | meaning |
|---|---|
| `used_memory` | bytes that count against `--memory`: tasks, workers, the cache, unwritten data, connections |
| `used_memory_rss` | resident memory of the process |
| `maxmemory` | the value of `--memory`; 0 is no limit |
| `cache_bytes` | payloads in memory, at most `--cache` |
| `durable_position` | all events before this position are as durable as `--durability` promises |
| `log_position` | number of events since the store was made |
| `log_bytes_written` | bytes written to the log |
| `log_bytes_since_checkpoint` | bytes of the log that a restart would read now |
| `log_segments`, `log_segments_bytes` | files of the log, and their size |
| `log_live_bytes` | bytes of existing tasks in them |
| `checkpoint_position` | position of the newest checkpoint; 0 before the first |
| `checkpoint_due_bytes` | the next checkpoint is taken when `log_bytes_since_checkpoint` reaches this |
| `checkpoint_running` | 1 while a checkpoint is being taken |
| `checkpoints_taken`, `checkpoint_bytes_written` | number of checkpoints taken, and bytes written for them |
| `copy_forward_running` | 1 during compaction: while tasks are copied out of a segment that is mostly dead |
| `copied_bytes_written` | bytes of the log that compaction wrote |
| `segment_bytes` | the size of a new segment |
| `disk_free_bytes` | free space on the disk of the store, at most some seconds old |
| `disk_full` | 1 while pushes are refused with `NOSPACE` |
| `read_errors` | failed reads of the log |
| `unreadable_tasks` | tasks that are dead because their payload cannot be read; their reason names file and offset |
| `unreadable_segments` | files of the log that are kept because they, or parts of them, cannot be read |";
