//! A session of DefferedQ's text dialect: netcat will do.

use std::cell::RefCell;
use std::fmt;

use sureq::{Answer, Position, Reply, limits};
use sureq_proto::resp::recycle;
use sureq_proto::text::{self, Close, Gauges, Item, Limits, Line, Parser, Request, Watcher};

use crate::connection::{Dialect, Next, Taken, Turn};
use crate::memory::resident_bytes;
use crate::output::Output;

thread_local! {
    /// What all sessions of a thread parse into: an idle one holds none of it.
    static LINES: RefCell<Vec<Line<'static>>> = RefCell::default();
}

/// Room for this many lines is kept from one read to the next.
const LINES_KEPT: usize = 4 << 10;

/// What a text connection is in the middle of.
pub(crate) struct TextSession {
    parser: Parser,
    watcher: Watcher,
    log: Option<fn(fmt::Arguments<'_>)>,
}

impl TextSession {
    pub(crate) fn new(limits: Limits, watcher: Watcher, log: Option<fn(fmt::Arguments<'_>)>) -> Self {
        Self { parser: Parser::new(limits), watcher, log }
    }
}

impl Dialect for TextSession {
    fn take(&mut self, input: &[u8], turn: &mut Turn<'_>) -> Taken {
        let mut lines: Vec<Line<'_>> = recycle(LINES.take());
        let outcome = self.parser.parse(input, &mut lines);
        let Answered { upto, hold } = self.execute(&lines, turn);
        let (consumed, next) = match (upto, outcome) {
            (Some(upto), _) => {
                self.parser.restart();
                (upto, Next::Later)
            }
            (None, Ok(consumed)) => (consumed, Next::Read),
            (None, Err(Close::Http | Close::Endless)) => (input.len(), Next::Close),
        };
        let mut lines = recycle(lines);
        lines.shrink_to(LINES_KEPT);
        LINES.set(lines);
        Taken { consumed, next, hold }
    }

    /// No command of this dialect waits.
    fn answer(&mut self, _answer: &Answer, _out: &mut Output) {}
}

struct Answered {
    /// How far it came, if what is behind has to wait for room in the output.
    upto: Option<usize>,
    hold: Option<Position>,
}

impl TextSession {
    fn execute(&self, lines: &[Line<'_>], turn: &mut Turn<'_>) -> Answered {
        let mut commands = Vec::with_capacity(lines.len());
        let mut behind = Vec::with_capacity(lines.len());
        for (n, line) in lines.iter().enumerate() {
            if let Item::Request(request) = &line.item {
                commands.push(request.command(self.watcher));
                behind.push(n + 1);
            }
        }
        let (mut done, mut answered, mut hold) = (0, 0_usize, None);
        loop {
            let mut position = Position::START;
            if done < commands.len() {
                let executed = turn.home.gather(&commands[done..], turn.replies);
                turn.thread.gathering.add();
                done += executed.done;
                (position, hold) = (executed.position, executed.hold.or(hold));
                if executed.done == 0 {
                    let upto = answered.checked_sub(1).map_or(0, |last| lines[last].end);
                    return Answered { upto: Some(upto), hold };
                }
            }
            let upto = if done == commands.len() { lines.len() } else { behind[done - 1] };
            self.answer_all(&lines[answered..upto], turn);
            turn.out.gate(position);
            turn.replies.clear();
            answered = upto;
            if answered == lines.len() {
                return Answered { upto: None, hold };
            }
            if turn.out.len() > limits::OUTPUT_BYTES_MAX {
                return Answered { upto: Some(lines[answered - 1].end), hold };
            }
        }
    }

    fn answer_all(&self, lines: &[Line<'_>], turn: &mut Turn<'_>) {
        let mut replies = turn.replies.list.iter();
        for line in lines {
            match &line.item {
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
                        tell(log, request, reply, turn);
                    }
                }
            }
        }
    }
}

/// A short line about what was done, without the payload: that is nobody's business in a log.
fn tell(log: fn(fmt::Arguments<'_>), request: &Request<'_>, reply: &Reply, turn: &Turn<'_>) {
    match (request, reply) {
        (Request::Add { .. }, Reply::Added { id, .. }) => log(format_args!("New task {}", letters(*id))),
        (Request::Reserve, Reply::Tasks(span)) => {
            for task in &turn.replies.tasks[span.range()] {
                log(format_args!("Value reserved {}", letters(task.id)));
            }
        }
        (Request::Delete { id }, Reply::Acked(span)) if !span.is_empty() => {
            log(format_args!("Value deleted {}", id.escape_ascii()));
        }
        (Request::Return { id, .. }, Reply::Outcome(sureq::reply::Outcome::Done)) => {
            log(format_args!("Value returned {}", id.escape_ascii()));
        }
        _ => {}
    }
}

fn letters(id: sureq::TaskId) -> String {
    id.short().iter().map(|&letter| char::from(letter)).collect()
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
