//! A session of DefferedQ's text dialect: netcat will do.

use std::{fmt, mem};

use sureq::command::Command;
use sureq::{Answer, Reply};
use sureq_proto::resp::recycle;
use sureq_proto::text::{self, Close, Gauges, Item, Limits, Parser, Request, Watcher};

use crate::connection::{Dialect, Next, Taken, Turn};
use crate::memory::resident_bytes;
use crate::output::Output;

/// What a text connection is in the middle of.
pub(crate) struct TextSession {
    parser: Parser,
    watcher: Watcher,
    items: Vec<Item<'static>>,
    log: Option<fn(fmt::Arguments<'_>)>,
}

impl TextSession {
    pub(crate) fn new(limits: Limits, watcher: Watcher, log: Option<fn(fmt::Arguments<'_>)>) -> Self {
        Self { parser: Parser::new(limits), watcher, items: Vec::new(), log }
    }
}

impl Dialect for TextSession {
    fn take(&mut self, input: &[u8], turn: &mut Turn<'_>) -> Taken {
        let mut items: Vec<Item<'_>> = recycle(mem::take(&mut self.items));
        let outcome = self.parser.parse(input, &mut items);
        let hold = self.execute(&items, turn);
        self.items = recycle(items);
        let (consumed, next) = match outcome {
            Ok(consumed) => (consumed, Next::Read),
            Err(Close::Http | Close::Endless) => (input.len(), Next::Close),
        };
        Taken { consumed, next, hold }
    }

    /// No command of this dialect waits.
    fn answer(&mut self, _answer: &Answer, _out: &mut Output) {}
}

impl TextSession {
    fn execute(&self, items: &[Item<'_>], turn: &mut Turn<'_>) -> Option<sureq::Position> {
        let requests = items.iter().filter_map(|item| match item {
            Item::Request(request) => Some(request.command(self.watcher)),
            Item::Complaint(_) => None,
        });
        let commands: Vec<Command<'_>> = requests.collect();
        let executed = (!commands.is_empty()).then(|| turn.home.gather(&commands, turn.replies));
        let mut replies = turn.replies.list.iter();
        for item in items {
            match item {
                Item::Complaint(complaint) => text::encode_complaint(turn.out.bytes_mut(), *complaint),
                Item::Request(request) => {
                    let Some(reply) = replies.next() else { break };
                    if let Reply::Tasks(span) = reply {
                        let start = turn.out.end();
                        for task in &turn.replies.tasks[span.range()] {
                            turn.out.hand(start, text::QUEUE, task.receipt());
                        }
                    }
                    let gauges = gauges(request, turn);
                    text::encode_reply(turn.out.bytes_mut(), request, reply, turn.replies, gauges);
                    if let Some(log) = self.log {
                        log(format_args!("{request:?} -> {reply:?}"));
                    }
                }
            }
        }
        turn.out.gate(executed.as_ref().map_or(sureq::Position::START, |executed| executed.position));
        executed.and_then(|executed| executed.hold)
    }
}

/// What STATS tells besides the queue; the others do not ask the system for it.
fn gauges(request: &Request<'_>, turn: &Turn<'_>) -> Gauges {
    match request {
        Request::Stats => {
            Gauges { connections: turn.thread.clients().text_len(), memory_bytes: resident_bytes() }
        }
        _ => Gauges { connections: 0, memory_bytes: 0 },
    }
}
