//! Round trips between client and server: the server parses every command that the client encodes, and the client
//! decodes every reply that the server encodes, in both versions of RESP.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use proptest::prelude::*;
use sureq_core::command::{
    AckScope, Add, Block, Cancel, Command, ConnId, IdForm, LapseEnd, LapsePolicy, LeaseAsk, NameArg, Pop,
    Return, TaskRef, TaskRefs, View, When, Worker, WorkerRef,
};
use sureq_core::id::{Receipt, TaskId};
use sureq_core::reply::{
    Explanation, HeldUp, Info, More, Outcome, QueueRow, Refusal, Replies, Reply, Span, TaskView, Why,
    WorkerRow,
};
use sureq_core::settings::{Change, Changes, Expired, Overflow, Place, Settings};
use sureq_core::task::{Holder, StateKind, Tries};
use sureq_core::time::{LogTime, WallTime};
use sureq_proto::resp::{Args, Limits, Parser, Scanner, Version};
use sureq_proto::verbs::{Arg, Caller, Kind, Request, TABLE, parse};
use sureq_proto::{
    Inexpressible, ReplyForm, ReplyStyle, decode_refusal, decode_reply, encode_command, encode_reply,
};

const CONN: ConnId = ConnId(7);
const KINDS: u64 = 28;

/// A source of pseudo-random numbers from a seed.
#[derive(Clone, Debug)]
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: u64) -> u64 {
        // SplitMix64: of good enough quality here, and reproducible from the seed.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % n
    }

    fn is(&mut self) -> bool {
        self.below(2) == 1
    }

    /// A duration or a count that is not zero.
    fn some(&mut self) -> u64 {
        let size = [3, 1_000, 1 << 40][self.below(3) as usize];
        1 + self.below(size)
    }

    fn maybe(&mut self) -> Option<u64> {
        self.is().then(|| self.some())
    }

    fn small(&mut self) -> u32 {
        self.below(1 << 20) as u32
    }

    fn bytes(&mut self) -> Vec<u8> {
        let len = self.below(12);
        (0..len).map(|_| self.below(256) as u8).collect()
    }

    fn boxed(&mut self) -> Box<[u8]> {
        self.bytes().into()
    }

    /// The name of a queue, of a task or of a worker, an id or a payload: often a word that a command gives a meaning.
    fn word(&mut self) -> Vec<u8> {
        match self.below(4) {
            0 => KEYWORDS[self.below(KEYWORDS.len() as u64) as usize].to_ascii_lowercase().into_bytes(),
            _ => self.bytes(),
        }
    }

    fn list(&mut self) -> Vec<Vec<u8>> {
        let len = 1 + self.below(4);
        (0..len).map(|_| self.word()).collect()
    }

    fn id(&mut self) -> TaskId {
        TaskId::new(1_700_000_000_000 + self.below(1 << 30), 1 + self.below(100_000)).expect("in range")
    }

    fn time(&mut self) -> LogTime {
        LogTime(self.some())
    }

    fn tries(&mut self) -> Tries {
        Tries { failed: self.small(), lapsed: self.small(), lost: self.small() }
    }

    fn view(&mut self) -> View {
        [View::Ready, View::Leased, View::Delayed, View::Dead][self.below(4) as usize]
    }
}

/// The data that a command borrows.
struct Words {
    a: Vec<u8>,
    b: Vec<u8>,
    list: Vec<Vec<u8>>,
}

impl Words {
    fn of(dice: &mut Dice) -> Self {
        Self { a: dice.word(), b: dice.word(), list: dice.list() }
    }
}

/// All words that the table gives a meaning: options, alternatives, states and subcommands.
static KEYWORDS: LazyLock<Vec<&'static str>> = LazyLock::new(|| {
    let mut words = BTreeSet::new();
    for row in TABLE {
        words.extend(row.subs.iter().map(|sub| sub.name));
        let of_subs = row.subs.iter().flat_map(|sub| sub.args);
        row.args.iter().chain(of_subs).for_each(|arg| note_keywords(arg, &mut words));
    }
    words.into_iter().collect()
});

fn note_keywords(arg: &Arg, words: &mut BTreeSet<&'static str>) {
    let options = match arg.kind {
        Kind::Word(own) => return words.extend(own),
        Kind::Block(args) => return args.iter().for_each(|arg| note_keywords(arg, words)),
        Kind::Options(options) => options.list,
        Kind::OneOf(alternatives) => alternatives,
        _ => return,
    };
    for option in options {
        words.extend(Some(option.name).filter(|name| !name.is_empty()));
        option.args.iter().for_each(|arg| note_keywords(arg, words));
    }
}

fn worker<'a>(dice: &mut Dice, words: &'a Words) -> WorkerRef<'a> {
    WorkerRef { name: &words.a, incarnation: dice.some() }
}

/// One command of each kind that RQ.* can express.
fn command<'a>(
    kind: u64,
    dice: &mut Dice,
    words: &'a Words,
    list: &'a [&'a [u8]],
    changes: &'a [Change<'a>],
) -> Command<'a> {
    let (queue, task) = (&words.a[..], TaskRef { bytes: &words.b, form: IdForm::Long });
    let tasks = TaskRefs { list, form: IdForm::Long };
    match kind {
        0 => Command::Push { queue, payloads: list },
        1 => Command::Add(add(dice, words)),
        2 | 3 => Command::Pop(pop(dice, words, list)),
        4 => Command::Ack { queue, tasks, scope: AckScope::LeasedOrLapsed },
        5 => Command::Extend { queue, task, ms: dice.some() },
        6 => {
            let places = [None, Some(Place::Front), Some(Place::Back), Some(Place::After(dice.some()))];
            let failed = dice.is().then_some(&words.b[..]);
            let to = places[dice.below(4) as usize];
            let is_last = failed.is_some() && to.is_none() && dice.is();
            Command::Return(Return { queue, task, to, failed, is_last })
        }
        7 => Command::Recover { queue, count: dice.small(), elapsed_ms: dice.below(1 << 50) },
        8 => Command::Inspect {
            queue,
            view: dice.view(),
            start: dice.some().cast_signed() - 500,
            count: 1 + dice.small(),
        },
        9 => Command::Info { queue },
        10 => Command::Cancel { queue, which: Cancel::Ids(tasks) },
        11 => Command::Cancel { queue, which: Cancel::Names(list) },
        12 => Command::Cancel { queue, which: Cancel::Payload(&words.b) },
        13 => Command::Bury { queue, tasks },
        14 => Command::Revive { queue, tasks: dice.is().then_some(tasks) },
        15 => Command::Delete { queue, tasks },
        16 => Command::Purge { queue, state: dice.is().then(|| dice.view()) },
        17 => Command::Drop { queues: list },
        18 => Command::Exists { queues: list },
        19 => Command::Pause { queue },
        20 => Command::Resume { queue },
        21 => Command::Config { queue, changes: Changes::List(changes) },
        22 => Command::Explain { queue, task },
        23 => Command::Size,
        24 => Command::Queues {
            pattern: dice.is().then_some(&words.b[..]).filter(|pattern| *pattern != b"*"),
            cursor: dice.below(u64::MAX),
            count: 1 + dice.small(),
        },
        _ => Command::Worker(worker_command(dice, words)),
    }
}

fn add<'a>(dice: &mut Dice, words: &'a Words) -> Add<'a> {
    let names = [None, Some(NameArg::Payload), Some(NameArg::Bytes(&words.b))];
    let times = [When::AtOnce, When::After(dice.some()), When::At(WallTime(dice.below(1 << 50)))];
    Add {
        queue: &words.a,
        payload: &words.list[0],
        name: names[dice.below(3) as usize],
        when: times[dice.below(3) as usize],
        priority: (dice.below(256) as u8).cast_signed(),
        tries: dice.maybe().map(|n| n as u32 | 1),
        backoff_ms: dice.maybe(),
        ttl_ms: dice.maybe(),
    }
}

fn pop<'a>(dice: &mut Dice, words: &'a Words, queues: &'a [&'a [u8]]) -> Pop<'a> {
    let blocks = [None, Some(Block::Forever), Some(Block::Millis(dice.some()))];
    let mut lease = LeaseAsk { ms: dice.maybe(), ..LeaseAsk::NONE };
    match dice.below(3) {
        0 => lease.worker = Some(worker(dice, words)),
        1 => lease.conn = Some(CONN),
        _ => {}
    }
    let count = 1 + dice.small();
    Pop { queues, count, block: blocks[dice.below(3) as usize], lease, meta: dice.is() }
}

fn worker_command<'a>(dice: &mut Dice, words: &'a Words) -> Worker<'a> {
    let name = if words.a.is_empty() { b"w" } else { &words.a[..] };
    match dice.below(7) {
        0 => Worker::Start { name, ttl_ms: dice.some() },
        1 => Worker::Beat(worker(dice, words)),
        2 => Worker::Work(worker(dice, words), &words.b),
        3 => Worker::Rest(worker(dice, words), &words.b),
        4 => Worker::Stop(worker(dice, words)),
        5 => Worker::Fail { name },
        _ => Worker::List,
    }
}

fn changes<'a>(dice: &mut Dice, words: &'a Words) -> Vec<Change<'a>> {
    let mut all = vec![
        Change::LeaseMs(dice.some()),
        Change::Tries(dice.small()),
        Change::BackoffMs(dice.some()),
        Change::TtlMs(dice.some()),
        Change::MaxLength(dice.some()),
        Change::MaxBytes(dice.below(u64::MAX)),
        Change::MaxLeased(dice.some()),
        Change::Expired([Expired::Delete, Expired::Dead][dice.below(2) as usize]),
        Change::Overflow([Overflow::Refuse, Overflow::DropOldest][dice.below(2) as usize]),
        Change::DeadLetter(&words.b),
    ];
    all.retain(|_| dice.is());
    all
}

/// A server must read a command as it was meant, or refuse it.
fn check_round_trip(command: &Command<'_>) {
    let mut out = Vec::new();
    let encoded = encode_command(&mut out, command);
    assert_eq!(encoded.is_err(), means_something_else(command), "{command:?}: {encoded:?}");
    if encoded.is_err() {
        return;
    }
    let (mut unquoted, mut args) = (Vec::new(), Args::default());
    Parser::new(Limits::TRUSTED).parse(&out, &mut unquoted, &mut args).expect("RESP");
    let requests: Vec<Vec<&[u8]>> = args.iter().map(<[&[u8]]>::to_vec).collect();
    assert_eq!(requests.len(), 1);
    match parse(&requests[0], Caller { conn: CONN }) {
        Ok(Request::Home { command: read, style }) => {
            assert_eq!(style, ReplyStyle::Native);
            assert!(same(&read, command), "{read:?}\n{command:?}");
        }
        Ok(Request::Session(_)) => panic!("{command:?} is read as a command of the session"),
        Err(error) => {
            let is_leased_purge = matches!(command, Command::Purge { state: Some(View::Leased), .. });
            assert!(is_leased_purge, "{command:?} is refused: {error}");
        }
    }
}

/// Whether a server would take a name or an id in a command for an option.
fn means_something_else(command: &Command<'_>) -> bool {
    match command {
        Command::Pop(pop) => pop.queues.iter().any(|queue| {
            let options = ["COUNT", "BLOCK", "LEASE", "WORKER", "CONN", "META"];
            options.iter().any(|option| option.as_bytes().eq_ignore_ascii_case(queue))
        }),
        Command::Revive { tasks: Some(TaskRefs { list: [id], .. }), .. } => id.eq_ignore_ascii_case(b"ALL"),
        _ => false,
    }
}

/// Whether two commands have the same meaning. Settings can be given as values or as words.
fn same(one: &Command<'_>, other: &Command<'_>) -> bool {
    match (one, other) {
        (Command::Config { queue: a, changes: x }, Command::Config { queue: b, changes: y }) => {
            a == b && x.iter().eq(y.iter())
        }
        _ => one == other,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4_000))]

    #[test]
    fn the_server_parses_every_encoded_command(seed: u64, kind in 0..KINDS) {
        let mut dice = Dice(seed);
        let words = Words::of(&mut dice);
        let list: Vec<&[u8]> = words.list.iter().map(Vec::as_slice).collect();
        let changes = changes(&mut dice, &words);
        check_round_trip(&command(kind, &mut dice, &words, &list, &changes));
    }

    #[test]
    fn the_client_decodes_every_encoded_reply(seed: u64, kind in 0..KINDS) {
        let mut dice = Dice(seed);
        let words = Words::of(&mut dice);
        let list: Vec<&[u8]> = words.list.iter().map(Vec::as_slice).collect();
        let command = command(kind, &mut dice, &words, &list, &[]);
        let mut replies = Replies::default();
        let reply = reply(&mut dice, &command, &mut replies);
        replies.list.push(reply);
        for version in [Version::Resp2, Version::Resp3] {
            let mut out = Vec::new();
            encode_reply(&mut out, version, &ReplyForm::of(&command, ReplyStyle::Native), &replies.list[0], &replies);
            prop_assert_eq!(Scanner::new(1 << 20).scan(&out), Ok(Some(out.len())));
            let mut read = Replies::default();
            let cut = |range: std::ops::Range<usize>| out[range].to_vec();
            prop_assert_eq!(decode_reply(&ReplyForm::of_sent(&command), &out, cut, &mut read), Ok(()));
            prop_assert_eq!(format!("{read:?}"), format!("{replies:?}"), "{:?}", version);
        }
    }

    /// The client decodes or refuses any reply that a server sends, and never panics.
    #[test]
    fn mismatched_and_truncated_replies_never_panic(seed: u64, kind in 0..KINDS, other in 0..KINDS, cut in 0..200usize) {
        let mut dice = Dice(seed);
        let words = Words::of(&mut dice);
        let list: Vec<&[u8]> = words.list.iter().map(Vec::as_slice).collect();
        let asked = command(kind, &mut dice, &words, &list, &[]);
        let answered = command(other, &mut dice, &words, &list, &[]);
        let mut replies = Replies::default();
        let reply = reply(&mut dice, &answered, &mut replies);
        let mut out = Vec::new();
        encode_reply(&mut out, Version::Resp3, &ReplyForm::of(&answered, ReplyStyle::Native), &reply, &replies);
        out.truncate(cut);
        let mut read = Replies::default();
        if decode_reply(&ReplyForm::of_sent(&asked), &out, |_| Vec::<u8>::new(), &mut read).is_ok() {
            prop_assert_eq!(read.list.len(), 1);
        }
    }
}

/// An id in the home's own format, or `None` if the task has none yet.
fn foreign_id(dice: &mut Dice) -> Option<Box<[u8]>> {
    dice.is().then(|| [b"item-", &dice.bytes()[..]].concat().into())
}

/// Any reply that a command can get, limited to the fields that RESP transmits.
fn reply(dice: &mut Dice, command: &Command<'_>, replies: &mut Replies<Vec<u8>>) -> Reply {
    if dice.below(8) == 0 {
        return Reply::Refused(refusal(dice));
    }
    let n = dice.below(4) as usize;
    let span = Span::new(0, n);
    match command {
        Command::Push { .. } if dice.is() => {
            replies.ids = (0..n).map(|_| dice.id()).collect();
            Reply::Pushed(span)
        }
        Command::Push { .. } => {
            replies.foreign_ids = (0..=n).map(|_| foreign_id(dice)).collect();
            Reply::PushedForeign(Span::new(0, n + 1))
        }
        Command::Add(_) => {
            let states = [StateKind::Ready, StateKind::Delayed, StateKind::Leased, StateKind::Dead];
            let (added, state) = (dice.is(), states[dice.below(4) as usize]);
            if dice.is() {
                return Reply::Added { id: dice.id(), added, state };
            }
            replies.foreign_ids.push(foreign_id(dice));
            Reply::AddedForeign { at: 0, added, state }
        }
        Command::Pop(_) if dice.below(5) == 0 => Reply::TimedOut,
        Command::Pop(pop) => {
            replies.tasks = (0..n).map(|_| popped(dice, pop)).collect();
            Reply::Tasks(span)
        }
        Command::Recover { .. } => {
            replies.tasks = (0..n).map(|_| plain(dice)).collect();
            Reply::Tasks(span)
        }
        Command::Inspect { view, .. } => {
            replies.tasks = (0..n).map(|_| inspected(dice, *view)).collect();
            Reply::Inspected(span)
        }
        Command::Ack { tasks, .. } => {
            let first = |at: &usize| tasks.list.iter().position(|task| *task == tasks.list[*at]) == Some(*at);
            let indexes = (0..tasks.list.len()).filter(first).filter(|_| dice.is());
            replies.indexes = indexes.map(|at| at as u32).collect();
            Reply::Acked(Span::new(0, replies.indexes.len()))
        }
        Command::Extend { .. } | Command::Return(_) => {
            Reply::Outcome([Outcome::Done, Outcome::Stale, Outcome::Cancelled][dice.below(3) as usize])
        }
        Command::Info { .. } => Reply::Info(Box::new(info(dice))),
        Command::Config { .. } => Reply::Settings(Box::new(settings(dice))),
        Command::Queues { .. } => {
            let row = |dice: &mut Dice| QueueRow { name: dice.boxed(), counts: [0; 4].map(|_| dice.some()) };
            replies.queues = (0..n).map(|_| row(dice)).collect();
            Reply::Queues { cursor: dice.below(u64::MAX), rows: span }
        }
        Command::Explain { .. } => Reply::Explained(dice.is().then(|| Box::new(explanation(dice)))),
        Command::Worker(Worker::Start { .. }) => Reply::Started(dice.some()),
        Command::Worker(Worker::Beat(_)) if dice.is() => {
            replies.foreign_ids =
                (0..=n).map(|_| Some([b"item-", &dice.bytes()[..]].concat().into())).collect();
            Reply::ReceiptsForeign(Span::new(0, n + 1))
        }
        Command::Worker(Worker::Beat(_)) => {
            let receipt =
                |dice: &mut Dice| Receipt { id: dice.id(), incarnation: dice.some(), delivery: dice.small() };
            replies.receipts = (0..n).map(|_| receipt(dice)).collect();
            Reply::Receipts(span)
        }
        Command::Worker(Worker::List) => {
            let row = |dice: &mut Dice| WorkerRow {
                name: dice.boxed(),
                incarnation: dice.some(),
                ttl_ms: dice.some(),
                leased: dice.some(),
            };
            replies.workers = (0..n).map(|_| row(dice)).collect();
            Reply::Workers(span)
        }
        _ if dice.is() => Reply::Ok,
        _ => Reply::Count(dice.some()),
    }
}

fn plain(dice: &mut Dice) -> TaskView<Vec<u8>> {
    let foreign_id = (dice.below(4) == 0).then(|| [b"item-", &dice.bytes()[..]].concat().into());
    TaskView {
        queue: 0,
        id: if foreign_id.is_some() { TaskId::NONE } else { dice.id() },
        body: dice.bytes(),
        deliveries: 0,
        incarnation: 0,
        at: LogTime(0),
        elapsed_ms: 0,
        more: None,
        foreign_id,
    }
}

fn popped(dice: &mut Dice, pop: &Pop<'_>) -> TaskView<Vec<u8>> {
    let mut task = plain(dice);
    let queue = dice.below(pop.queues.len() as u64) as usize;
    // If two queues of the pop have the same name, the decoder always reports the first.
    task.queue = pop.queues.iter().position(|name| *name == pop.queues[queue]).unwrap_or(0) as u32;
    if pop.lease != LeaseAsk::NONE {
        task.deliveries = 1 + dice.small();
        task.incarnation = if task.foreign_id.is_some() { 0 } else { dice.some() };
    }
    task.more = pop.meta.then(|| {
        Box::new(More {
            name: dice.is().then(|| dice.boxed()),
            tries: dice.tries(),
            tries_max: dice.small(),
            pushed: dice.time(),
            reason: dice.is().then(|| dice.boxed()),
        })
    });
    task
}

fn inspected(dice: &mut Dice, view: View) -> TaskView<Vec<u8>> {
    let mut task = plain(dice);
    match view {
        // A task that gets its id when it is popped.
        View::Ready if dice.is() => (task.id, task.foreign_id) = (TaskId::NONE, None),
        View::Ready => {}
        View::Delayed => task.at = dice.time(),
        View::Leased => {
            (task.at, task.elapsed_ms, task.deliveries) = (dice.time(), dice.some(), dice.small());
        }
        View::Dead => {
            task.at = dice.time();
            let reason = dice.is().then(|| dice.boxed());
            task.more = Some(Box::new(More { tries: dice.tries(), reason, ..More::default() }));
        }
    }
    task
}

fn settings(dice: &mut Dice) -> Settings {
    let words = Words::of(dice);
    let mut settings = Settings::default();
    for change in changes(dice, &words) {
        if !matches!(change, Change::MaxBytes(n) if n > i64::MAX as u64) {
            settings.change(&change);
        }
    }
    settings
}

fn info(dice: &mut Dice) -> Info {
    if dice.is() {
        return Info { ready: dice.some(), leased: dice.some(), lengths_only: true, ..Info::default() };
    }
    Info {
        ready: dice.some(),
        delayed: dice.some(),
        leased: dice.some(),
        dead: dice.some(),
        waiting_bytes: dice.some(),
        oldest_ms: dice.some(),
        paused: dice.is().then(|| dice.time()),
        pushed: dice.some(),
        finished: dice.some(),
        pushed_of_late: dice.below(1 << 50),
        finished_of_late: dice.below(1 << 50),
        workers: dice.some(),
        settings: settings(dice),
        lengths_only: false,
    }
}

fn explanation(dice: &mut Dice) -> Explanation {
    let holds = [
        None,
        Some(HeldUp::Paused { since: dice.time() }),
        Some(HeldUp::AllLeased { leased: dice.some(), max: dice.some() }),
    ];
    let held_up = holds[dice.below(3) as usize];
    let holders = [None, Some(Holder::Worker(dice.some())), Some(Holder::Conn(ConnId(dice.some())))];
    let holder = holders[dice.below(3) as usize];
    let why = match dice.below(4) {
        0 => Why::Ready { ahead: dice.some(), held_up },
        1 => Why::Delayed { until: dice.some(), in_ms: dice.some(), held_up },
        2 => {
            let until = dice.is().then(|| dice.time());
            Why::Leased { since: dice.time(), until, holder, cancelled: dice.is() }
        }
        _ => Why::Dead { at: dice.time() },
    };
    let has_worker = matches!(why, Why::Leased { holder: Some(Holder::Worker(_)), .. });
    Explanation {
        id: dice.id(),
        deliveries: dice.small(),
        tries: dice.tries(),
        tries_max: dice.small(),
        reason: dice.is().then(|| dice.boxed()),
        worker: has_worker.then(|| [b"w", &dice.bytes()[..]].concat().into()),
        why,
    }
}

fn refusal(dice: &mut Dice) -> Refusal {
    let why = || "it is so".into();
    let all = [
        Refusal::MalformedId,
        Refusal::QueueFull,
        Refusal::WorkerGone,
        Refusal::WorkerReplaced,
        Refusal::NoSpace,
        Refusal::OutOfMemory,
        Refusal::NoMoreIds,
        Refusal::Poisoned,
        Refusal::QueuePoisoned { why: why() },
        Refusal::Closed,
        Refusal::Damaged { id: dice.id(), why: why() },
        Refusal::not_there("WORKER", "layout=work-queue"),
        Refusal::Foreign { message: why() },
        Refusal::WrongType { words: why() },
        Refusal::Unavailable { why: why() },
        Refusal::Unknown { why: why() },
    ];
    all[dice.below(all.len() as u64) as usize].clone()
}

#[test]
fn unknown_errors_keep_their_text() {
    let said = |words: &str| Refusal::Foreign { message: words.into() };
    assert_eq!(decode_refusal(b"ERR wrong number of arguments"), said("wrong number of arguments"));
    assert_eq!(decode_refusal(b"ERR"), said(""));
    assert_eq!(decode_refusal(b"DAMAGED beyond repair"), said("beyond repair"));
    assert_eq!(decode_refusal(b"NOTTHERE nowhere"), said("nowhere"));
    assert_eq!(decode_refusal(b"NOPERM no"), said("NOPERM no"));
    let a_list = Refusal::WrongType { words: "it is a list".into() };
    assert_eq!(decode_refusal(b"WRONGTYPE it is a list"), a_list);
    // The module replies this: its cause is not a failed log.
    let in_doubt = "an internal error has left this queue in doubt: restart the server, or delete the key";
    let poisoned = decode_refusal(format!("POISONED {in_doubt}").as_bytes());
    assert_eq!((poisoned.code(), poisoned.to_string().as_str()), ("POISONED", in_doubt));
    for words in ["NOAUTH Authentication required.", "LOADING wait", "WRONGPASS no", "odd"] {
        assert_eq!(decode_refusal(words.as_bytes()), Refusal::Unavailable { why: words.into() });
    }
}

#[test]
fn names_the_part_of_a_command_that_cannot_be_encoded() {
    fn check(command: &Command<'_>, what: &'static str) {
        let mut out = b"before".to_vec();
        assert_eq!(encode_command(&mut out, command), Err(Inexpressible { what }));
        assert_eq!(out, b"before");
    }
    let policy = LapsePolicy { to: Place::Back, limit: Some(3), then: LapseEnd::Delete };
    let lease = LeaseAsk { lapse: Some(policy), ..LeaseAsk::NONE };
    let queues: &[&[u8]] = &[b"q"];
    check(&Command::Pop(Pop { lease, ..Pop::plain(queues, 1) }), "a pop with a lapse policy of its own");
    let options: &[&[u8]] = &[b"q", b"meta"];
    let what = "a pop from a queue whose name is an option of RQ.POP";
    check(&Command::Pop(Pop::plain(options, 1)), what);
    for id in [&b"all"[..], b"ALL"] {
        let tasks = TaskRefs { list: &[id], form: IdForm::Long };
        let revive = Command::Revive { queue: b"q", tasks: Some(tasks) };
        check(&revive, "a revival of one task whose id is `all`");
    }
    let tasks = TaskRefs { list: &[b"1-1"], form: IdForm::Long };
    let ack = Command::Ack { queue: b"q", tasks, scope: AckScope::Leased };
    check(&ack, "an ack of only leased tasks");
    check(&Command::Push { queue: b"q", payloads: &[] }, "a push without payloads");
    let none = TaskRefs { list: &[], form: IdForm::Long };
    check(&Command::Bury { queue: b"q", tasks: none }, "a command without a task");
    check(&Command::Exists { queues: &[] }, "a command without a queue");
}

/// Every keyword in the place of every name and id of every command.
#[test]
fn a_keyword_as_a_name_or_an_id_is_never_an_option() {
    for word in &*KEYWORDS {
        for len in [1, 2] {
            let a = word.to_ascii_lowercase().into_bytes();
            let words = Words { b: a.clone(), list: vec![a.clone(); len], a };
            let list: Vec<&[u8]> = words.list.iter().map(Vec::as_slice).collect();
            for kind in 0..KINDS {
                // Enough seeds for every choice within a kind.
                for seed in 0..64 {
                    let mut dice = Dice(seed);
                    let changes = changes(&mut dice, &words);
                    check_round_trip(&command(kind, &mut dice, &words, &list, &changes));
                }
            }
        }
    }
}

#[test]
fn a_purge_of_leased_tasks_is_refused_by_the_server() {
    let mut out = Vec::new();
    encode_command(&mut out, &Command::Purge { queue: b"q", state: Some(View::Leased) }).unwrap();
    assert_eq!(String::from_utf8_lossy(&out), "*3\r\n$8\r\nRQ.PURGE\r\n$1\r\nq\r\n$7\r\nPENDING\r\n");
    let error = parse(&[b"RQ.PURGE", b"q", b"PENDING"], Caller { conn: CONN }).unwrap_err();
    assert!(error.as_str().starts_with("ERR leased tasks are not purged"), "{error}");
}

#[test]
fn short_ids_are_sent_as_long_ones() {
    let id = TaskId::new(1_700_000_000_000, 5).unwrap();
    let short = id.short();
    let tasks = TaskRefs { list: &[&short, b"none"], form: IdForm::Short };
    let ack = Command::Ack { queue: b"q", tasks, scope: AckScope::LeasedOrLapsed };
    let mut out = Vec::new();
    encode_command(&mut out, &ack).unwrap();
    let text = String::from_utf8(out).unwrap().replace("\r\n", " ");
    assert_eq!(text, "*4 $6 RQ.ACK $1 q $15 1700000000000-5 $4 none ");
    let mut replies = Replies::<Vec<u8>>::default();
    let answer = b"*1\r\n$15\r\n1700000000000-5\r\n";
    decode_reply(&ReplyForm::of_sent(&ack), answer, |_| Vec::new(), &mut replies).unwrap();
    assert_eq!((&replies.list[..], &replies.indexes[..]), (&[Reply::Acked(Span::new(0, 1))][..], &[0][..]));
}
