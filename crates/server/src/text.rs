//! A session of DefferedQ's text dialect: netcat will do.

use std::cell::RefCell;
use std::fmt;
use std::sync::Arc;

use sureq_core::{Replies, Reply};
use sureq_home_api::{Flow, Payload, Position, Ticket};
use sureq_proto::resp::recycle;
use sureq_proto::text::{self, Close, Complaint, Gauges, Item, Line, Parser, Request, ReservationPolicy};

use crate::bounds::{Allowance, Bounds};
use crate::connection::{Consumed, Dialect, DialectCx, Then};
use crate::memory::resident_bytes;
use crate::output::Output;
use crate::server::Config;
use crate::users::User;

thread_local! {
    /// What all sessions of a thread parse into: an idle one holds none of it.
    static LINES: RefCell<Vec<Line<'static>>> = RefCell::default();
}

/// Room for this many lines is kept from one read to the next.
const LINES_KEPT: usize = 4 << 10;

/// What a text connection is in the middle of.
pub(crate) struct TextSession {
    parser: Parser,
    reservations: ReservationPolicy,
    log: Option<fn(fmt::Arguments<'_>)>,
    user: Option<Arc<User>>,
    bounds: Bounds,
}

impl TextSession {
    pub(crate) fn new(config: &Config) -> Self {
        Self {
            parser: Parser::new(config.text_limits()),
            reservations: config.reservations,
            log: config.text_log,
            user: config.text_user.clone(),
            bounds: config.bounds,
        }
    }

    /// Leaves of each line that the user may not say a complaint.
    fn refuse(&self, lines: &mut [Line<'_>]) {
        let Some(user) = &self.user else { return };
        for line in lines {
            if let Item::Request(request) = &line.item
                && !user.rights().has(request.role(), text::QUEUE)
            {
                line.item = Item::Complaint(Complaint::NotAllowed);
            }
        }
    }
}

impl Dialect for TextSession {
    fn take(&mut self, input: &[u8], cx: &mut DialectCx<'_>) -> Consumed {
        let mut lines: Vec<Line<'_>> = recycle(LINES.take());
        let outcome = self.parser.parse(input, &mut lines);
        self.refuse(&mut lines);
        let Answered { stop, hold, served } = self.execute(&lines, cx);
        let (consumed, next) = match (stop, outcome) {
            (Some(Stop { upto, ticket }), _) => {
                self.parser.restart();
                (upto, ticket.map_or(Then::Later, Then::Wait))
            }
            (None, Ok(consumed)) => (consumed, Then::Read),
            (None, Err(Close::Http | Close::Endless)) => (input.len(), Then::Close),
        };
        let mut lines = recycle(lines);
        lines.shrink_to(LINES_KEPT);
        LINES.set(lines);
        Consumed { bytes: consumed, next, hold, served }
    }

    fn allowance(&self) -> Allowance {
        self.bounds.known()
    }
}

struct Answered {
    stop: Option<Stop>,
    hold: Option<Position>,
    served: bool,
}

/// What is behind has to wait.
struct Stop {
    /// How far it came.
    upto: usize,
    /// What for, if not for room in the output.
    ticket: Option<Ticket>,
}

impl TextSession {
    fn execute(&self, lines: &[Line<'_>], cx: &mut DialectCx<'_>) -> Answered {
        let mut commands = Vec::with_capacity(lines.len());
        let mut behind = Vec::with_capacity(lines.len());
        for (n, line) in lines.iter().enumerate() {
            if let Item::Request(request) = &line.item {
                commands.push(request.command(self.reservations));
                behind.push(n + 1);
            }
        }
        let (mut done, mut answered, mut hold, mut served) = (0, 0_usize, None, false);
        loop {
            let mut position = Position::START;
            if done < commands.len() {
                let submitted = cx.submit(&commands[done..]);
                cx.thread.group_commit.add();
                done += submitted.executed;
                position = submitted.position;
                served |= submitted.served_waiters;
                if let Flow::Backpressure(Some(until)) = submitted.flow {
                    hold = Some(until);
                }
                if let Flow::Waiting(ticket) = submitted.flow {
                    let waits = behind[done] - 1;
                    self.answer_all(&lines[answered..waits], cx);
                    cx.out.gate(position);
                    let upto = waits.checked_sub(1).map_or(0, |last| lines[last].end);
                    let stop = Stop { upto, ticket: Some(ticket) };
                    return Answered { stop: Some(stop), hold, served };
                }
                if submitted.executed == 0 {
                    let upto = answered.checked_sub(1).map_or(0, |last| lines[last].end);
                    return Answered { stop: Some(Stop { upto, ticket: None }), hold, served };
                }
            }
            let upto = if done == commands.len() { lines.len() } else { behind[done - 1] };
            self.answer_all(&lines[answered..upto], cx);
            cx.out.gate(position);
            cx.replies.clear();
            answered = upto;
            if answered == lines.len() {
                return Answered { stop: None, hold, served };
            }
            if cx.out.len() > self.bounds.output_bytes_max {
                let stop = Stop { upto: lines[answered - 1].end, ticket: None };
                return Answered { stop: Some(stop), hold, served };
            }
        }
    }

    fn answer_all(&self, lines: &[Line<'_>], cx: &mut DialectCx<'_>) {
        let mut replies = cx.replies.list.iter();
        for line in lines {
            match &line.item {
                Item::Complaint(complaint) => text::encode_complaint(cx.out.bytes_mut(), *complaint),
                Item::Request(request) => {
                    let Some(reply) = replies.next() else { break };
                    let gauges = gauges(request, cx);
                    self.answer_one(request, reply, cx.replies, gauges, cx.out);
                }
            }
        }
    }

    fn answer_one(
        &self,
        request: &Request<'_>,
        reply: &Reply,
        replies: &Replies<Payload>,
        gauges: Gauges,
        out: &mut Output,
    ) {
        if let Reply::Tasks(span) = reply {
            let start = out.end();
            for task in &replies.tasks[span.range()] {
                out.hand(start, text::QUEUE, task.receipt());
            }
        }
        text::encode_reply(out.bytes_mut(), request, reply, replies, gauges);
        if let Some(log) = self.log {
            tell(log, request, reply, replies);
        }
    }
}

/// A short line about what was done, without the payload: that is nobody's business in a log.
fn tell(log: fn(fmt::Arguments<'_>), request: &Request<'_>, reply: &Reply, replies: &Replies<Payload>) {
    match (request, reply) {
        (Request::Add { .. }, Reply::Added { id, .. }) => log(format_args!("New task {}", letters(*id))),
        (Request::Reserve, Reply::Tasks(span)) => {
            for task in &replies.tasks[span.range()] {
                log(format_args!("Value reserved {}", letters(task.id)));
            }
        }
        (Request::Delete { id }, Reply::Acked(span)) if !span.is_empty() => {
            log(format_args!("Value deleted {}", id.escape_ascii()));
        }
        (Request::Return { id, .. }, Reply::Outcome(sureq_core::reply::Outcome::Done)) => {
            log(format_args!("Value returned {}", id.escape_ascii()));
        }
        _ => {}
    }
}

fn letters(id: sureq_core::TaskId) -> String {
    id.short().iter().map(|&letter| char::from(letter)).collect()
}

/// What STATS tells besides the queue; the others do not ask the system for it.
fn gauges(request: &Request<'_>, cx: &DialectCx<'_>) -> Gauges {
    match request {
        Request::Stats => {
            Gauges { connections: cx.thread.clients().text_len(), memory_bytes: resident_bytes() }
        }
        _ => Gauges { connections: 0, memory_bytes: 0 },
    }
}
