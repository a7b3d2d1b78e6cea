//! A session of DefferedQ's text dialect, which serves clients as simple as netcat.

use std::cell::RefCell;
use std::fmt;
use std::sync::Arc;

use sureq_core::command::Command;
use sureq_core::reply::Outcome;
use sureq_core::{Replies, Reply, TaskId};
use sureq_home_api::Payload;
use sureq_proto::Part;
use sureq_proto::resp::recycle;
use sureq_proto::text::{
    self, Close, Complaint, Gauges, Item, ParsedLine, Parser, ReservationPolicy, TextReplyForm,
};

use crate::batch::BatchSize;
use crate::bounds::{Allowance, Bounds};
use crate::connection::{Consumed, Dialect, Then};
use crate::execute::{Answered, Executed, LateReplies, ReplyRecord, Session, SessionCx, Stop, execute};
use crate::memory::resident_bytes;
use crate::net_thread::Thread;
use crate::output::Output;
use crate::server::Config;
use crate::users::User;

thread_local! {
    /// A parse buffer that all sessions of a thread share, so that an idle session has none of its own.
    static LINES: RefCell<Vec<ParsedLine<'static>>> = RefCell::default();
}

/// The capacity for this many lines is kept from one read to the next.
const LINES_KEPT: usize = 4 << 10;

/// The state of a text connection.
pub(crate) struct TextSession {
    parser: Parser,
    batch: BatchSize,
    policy: ReservationPolicy,
    log: Option<fn(fmt::Arguments<'_>)>,
    user: Option<Arc<User>>,
    bounds: Bounds,
}

impl TextSession {
    pub(crate) fn new(config: &Config) -> Self {
        Self {
            parser: Parser::new(config.text_limits()),
            batch: BatchSize::default(),
            policy: config.reservations,
            log: config.text_log,
            user: config.text_user.clone(),
            bounds: config.bounds,
        }
    }

    /// Replaces each line that the user has no permission to send by an error.
    fn refuse(&self, lines: &mut [ParsedLine<'_>]) {
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
    type Record = TextReplyForm<'static>;

    fn take(&mut self, input: &[u8], cx: &mut SessionCx<'_>) -> Consumed<TextReplyForm<'static>> {
        let mut lines: Vec<ParsedLine<'_>> = recycle(LINES.take());
        let batch_max = self.batch.next();
        self.parser.set_batch_max(batch_max);
        let outcome = self.parser.parse(input, &mut lines);
        self.refuse(&mut lines);
        let Executed { requests: done, stop, hold, served } = execute(self, &lines, cx);
        let (bytes, next) = match (stop, outcome) {
            (Some(stop), _) => {
                // Lines that were not executed are parsed again later.
                self.parser.restart(&lines[..done]);
                self.batch.stopped_after(done);
                let next = match stop {
                    Stop::Waits(waiting) => Then::Wait(waiting),
                    Stop::Later => Then::Later,
                    Stop::LogsIn(_) | Stop::Quits => unreachable!("no line does that"),
                };
                (lines[..done].last().map_or(0, |last| last.end), next)
            }
            (None, Ok(consumed)) if done == batch_max => {
                self.batch.went_through(done);
                (consumed, Then::Again)
            }
            (None, Ok(consumed)) => (consumed, Then::Read),
            (None, Err(Close::Http | Close::Endless)) => (input.len(), Then::Close),
        };
        let mut lines = recycle(lines);
        lines.shrink_to(LINES_KEPT);
        LINES.set(lines);
        Consumed { bytes, next, hold, served }
    }

    fn write(&self, late: &mut LateReplies<TextReplyForm<'static>>, output: (&mut Output, &Thread)) -> bool {
        late.write(self, output)
    }

    fn allowance(&self) -> Allowance {
        self.bounds.known()
    }
}

impl Session for TextSession {
    type Request<'a> = ParsedLine<'a>;
    type Form<'a> = TextReplyForm<'a>;

    fn command<'r>(&self, line: &'r ParsedLine<'_>) -> Option<Command<'r>> {
        match &line.item {
            Item::Request(request) => Some(request.command(self.policy)),
            Item::Complaint(_) => None,
        }
    }

    fn form<'r>(&self, line: &'r ParsedLine<'_>) -> TextReplyForm<'r> {
        match &line.item {
            Item::Request(request) => TextReplyForm::of(request),
            Item::Complaint(_) => unreachable!("the session answers it"),
        }
    }

    fn into_owned(form: TextReplyForm<'_>) -> TextReplyForm<'static> {
        form.into_owned()
    }

    fn encode(
        &self,
        form: &TextReplyForm<'_>,
        reply: &Reply,
        replies: &Replies<Payload>,
        _: Part,
        (out, thread): (&mut Vec<u8>, &Thread),
    ) -> Option<usize> {
        text::encode_reply(out, form, reply, replies, gauges(form, thread));
        if let Some(log) = self.log {
            log_reply(log, form, reply, replies);
        }
        None
    }

    fn answer(&mut self, line: &ParsedLine<'_>, cx: &mut SessionCx<'_>) -> Answered {
        match line.item {
            Item::Complaint(complaint) => text::encode_complaint(cx.out.bytes_mut(), complaint),
            Item::Request(_) => unreachable!("the home executes it"),
        }
        Answered::Done
    }

    fn output_bytes_max(&self) -> usize {
        self.bounds.output_bytes_max
    }
}

impl ReplyRecord for TextReplyForm<'_> {
    fn popped_queue(&self, _: u32) -> Option<&[u8]> {
        matches!(self, Self::Reserved).then_some(text::QUEUE)
    }

    fn heap_bytes(&self) -> usize {
        self.heap_bytes()
    }
}

/// Logs a line about a reply, without the payload, which may be confidential.
fn log_reply(
    log: fn(fmt::Arguments<'_>),
    form: &TextReplyForm<'_>,
    reply: &Reply,
    replies: &Replies<Payload>,
) {
    match (form, reply) {
        (TextReplyForm::Added { .. }, Reply::Added { id, .. }) => {
            log(format_args!("New task {}", letters(*id)));
        }
        (TextReplyForm::Reserved, Reply::Tasks(span)) => {
            for task in &replies.tasks[span.range()] {
                log(format_args!("Value reserved {}", letters(task.id)));
            }
        }
        (TextReplyForm::Deleted { id }, Reply::Acked(span)) if !span.is_empty() => {
            log(format_args!("Value deleted {}", id.escape_ascii()));
        }
        (TextReplyForm::Returned { id }, Reply::Outcome(Outcome::Done)) => {
            log(format_args!("Value returned {}", id.escape_ascii()));
        }
        _ => {}
    }
}

fn letters(id: TaskId) -> String {
    id.short().iter().map(|&letter| char::from(letter)).collect()
}

/// The figures that only STATS needs. They are not collected for other commands, because they cost a system call.
fn gauges(form: &TextReplyForm<'_>, thread: &Thread) -> Gauges {
    match form {
        TextReplyForm::Stats => {
            Gauges { connections: thread.clients().text_len(), memory_bytes: resident_bytes() }
        }
        _ => Gauges { connections: 0, memory_bytes: 0 },
    }
}
