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
        notes: "Makes the queue if there is none. A payload is any bytes, also none at all. All payloads are added, or none is.",
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
        summary: "Hands out tasks, which stay with the queue until they are acknowledged.",
        syntax: "RQ.POP [COUNT n] [BLOCK ms] [LEASE ms] [WORKER w#n] [CONN] [META] key [key ...]",
        reply: "An array of `[key, id, payload]`; an empty one if there is nothing; null when BLOCK ran out. With \
                LEASE, WORKER or CONN each is `[key, id, payload, receipt, deliveries]`. META adds a map of name, tries, \
                pushed-at and last reason.",
        notes: "Options come in any order before the keys, and their words are never keys. COUNT is 1 unless given; a bare \
                number before the keys is a count too, if a key follows it. All that is wanted is taken from the first queue, \
                then from the next. BLOCK 0 waits for ever. LEASE takes the task back after so many milliseconds, WORKER when \
                that worker is gone, CONN when this connection is closed.",
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
        summary: "Finishes tasks that were handed out.",
        syntax: "RQ.ACK key id|receipt [id|receipt ...]",
        reply: "An array of those arguments, as they were given, that this call finished.",
        notes: "A receipt counts only while its delivery is the current one. A bare id also finishes a task whose lease \
                ran out and that waits again. A malformed id is an error, and nothing is finished; one that no task has is left out.",
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
        summary: "Hands out again what was popped long ago and never finished.",
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
        reply: "An array. Ready tasks, which are shown unless another state is named: `[id, payload]`. PENDING: \
                `[id, payload, last delivery, elapsed, deliveries]`. DELAYED: `[id, payload, due]`. DEAD: \
                `[id, payload, died at, reason, failed, lapsed, lost]`. Times are in milliseconds.",
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
        summary: "Adds one task with a name, a delay, a priority or bounds of its own.",
        syntax: "RQ.ADD key payload [NAME name] [DELAY ms|AT unix-ms] [PRIORITY n] [TRIES n] [BACKOFF ms] [TTL ms] [UNIQUE]",
        reply: "`[id, added, state]`: added is 1, or 0 if a task of the queue has the name already; then id and state are \
                that task's, and nothing is added.",
        notes: "A name is free again when its task is gone; a dead task still has it. UNIQUE makes the payload the name. \
                DELAY counts from now, AT follows the wall clock. PRIORITY is from -128 to 127, larger ones first. TRIES and \
                BACKOFF go before those of the queue; a wait of the backoff is between half of it and all of it, doubles each \
                time, and is an hour at most. TTL is how long the task may wait in all; what then becomes of it is the \
                queue's EXPIRED.",
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
        summary: "Moves the deadline of a lease to so many milliseconds from now.",
        syntax: "RQ.EXTEND key id|receipt ms",
        reply: "1; 0 if it is not, or no longer, this delivery that has the task; `CANCELLED` if the task was cancelled.",
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
        summary: "Gives a task back, to be handed out again.",
        syntax: "RQ.RETURN key id|receipt [DELAY ms] [FRONT|BACK] [FAILED reason [DEAD]]",
        reply: "1; 0 if it is not, or no longer, this delivery that has the task; `CANCELLED` if the task was cancelled, and \
                so is gone.",
        notes: "To the front, and at no cost, unless said otherwise. FAILED costs a try and waits for the backoff, or for DELAY \
                if that is given; the task is dead if that was its last try, or if DEAD says that it \
                was. The first 1024 bytes of the reason are kept.",
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
        summary: "Cancels tasks: those that wait are gone, holders of the others are told.",
        syntax: "RQ.CANCEL key (ID id [id ...] | NAME name [name ...] | PAYLOAD payload)",
        reply: "How many were cancelled; one that was cancelled before counts no more.",
        notes: "The holder of a task hears of it at its next RQ.EXTEND or RQ.WORKER BEAT. It may still finish the task; if it \
                returns the task, or its lease ends, the task is gone. Dead tasks are not touched. PAYLOAD looks at all tasks \
                that are there when it is asked, which takes its time; it goes on step by step, and others are served between the steps. If the store closes \
                meanwhile, or a payload cannot be read, the error says so, and part of it may have been done.",
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
        summary: "Puts tasks among the dead, or into the dead-letter queue if there is one.",
        syntax: "RQ.BURY key id|receipt [id|receipt ...]",
        reply: "How many.",
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
        summary: "Brings dead tasks back to the end of the line.",
        syntax: "RQ.REVIVE key (ALL | id [id ...])",
        reply: "How many.",
        notes: "Their tries are counted from zero again; the numbers of their deliveries go on.",
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
        summary: "Removes tasks, whatever their state.",
        syntax: "RQ.DELETE key id [id ...]",
        reply: "How many.",
        notes: "A holder is not told; its acknowledgement finds nothing. RQ.CANCEL is kinder.",
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
        reply: "A map: `id`, `state`, `why` (in words), `deliveries`, `failed`, `lapsed`, `lost`, `tries_max`, `reason` (of the \
                last failure, or null), then what concerns the state: `ahead`; `until` and `in_ms`; with both, what holds the whole queue up: `paused_since`, `leased` and `leased_max` (each 0 unless that is it); `since`, `until` (0: no deadline), \
                `cancelled` and `holder`; `died`. Null if there is no such task.",
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
        summary: "Stops handing out tasks of a queue.",
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
        summary: "Hands out tasks of a queue again.",
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
        summary: "Removes all tasks of a state; of all states but leased if none is given.",
        syntax: "RQ.PURGE key [READY|DELAYED|DEAD]",
        reply: "How many.",
        notes: "Tasks that somebody has are never purged.",
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
        notes: "LEASE: the deadline of a pop that names none, in milliseconds. TRIES: how often a task is tried. BACKOFF: the \
                first wait after a failure. TTL: how long a task may wait; EXPIRED: `delete` or `dead`, what then becomes of \
                it. MAX-LENGTH, MAX-BYTES: how much may wait, OVERFLOW: `refuse` or `drop-oldest`, what a push beyond that \
                does (the oldest of the lowest priority goes). MAX-LEASED: how many may be handed out at once. DEAD-LETTER: the queue that dying tasks move to. 0, or \
                an empty name, clears. What happened before happened by the old settings.",
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
        notes: "COUNT is how many queues are looked at, 100 unless given.",
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
        summary: "The life of a worker, whose tasks come back when its heartbeat stops.",
        syntax: "RQ.WORKER subcommand [argument ...]",
        reply: "START: `name#n`, by which the worker goes from then on. BEAT: the receipts of its tasks that were cancelled, \
                again and again until they end, and of its leases that ran out, once. WORK: OK. REST, STOP, FAIL: how many \
                tasks went back. LIST: `[name#n, time to live, tasks]` of each that is alive. An incarnation that is no longer \
                alive gets an error that begins with GONE, or with GONE replaced if another worker of its name is alive.",
        notes: "A worker that does not beat for its time to live (3000 ms unless it says otherwise) is lost, and all its tasks, \
                and only its own, go back to the front of their queues, in their order. Only START and BEAT count as a sign of \
                life. START of a name that is alive makes its predecessor lost. WORK and REST say which queues it works on, for \
                all to see; RQ.POP does not ask for it. STOP and REST cost the tasks no try.",
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
        reply: "How many of them had tasks.",
        notes: "Tasks that were handed out are removed too.",
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
        reply: "How many of them had tasks.",
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
        summary: "Tells whether a key is a queue.",
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
        summary: "Listens to what happens to queues.",
        syntax: "SUBSCRIBE channel [channel ...]",
        reply: "For each channel a message `subscribe`, the channel, and how many subscriptions there are now. What \
                happens then arrives as `message`, the channel, and the payload.",
        notes: "`sureq:work:<queue>` tells how many tasks became ready, `sureq:done:<queue>` the id of a task that was \
                finished, `sureq:cancel:<queue>` the id of one that was cancelled, `sureq:delete:<queue>` how many are \
                gone otherwise. Nothing is ever told on another channel. In RESP2 a connection that has subscribed can \
                only subscribe, unsubscribe, PING, QUIT and RESET. [Notifications](notifications.md) has the rest.",
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
        summary: "Listens no longer to channels.",
        syntax: "UNSUBSCRIBE [channel ...]",
        reply: "For each channel a message `unsubscribe`, the channel, and how many subscriptions are left.",
        notes: "Without a channel it is about all of them.",
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
        summary: "Listens to all channels that match a pattern.",
        syntax: "PSUBSCRIBE pattern [pattern ...]",
        reply: "For each pattern a message `psubscribe`, the pattern, and how many subscriptions there are now. What \
                happens then arrives as `pmessage`, the pattern, the channel, and the payload.",
        notes: "Patterns are those of KEYS: `*`, `?`, `[a-z]`, and `\\` for a character as it is.",
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
        summary: "Listens no longer to patterns.",
        syntax: "PUNSUBSCRIBE [pattern ...]",
        reply: "For each pattern a message `punsubscribe`, the pattern, and how many subscriptions are left.",
        notes: "Without a pattern it is about all of them.",
        example: "> PUNSUBSCRIBE sureq:done:*\n1) \"punsubscribe\"\n2) \"sureq:done:*\"\n3) (integer) 0",
        parse: pubsub::punsubscribe,
        ..BASE
    },
    Row {
        name: "PUBSUB",
        arity: -2,
        flags: &["pubsub", "loading", "stale"],
        group: Group::PubSub,
        summary: "Tells what is being listened to.",
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
        summary: "Answers.",
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
        summary: "Chooses the version of the protocol, and says who the client is.",
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
        summary: "Says who the client is.",
        syntax: "AUTH [username] password",
        reply: "`OK`, or an error that begins with WRONGPASS.",
        notes: "Without a name it is the user `default`, or the one whose token is given as the password. After some wrong \
                passwords in a row the connection is closed. On a server without users it is an error.",
        example: "> AUTH secret\n(error) ERR AUTH called without any password configured: this server knows no users",
        parse: session::auth,
        ..BASE
    },
    Row {
        name: "ACL",
        arity: -2,
        role: None,
        group: Group::Connection,
        summary: "Tells who the client is.",
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
        summary: "Chooses the database, of which there is one.",
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
        summary: "Makes the connection as if it were new.",
        syntax: "RESET",
        reply: "`RESET`.",
        notes: "Version 2 of the protocol, no name, not authenticated.",
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
        summary: "Tells about the server.",
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
        reply: "Depends on the subcommand; alone, what COMMAND INFO answers.",
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
        summary: "Answers tools that ask for Redis' settings.",
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
        summary: "Tells the server's clock.",
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
        summary: "Begins a worker's life.",
        parse: worker::start,
    },
    Sub {
        name: "BEAT",
        arity: 3,
        syntax: "BEAT <name#n>",
        summary: "Says that it lives.",
        parse: worker::beat,
    },
    Sub {
        name: "WORK",
        arity: 4,
        syntax: "WORK <name#n> <key>",
        summary: "Says that it works on a queue.",
        parse: worker::work,
    },
    Sub {
        name: "REST",
        arity: 4,
        syntax: "REST <name#n> <key>",
        summary: "Says that it no longer does, and gives back what it has of it.",
        parse: worker::rest,
    },
    Sub {
        name: "STOP",
        arity: 3,
        syntax: "STOP <name#n>",
        summary: "Ends its life, and gives back what it has.",
        parse: worker::stop,
    },
    Sub {
        name: "FAIL",
        arity: 3,
        syntax: "FAIL <name>",
        summary: "Declares a worker lost.",
        parse: worker::fail,
    },
    Sub { name: "LIST", arity: 2, syntax: "LIST", summary: "Who is alive.", parse: worker::list },
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
        summary: "How many subscribers channels have, patterns aside.",
        parse: pubsub::numsub,
    },
    Sub {
        name: "NUMPAT",
        arity: 2,
        syntax: "NUMPAT",
        summary: "How many patterns have subscribers.",
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
        summary: "Says which library the client uses.",
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
        summary: "How many commands there are.",
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
        summary: "What commands are for.",
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
        summary: "Redis' settings, of which there are none here.",
        parse: session::config_get,
    },
    Sub { name: "HELP", arity: 2, syntax: "HELP", summary: "This text.", parse: session::config_help },
];

/// What INFO tells of the store.
const INFO_FIELDS: &str = "Sections are `server`, `clients`, `memory`, `persistence` and `stats`. Counts are since the start; what concerns a store of our own is 0
with another home.

| field | |
|---|---|
| `used_memory` | bytes that count against `--memory`: tasks, workers, the cache, what waits to be written, connections |
| `used_memory_rss` | bytes that the process has from the system |
| `maxmemory` | what `--memory` says; 0 is no limit |
| `cache_bytes` | payloads in memory, at most `--cache` |
| `durable_position` | all events before it are as durable as `--durability` promises |
| `log_position` | how many events there have been, in all the life of the store |
| `log_bytes_written` | bytes written to the log |
| `log_bytes_since_checkpoint` | bytes of the log that a start would read now |
| `log_segments`, `log_segments_bytes` | files of the log, and their size |
| `log_live_bytes` | what the tasks that are there take up in them |
| `checkpoint_position` | where the newest checkpoint stands; 0 before the first |
| `checkpoint_due_bytes` | the next one is taken when `log_bytes_since_checkpoint` has come to this |
| `checkpoint_running` | 1 while one is being taken |
| `checkpoints_taken`, `checkpoint_bytes_written` | how many were taken, and the bytes written for them |
| `copy_forward_running` | 1 while old tasks are copied out of a segment that is mostly dead |
| `copied_bytes_written` | bytes of the log that were written so |
| `segment_bytes` | the size of a new segment |
| `disk_free_bytes` | what was free on the disk of the store, some seconds ago at most |
| `disk_full` | 1 while pushes are refused with `NOSPACE` |
| `read_errors` | reads of the log that failed |
| `unreadable_tasks` | tasks that are dead because their payload cannot be read; their reason names file and offset |
| `unreadable_segments` | files of the log that are kept because they, or parts of them, cannot be read |";
