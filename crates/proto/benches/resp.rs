//! Measures the parsing of a command to a [`Request`] and the encoding of a reply. `cargo bench -p sureq-proto`.

use std::hint::black_box;
use std::time::Instant;

use sureq_core::command::{Command, ConnId, Pop};
use sureq_core::id::TaskId;
use sureq_core::reply::{Replies, Reply, Span, TaskView};
use sureq_core::time::LogTime;
use sureq_proto::resp::{Args, Limits, Parser, Version};
use sureq_proto::verbs::{self, Caller, Request};
use sureq_proto::{ReplyForm, ReplyStyle, encode_reply, text};

const PUSH: &[u8] = b"*3\r\n$7\r\nRQ.PUSH\r\n$6\r\nemails\r\n$16\r\n0123456789abcdef\r\n";
const POP: &[u8] = b"*4\r\n$6\r\nRQ.POP\r\n$5\r\nCOUNT\r\n$2\r\n10\r\n$6\r\nemails\r\n";
const BATCH: usize = 100;
const ROUNDS: usize = 20_000;

fn main() {
    for (name, command) in [("push", PUSH), ("pop count", POP)] {
        let buf = command.repeat(BATCH);
        frames(name, &buf);
        requests(name, &buf);
    }
    lines();
    pop_reply();
}

/// The fastest of several runs, in nanoseconds per item.
fn time(name: &str, items: usize, mut run: impl FnMut()) {
    let best = (0..5)
        .map(|_| {
            let start = Instant::now();
            for _ in 0..ROUNDS {
                run();
            }
            start.elapsed()
        })
        .min()
        .unwrap_or_default();
    let picos = best.as_nanos() * 1_000 / (ROUNDS * items) as u128;
    println!("{name:<32} {:>5}.{} ns", picos / 1_000, picos % 1_000 / 100);
}

fn frames(name: &str, buf: &[u8]) {
    let (mut parser, mut room, mut unquoted) = (Parser::new(Limits::TRUSTED), Args::default(), Vec::new());
    time(&format!("{name}: bytes to words"), BATCH, || {
        let mut args = std::mem::take(&mut room);
        let progress = parser.parse(black_box(buf), &mut unquoted, &mut args);
        assert_eq!(progress.map(|progress| progress.consumed), Ok(buf.len()));
        black_box(&args);
        room = args.renew();
    });
}

fn requests(name: &str, buf: &[u8]) {
    let (mut parser, mut args, mut unquoted) = (Parser::new(Limits::TRUSTED), Args::default(), Vec::new());
    assert!(parser.parse(buf, &mut unquoted, &mut args).is_ok());
    time(&format!("{name}: words to request"), BATCH, || {
        for argv in args.iter() {
            let request = verbs::parse(black_box(argv), Caller { conn: ConnId(1) });
            assert!(matches!(black_box(request), Ok(Request::Home { .. })));
        }
    });
}

fn lines() {
    let buf = b"ADD 0 0123456789abcdef\n".repeat(BATCH);
    let mut parser = text::Parser::new(text::Limits::default());
    let mut items = Vec::new();
    time("text add: bytes to request", BATCH, || {
        items.clear();
        assert_eq!(parser.parse(black_box(&buf), &mut items), Ok(buf.len()));
        black_box(&items);
    });
}

fn pop_reply() {
    let mut replies = Replies::<&[u8]>::default();
    for n in 1..=BATCH as u64 {
        replies.tasks.push(TaskView {
            queue: 0,
            id: TaskId::new(1_601_155_608_777, n).expect("in range"),
            body: b"0123456789abcdef",
            deliveries: 1,
            incarnation: 1,
            at: LogTime(0),
            elapsed_ms: 0,
            more: None,
            foreign_id: None,
        });
    }
    let command = Command::Pop(Pop::plain(&[b"emails"], BATCH as u32));
    let mut out = Vec::new();
    time("popped task: reply to bytes", BATCH, || {
        out.clear();
        let reply = Reply::Tasks(Span::new(0, BATCH));
        let form = ReplyForm::of(black_box(&command), ReplyStyle::Native);
        encode_reply(&mut out, Version::Resp2, &form, &reply, &replies);
        black_box(&out);
    });
}
