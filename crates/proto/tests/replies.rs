//! The exact bytes of each reply, in RESP2 and RESP3.

use sureq_core::command::{AckScope, Command, ConnId, IdForm, LeaseAsk, Pop, TaskRefs, View, Worker};
use sureq_core::id::{Receipt, TaskId};
use sureq_core::reply::{Info, More, Outcome, QueueRow, Refusal, Replies, Reply, Span, TaskView, WorkerRow};
use sureq_core::settings::Settings;
use sureq_core::task::{StateKind, Tries};
use sureq_core::time::LogTime;
use sureq_proto::resp::Version;
use sureq_proto::verbs::{Caller, Request, TABLE, parse};
use sureq_proto::{
    HelloFields, Part, ReplyForm, ReplyStyle, encode_answer, encode_hello, encode_part, encode_reply,
};

const PUSH: Command<'_> = Command::Push { queue: b"q", payloads: &[] };
const POP: Command<'_> = Command::Pop(Pop::plain(&[b"q", b"other"], 2));

fn id(seq: u64) -> TaskId {
    TaskId::new(1_601_155_608_777, seq).expect("in range")
}

fn task(queue: u32, seq: u64, body: &'static [u8]) -> TaskView<&'static [u8]> {
    TaskView {
        queue,
        id: id(seq),
        body,
        deliveries: 3,
        incarnation: 9,
        at: LogTime(100),
        elapsed_ms: 50,
        more: None,
        foreign_id: None,
    }
}

fn samples() -> Replies<&'static [u8]> {
    let name = |name: &[u8]| Box::<[u8]>::from(name);
    Replies {
        list: Vec::new(),
        ids: vec![id(1), id(2)],
        tasks: vec![task(0, 1, b"a"), task(1, 12, b"")],
        indexes: vec![0, 2],
        queues: vec![QueueRow { name: name(b"q"), counts: [1, 2, 3, 4] }],
        receipts: vec![Receipt { id: id(1), incarnation: 9, delivery: 3 }],
        workers: vec![WorkerRow { name: name(b"w"), incarnation: 5, ttl_ms: 3_000, leased: 2 }],
        foreign_ids: vec![Some(name(b"7d2f")), Some(name(b"item"))],
    }
}

/// Shows bytes with a space in place of `\r\n`, and checks that an independent parser finds exactly one frame in
/// them.
fn shown(out: Vec<u8>, version: Version) -> String {
    let text = String::from_utf8(out.clone())
        .expect("the samples are text")
        .replace("\r\n", " ")
        .trim_end()
        .to_owned();
    let behind = match version {
        Version::Resp2 => resp_rs::resp2::parse_frame(out.into()).map(|(_, behind)| behind.len()),
        Version::Resp3 => resp_rs::resp3::parse_frame(out.into()).map(|(_, behind)| behind.len()),
    };
    assert_eq!(behind.ok(), Some(0), "not one frame: {text}");
    text
}

fn check_as(command: &Command<'_>, style: ReplyStyle, reply: &Reply, resp2: &str, resp3: &str) {
    for (version, expect) in [(Version::Resp2, resp2), (Version::Resp3, resp3)] {
        let mut out = Vec::new();
        encode_reply(&mut out, version, &ReplyForm::of(command, style), reply, &samples());
        assert_eq!(shown(out, version), expect, "{version:?}");
    }
}

fn check(command: &Command<'_>, reply: &Reply, expect: &str) {
    check_as(command, ReplyStyle::Native, reply, expect, expect);
}

fn all() -> Span {
    Span::new(0, 2)
}

fn none() -> Span {
    Span::new(0, 0)
}

#[test]
fn push_answers_ids() {
    check(&PUSH, &Reply::Pushed(all()), "*2 $15 1601155608777-1 $15 1601155608777-2");
}

#[test]
fn pop_answers_key_id_and_payload() {
    check(&POP, &Reply::Tasks(none()), "*0");
    let expect = "*2 *3 $1 q $15 1601155608777-1 $1 a *3 $5 other $16 1601155608777-12 $0";
    check(&POP, &Reply::Tasks(all()), expect);
    check_as(&POP, ReplyStyle::Native, &Reply::TimedOut, "$-1", "_");
}

#[test]
fn pop_with_a_lease_answers_a_receipt_too() {
    let expect = "*1 *5 $1 q $15 1601155608777-1 $1 a $19 1601155608777-1@3.9 :3";
    for lease in
        [LeaseAsk { ms: Some(1), ..LeaseAsk::NONE }, LeaseAsk { conn: Some(ConnId(1)), ..LeaseAsk::NONE }]
    {
        let pop = Command::Pop(Pop { lease, ..Pop::plain(&[b"q"], 1) });
        check(&pop, &Reply::Tasks(Span::new(0, 1)), expect);
    }
}

#[test]
fn pop_with_meta_answers_a_map_too() {
    let pop = Command::Pop(Pop { meta: true, ..Pop::plain(&[b"q"], 1) });
    let fields = "$4 name {null} $6 failed :0 $6 lapsed :0 $4 lost :0 $9 tries_max :0 $9 pushed_at :0 $6 reason {null}";
    let head = "*1 *4 $1 q $15 1601155608777-1 $1 a";
    let resp2 = format!("{head} *14 {}", fields.replace("{null}", "$-1"));
    let resp3 = format!("{head} %7 {}", fields.replace("{null}", "_"));
    check_as(&pop, ReplyStyle::Native, &Reply::Tasks(Span::new(0, 1)), &resp2, &resp3);
}

#[test]
fn ack_echoes_its_arguments() {
    let tasks = TaskRefs { list: &[b"1-1", b"no", b"1-2@1.1"], form: IdForm::Long };
    let ack = Command::Ack { queue: b"q", tasks, scope: AckScope::LeasedOrLapsed };
    check(&ack, &Reply::Acked(all()), "*2 $3 1-1 $7 1-2@1.1");
    check(&ack, &Reply::Acked(none()), "*0");
}

#[test]
fn recover_and_inspect_show_tasks() {
    let plain = "*2 *2 $15 1601155608777-1 $1 a *2 $16 1601155608777-12 $0";
    check(&Command::Recover { queue: b"q", count: 2, elapsed_ms: 0 }, &Reply::Tasks(all()), plain);
    let inspect = |view| Command::Inspect { queue: b"q", view, start: 0, count: 2 };
    let one = Reply::Inspected(Span::new(0, 1));
    check(&inspect(View::Ready), &Reply::Inspected(all()), plain);
    check(&inspect(View::Ready), &Reply::Inspected(none()), "*0");
    check(&inspect(View::Leased), &one, "*1 *5 $15 1601155608777-1 $1 a :100 :50 :3");
    check(&inspect(View::Delayed), &one, "*1 *3 $15 1601155608777-1 $1 a :100");
    let dead = "*1 *7 $15 1601155608777-1 $1 a :100 {null} :0 :0 :0";
    check_as(
        &inspect(View::Dead),
        ReplyStyle::Native,
        &one,
        &dead.replace("{null}", "$-1"),
        &dead.replace("{null}", "_"),
    );
}

#[test]
fn a_dead_task_shows_its_reason() {
    let more = More {
        tries: Tries { failed: 1, lapsed: 2, lost: 3 },
        reason: Some(Box::from(&b"no\r\nroom"[..])),
        ..More::default()
    };
    let mut replies = samples();
    replies.tasks[0].more = Some(Box::new(more));
    let inspect = Command::Inspect { queue: b"q", view: View::Dead, start: 0, count: 1 };
    let mut out = Vec::new();
    encode_reply(
        &mut out,
        Version::Resp2,
        &ReplyForm::of(&inspect, ReplyStyle::Native),
        &Reply::Inspected(Span::new(0, 1)),
        &replies,
    );
    assert!(out.ends_with(b":100\r\n$8\r\nno\r\nroom\r\n:1\r\n:2\r\n:3\r\n"));
}

#[test]
fn info_has_redis_rqs_two_fields_first() {
    let info = Info {
        ready: 1,
        delayed: 2,
        leased: 3,
        dead: 4,
        waiting_bytes: 5,
        oldest_ms: 6,
        paused: Some(LogTime(7)),
        pushed: 8,
        finished: 9,
        pushed_of_late: 1234,
        finished_of_late: 5,
        workers: 10,
        settings: Settings { dead_letter: Some(Box::from(&b"dlq"[..])), ..Settings::default() },
        lengths_only: false,
    };
    let fields = "$11 undelivered :1 $9 delivered :3 $5 ready :1 $7 delayed :2 $6 leased :3 $4 dead :4 \
                  $13 waiting_bytes :5 $9 oldest_ms :6 $6 paused :7 $6 pushed :8 $8 finished :9 $7 workers :10 \
                  $17 pushed_per_second $5 123.4 $19 finished_per_second $3 0.5 \
                  $5 lease :0 $5 tries :0 $7 backoff :0 $3 ttl :0 $10 max-length :0 $9 max-bytes :0 $10 max-leased :0 \
                  $7 expired $6 delete $8 overflow $6 refuse $11 dead-letter $3 dlq";
    let command = Command::Info { queue: b"q" };
    let reply = Reply::Info(Box::new(info));
    check_as(&command, ReplyStyle::Native, &reply, &format!("*48 {fields}"), &format!("%24 {fields}"));
    let lengths = Info { ready: 1, leased: 3, lengths_only: true, ..Info::default() };
    let fields = "$11 undelivered :1 $9 delivered :3 $5 ready :1 $6 leased :3";
    let reply = Reply::Info(Box::new(lengths));
    check_as(&command, ReplyStyle::Native, &reply, &format!("*8 {fields}"), &format!("%4 {fields}"));
}

#[test]
fn one_command_of_the_home_has_several_reply_forms() {
    let exists = Command::Exists { queues: &[b"q"] };
    let (zero, one) = (Reply::Count(0), Reply::Count(1));
    check(&exists, &one, ":1");
    check_as(&exists, ReplyStyle::Type, &one, "+RELIABLEQ", "+RELIABLEQ");
    check_as(&exists, ReplyStyle::Type, &zero, "+none", "+none");
    let queues = Command::Queues { pattern: None, cursor: 0, count: 1 };
    let page = Reply::Queues { cursor: 17, rows: Span::new(0, 1) };
    check_as(&queues, ReplyStyle::Keys, &page, "*1 $1 q", "*1 $1 q");
    check_as(&queues, ReplyStyle::Scan, &page, "*2 $2 17 *1 $1 q", "*2 $2 17 *1 $1 q");
    check(&Command::Size, &one, ":1");
    check(&queues, &page, "*2 $2 17 *1 *5 $1 q :1 :2 :3 :4");
}

#[test]
fn a_refusal_is_an_error_with_its_code() {
    check(&PUSH, &Reply::Refused(Refusal::QueueFull), &format!("-QUEUEFULL {}", Refusal::QueueFull));
    check(&PUSH, &Reply::Refused(Refusal::MalformedId), &format!("-ERR {}", Refusal::MalformedId));
}

#[test]
fn replies_to_later_verbs_have_their_form() {
    let start = Command::Worker(Worker::Start { name: b"w", ttl_ms: 1 });
    check(&start, &Reply::Started(5), "$3 w#5");
    check(&PUSH, &Reply::Ok, "+OK");
    check(&PUSH, &Reply::Outcome(Outcome::Done), ":1");
    check(&PUSH, &Reply::Outcome(Outcome::Stale), ":0");
    check(&PUSH, &Reply::Outcome(Outcome::Cancelled), "+CANCELLED");
    check(&PUSH, &Reply::Receipts(Span::new(0, 1)), "*1 $19 1601155608777-1@3.9");
    check(&PUSH, &Reply::Workers(Span::new(0, 1)), "*1 *3 $3 w#5 :3000 :2");
    let added = Reply::Added { id: id(1), added: false, state: StateKind::Delayed };
    check(&PUSH, &added, "*3 $15 1601155608777-1 :0 $7 delayed");
}

#[test]
fn foreign_ids_are_shown_unchanged() {
    check(&PUSH, &Reply::PushedForeign(all()), "*2 $4 7d2f $4 item");
    let added = Reply::AddedForeign { at: 1, added: true, state: StateKind::Ready };
    check(&PUSH, &added, "*3 $4 item :1 $5 ready");
    let mut replies = samples();
    for (task, foreign) in replies.tasks.iter_mut().zip([b"x1", b"x2"]) {
        (task.id, task.foreign_id) = (TaskId::NONE, Some(foreign[..].into()));
    }
    let mut pop = Pop::plain(&[b"q", b"other"], 2);
    pop.lease.ms = Some(1);
    let mut out = Vec::new();
    let tasks = Reply::Tasks(all());
    encode_reply(
        &mut out,
        Version::Resp2,
        &ReplyForm::of(&Command::Pop(pop), ReplyStyle::Native),
        &tasks,
        &replies,
    );
    let popped = "*2 *5 $1 q $2 x1 $1 a $2 x1 :3 *5 $5 other $2 x2 $0  $2 x2 :3";
    assert_eq!(shown(out, Version::Resp2), popped);
}

#[test]
fn tasks_without_an_id_yet_show_null() {
    let mut replies = samples();
    replies.foreign_ids = vec![None, Some(b"emails_7d2f"[..].into())];
    replies.tasks[0].id = TaskId::NONE;
    let shown_as = |command: &Command<'_>, reply: &Reply| {
        let mut out = Vec::new();
        encode_reply(&mut out, Version::Resp2, &ReplyForm::of(command, ReplyStyle::Native), reply, &replies);
        shown(out, Version::Resp2)
    };
    assert_eq!(shown_as(&PUSH, &Reply::PushedForeign(Span::new(0, 1))), "*1 $-1");
    let added = Reply::AddedForeign { at: 0, added: true, state: StateKind::Ready };
    assert_eq!(shown_as(&PUSH, &added), "*3 $-1 :1 $5 ready");
    assert_eq!(shown_as(&PUSH, &Reply::ReceiptsForeign(Span::new(1, 2))), "*1 $11 emails_7d2f");
    let inspect = Command::Inspect { queue: b"q", view: View::Ready, start: 0, count: 1 };
    assert_eq!(shown_as(&inspect, &Reply::Inspected(Span::new(0, 1))), "*1 *2 $-1 $1 a");
}

fn check_answer(line: &str, resp2: &str, resp3: &str) {
    let argv: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
    let Ok(Request::Session(command)) = parse(&argv, Caller { conn: ConnId(1) }) else { panic!("{line}") };
    for (version, expect) in [(Version::Resp2, resp2), (Version::Resp3, resp3)] {
        let mut out = Vec::new();
        assert!(encode_answer(&mut out, version, &command), "{line}");
        assert_eq!(shown(out, version), expect, "{line}");
    }
}

#[test]
fn the_session_answers_commands_that_need_no_home() {
    check_answer("PING", "+PONG", "+PONG");
    check_answer("PING hi", "$2 hi", "$2 hi");
    check_answer("ECHO ", "$0", "$0");
    check_answer("SELECT 0", "+OK", "+OK");
    check_answer("CLIENT NO-EVICT ON", "+OK", "+OK");
    check_answer("CONFIG GET save", "*0", "%0");
    check_answer("SCAN 0 TYPE hash", "*2 $1 0 *0", "*2 $1 0 *0");
    let count = format!(":{}", TABLE.len());
    check_answer("COMMAND COUNT", &count, &count);
    let help = "*5 +CONFIG <subcommand> [<arg> [value] [opt] ...]. Subcommands are: +GET <pattern> ... \
                +    Redis' settings: always an empty map. +HELP +    This text.";
    check_answer("CONFIG HELP", help, help);
}

#[test]
fn command_describes_the_table() {
    let info = "*2 *10 $7 rq.push :-3 {3} +write +denyoom +fast :1 :1 :1 {2} +@write +@fast *0 *0 *0 ";
    let resp2 = info.replace('{', "*").replace('}', "") + "*-1";
    let resp3 = info.replace('{', "~").replace('}', "") + "_";
    check_answer("COMMAND INFO RQ.PUSH nothing", &resp2, &resp3);
    let docs = "$4 echo {4} $7 summary $26 Answers with its argument. $5 since $5 0.1.0 $5 group $10 connection \
                $9 arguments *1 {2} $4 name $7 message $4 type $6 string";
    let maps = |text: &str, marks: [&str; 2]| text.replace("{4}", marks[0]).replace("{2}", marks[1]);
    let (resp2, resp3) = (maps(docs, ["*8", "*4"]), maps(docs, ["%4", "%2"]));
    check_answer("COMMAND DOCS echo nothing", &format!("*2 {resp2}"), &format!("%1 {resp3}"));
    check_answer("COMMAND GETKEYS RQ.POP COUNT 5 a b", "*2 $1 a $1 b", "*2 $1 a $1 b");
    check_answer("COMMAND GETKEYS RQ.PUSH a b", "*1 $1 a", "*1 $1 a");
    let none = "-ERR The command has no key arguments";
    check_answer("COMMAND GETKEYS PING", none, none);
    check_answer("COMMAND GETKEYS FOO", "-ERR Invalid command specified", "-ERR Invalid command specified");
    for line in ["COMMAND", "COMMAND INFO", "COMMAND DOCS", "COMMAND LIST", "COMMAND HELP", "CLIENT HELP"] {
        let argv: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
        let Ok(Request::Session(command)) = parse(&argv, Caller { conn: ConnId(1) }) else {
            panic!("{line}")
        };
        for version in [Version::Resp2, Version::Resp3] {
            let mut out = Vec::new();
            assert!(encode_answer(&mut out, version, &command));
            shown(out, version);
        }
    }
}

#[test]
fn hello_is_a_map() {
    let fields = "$6 server $5 sureq $7 version $5 7.4.0 $5 proto :{v} $2 id :7 $4 mode $10 standalone $4 role $6 master \
                  $7 modules *0";
    for (version, head) in [(Version::Resp2, "*14"), (Version::Resp3, "%7")] {
        let mut out = Vec::new();
        encode_hello(&mut out, version, HelloFields { version: "7.4.0", conn: 7 });
        let fields = fields.replace("{v}", &version.number().to_string());
        assert_eq!(shown(out, version), format!("{head} {fields}"));
    }
}

#[test]
fn the_documentation_names_every_command() {
    let text = sureq_proto::verbs::commands_markdown();
    for row in sureq_proto::verbs::TABLE {
        assert!(
            text.contains(&format!("\n### {}\n\n```text\n{}\n```\n", row.name, row.syntax())),
            "{}",
            row.name
        );
    }
}

#[test]
fn the_parts_of_a_reply_are_the_reply() {
    let replies = samples();
    let pop = Command::Pop(Pop::plain(&[b"q", b"other"], 2));
    let inspect = Command::Inspect { queue: b"q", view: View::Leased, start: 0, count: 2 };
    let recover = Command::Recover { queue: b"q", count: 2, elapsed_ms: 0 };
    let keys = Reply::Queues { cursor: 0, rows: Span::new(0, 1) };
    let cases = [
        (&pop, ReplyStyle::Native, Reply::Tasks(all()), 2),
        (&pop, ReplyStyle::Native, Reply::Tasks(none()), 1),
        (&inspect, ReplyStyle::Native, Reply::Inspected(all()), 2),
        (&recover, ReplyStyle::Native, Reply::Tasks(all()), 2),
        (&PUSH, ReplyStyle::Keys, keys, 1),
        (&PUSH, ReplyStyle::Native, Reply::Pushed(all()), 1),
    ];
    for (command, style, reply, parts) in cases {
        let form = &ReplyForm::of(command, style);
        let (mut whole, mut out, mut part, mut count) =
            (Vec::new(), Vec::new(), Part { from: 0, bytes: 1 }, 1);
        encode_reply(&mut whole, Version::Resp2, form, &reply, &replies);
        while let Some(next) = encode_part(&mut out, Version::Resp2, form, &reply, &replies, part) {
            assert!(next > part.from, "a part has at least one item");
            (part.from, count) = (next, count + 1);
        }
        assert_eq!((out, count), (whole, parts), "{reply:?}");
    }
}
