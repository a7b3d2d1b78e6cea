//! Executes requests, in the same way for every dialect.
//!
//! A session parses input to requests. [`execute`] submits as many of them to the home at once as it accepts, and
//! appends the replies in order. If the home answers later, the session keeps a [`Waiting`] with a small record per
//! command, and writes each reply from its record once it is available. The input has been consumed by then; a
//! request is never parsed again to format its reply.
//!
//! A request that has not been executed, because the home or the client accepts no more for now, stays in the input.

use std::cell::RefCell;
use std::task::{Context, Poll};

use sureq_core::command::Command;
use sureq_core::reply::TaskView;
use sureq_core::{Receipt, Replies, Reply};
use sureq_home_api::{Answer, Flow, Home, Payload, Position, Ticket};
use sureq_proto::Part;
use sureq_proto::resp::recycle;

use crate::checker::Login;
use crate::net_thread::Thread;
use crate::output::Output;

/// The number of bytes of a long reply that are written before other connections get their turn.
const PART_BYTES: usize = 256 << 10;

/// The capacity for this many commands is kept from one read to the next.
const COMMANDS_KEPT: usize = 4 << 10;

thread_local! {
    /// The commands that are submitted together. The vector is kept for its capacity.
    static COMMANDS: RefCell<Vec<Command<'static>>> = RefCell::default();
}

/// The context of a session while it handles input.
pub(crate) struct SessionCx<'t> {
    pub(crate) home: &'t dyn Home,
    pub(crate) out: &'t mut Output,
    pub(crate) replies: &'t mut Replies<Payload>,
    pub(crate) thread: &'t Thread,
}

/// A session of one dialect, as far as the execution of requests depends on it.
pub(crate) trait Session {
    /// A parsed request of the dialect.
    type Request<'a>;
    /// The part of a request that is needed to write its reply.
    type Form<'a>: ReplyRecord;

    /// The command for the home, or `None` if the session answers this request itself.
    fn command<'r>(&self, request: &'r Self::Request<'_>) -> Option<Command<'r>>;

    /// The form of the reply to a request for the home.
    fn form<'r>(&self, request: &'r Self::Request<'_>) -> Self::Form<'r>;

    /// Converts a form to one that does not borrow from its request.
    fn into_owned(form: Self::Form<'_>) -> Self::Form<'static>;

    /// Appends a part of a reply. Returns the first item of the next part, if there is one.
    fn encode(
        &self,
        form: &Self::Form<'_>,
        reply: &Reply,
        replies: &Replies<Payload>,
        part: Part,
        output: (&mut Vec<u8>, &Thread),
    ) -> Option<usize>;

    /// Answers a request that the session handles itself.
    fn answer(&mut self, request: &Self::Request<'_>, cx: &mut SessionCx<'_>) -> Answered;

    /// Bytes of unsent replies above which no commands are executed.
    fn output_bytes_max(&self) -> usize;
}

/// The record of a command that is kept until its reply is written.
pub(crate) trait ReplyRecord {
    /// The name of the queue with this index in a pop. `None` for other commands, whose tasks are not requeued if the
    /// client is gone.
    fn popped_queue(&self, number: u32) -> Option<&[u8]>;

    fn heap_bytes(&self) -> usize;
}

/// The outcome of a request that the session answered itself.
pub(crate) enum Answered {
    /// The reply is appended.
    Done,
    /// The reply follows when this login succeeds or fails.
    LogsIn(Login),
    /// The reply is appended, and the connection ends after it.
    Quits,
}

/// The outcome of a batch of requests.
pub(crate) struct Executed<F> {
    /// The number of consumed requests: answered, or kept as records until the home answers them.
    pub(crate) requests: usize,
    /// The reason why the remaining requests were not executed.
    pub(crate) stop: Option<Stop<F>>,
    /// No further command should be executed before this position is durable.
    pub(crate) hold: Option<Position>,
    /// Waiting pops of other connections were served.
    pub(crate) served: bool,
}

/// The reason why a batch stopped before its end.
pub(crate) enum Stop<F> {
    /// The home will answer the last of the consumed requests later.
    Waits(PendingReplies<F>),
    /// The next request has to wait for the home, or for room in the output.
    Later,
    /// The following requests wait until the login succeeds or fails.
    LogsIn(Login),
    /// The client asked to close the connection.
    Quits,
}

/// Executes requests in order and appends their replies. As many consecutive commands for the home as possible are
/// submitted at once.
pub(crate) fn execute<S: Session>(
    session: &mut S,
    requests: &[S::Request<'_>],
    cx: &mut SessionCx<'_>,
) -> Executed<S::Form<'static>> {
    let mut commands: Vec<Command<'_>> = recycle(COMMANDS.take());
    let mut executed = Executed { requests: 0, stop: None, hold: None, served: false };
    while let Some(request) = requests.get(executed.requests) {
        if cx.out.len() > session.output_bytes_max() {
            executed.stop = Some(Stop::Later);
            break;
        }
        let rest = &requests[executed.requests..];
        commands.clear();
        commands.extend(rest.iter().map_while(|request| session.command(request)));
        if commands.is_empty() {
            let answered = session.answer(request, cx);
            executed.requests += 1;
            match answered {
                Answered::LogsIn(login) => {
                    executed.stop = Some(Stop::LogsIn(login));
                    break;
                }
                Answered::Done => cx.out.gate(Position::START),
                Answered::Quits => {
                    cx.out.gate(Position::START);
                    executed.stop = Some(Stop::Quits);
                    break;
                }
            }
        } else {
            submit(session, &rest[..commands.len()], &commands, &mut executed, cx);
            if executed.stop.is_some() {
                break;
            }
        }
    }
    let mut commands = recycle(commands);
    commands.shrink_to(COMMANDS_KEPT);
    COMMANDS.set(commands);
    executed
}

/// Submits commands to the home, and appends the replies that are available at once.
fn submit<S: Session>(
    session: &S,
    requests: &[S::Request<'_>],
    commands: &[Command<'_>],
    executed: &mut Executed<S::Form<'static>>,
    cx: &mut SessionCx<'_>,
) {
    let mut done = 0;
    while done < commands.len() {
        if done > 0 && cx.out.len() > session.output_bytes_max() {
            executed.stop = Some(Stop::Later);
            return;
        }
        let submitted = cx.home.submit(&commands[done..], cx.replies);
        cx.thread.group_commit.add();
        for (request, reply) in requests[done..].iter().zip(&cx.replies.list) {
            let part = Part { from: 0, bytes: usize::MAX };
            encode(session, &session.form(request), reply, cx.replies, part, (cx.out, cx.thread));
        }
        cx.out.gate(submitted.position);
        cx.replies.clear();
        done += submitted.executed;
        executed.requests += submitted.executed;
        executed.served |= submitted.served_waiters;
        match submitted.flow {
            Flow::Ready | Flow::Backpressure(None) => {}
            Flow::Backpressure(Some(until)) => executed.hold = Some(until),
            Flow::Waiting(ticket) => {
                let sent = &requests[done..][..ticket.commands()];
                let forms = sent.iter().map(|request| S::into_owned(session.form(request))).collect();
                executed.requests += sent.len();
                executed.stop = Some(Stop::Waits(PendingReplies { ticket, forms }));
                return;
            }
        }
        if submitted.executed == 0 {
            executed.stop = Some(Stop::Later);
            return;
        }
    }
}

/// Appends a part of a reply and records the deliveries in it. Returns the first item of the next part, if there is
/// one.
fn encode<S: Session>(
    session: &S,
    form: &S::Form<'_>,
    reply: &Reply,
    replies: &Replies<Payload>,
    part: Part,
    (out, thread): (&mut Output, &Thread),
) -> Option<usize> {
    if let (Reply::Tasks(span), 0) = (reply, part.from) {
        let start = out.end();
        for task in &replies.tasks[span.range()] {
            if let Some(queue) = form.popped_queue(task.queue) {
                out.note_delivery(start, queue, task.receipt());
            }
        }
    }
    session.encode(form, reply, replies, part, (out.bytes_mut(), thread))
}

/// Commands that the home answers later, with the forms of their replies.
pub(crate) struct PendingReplies<F> {
    ticket: Ticket,
    forms: Vec<F>,
}

impl<F: ReplyRecord> PendingReplies<F> {
    /// The replies, once they are available.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<LateReplies<F>> {
        self.ticket.poll(cx).map(|answer| LateReplies::new(std::mem::take(&mut self.forms), answer))
    }

    /// Whether this is a pop that waits for tasks, which must not be served once the client is gone.
    pub(crate) fn waits_for_tasks(&self) -> bool {
        self.ticket.waits_for_tasks()
    }

    /// The approximate memory that it uses, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        forms_bytes(&self.forms)
    }
}

/// Replies that came later, as far as they are not written yet.
pub(crate) struct LateReplies<F> {
    forms: Vec<F>,
    replies: Replies<Payload>,
    position: Position,
    /// The number of replies that are written.
    written: usize,
    /// The number of items of the next reply that are written.
    items: usize,
    /// The approximate memory that it uses, in bytes.
    bytes: usize,
}

impl<F: ReplyRecord> LateReplies<F> {
    pub(crate) fn new(forms: Vec<F>, Answer { replies, position, .. }: Answer) -> Self {
        let payloads: usize =
            replies.tasks.iter().map(|task| task.body.as_ref().len() + more_bytes(task)).sum();
        let names: usize = replies.queues.iter().map(|row| row.name.len()).sum();
        let rows = size_of_val(&*replies.tasks) + size_of_val(&*replies.queues);
        let bytes = forms_bytes(&forms) + payloads + names + rows;
        Self { forms, replies, position, written: 0, items: 0, bytes }
    }

    /// Appends the next part of the replies. Their length is up to the client, so other connections are served
    /// between the parts. Returns whether it was the last part.
    pub(crate) fn write<'f, S: Session<Form<'f> = F>>(
        &mut self,
        session: &S,
        (out, thread): (&mut Output, &Thread),
    ) -> bool {
        let upto = out.end().saturating_add(PART_BYTES);
        while let (Some(form), Some(reply)) =
            (self.forms.get(self.written), self.replies.list.get(self.written))
        {
            let part = Part { from: self.items, bytes: upto.saturating_sub(out.end()) };
            let next = if part.bytes == 0 {
                Some(self.items)
            } else {
                encode(session, form, reply, &self.replies, part, (out, thread))
            };
            out.gate(self.position);
            if let Some(next) = next {
                self.items = next;
                return false;
            }
            (self.written, self.items) = (self.written + 1, 0);
        }
        true
    }

    /// The approximate memory that it uses, in bytes.
    pub(crate) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// The deliveries in replies of which nothing has been written, by queue, in order.
    pub(crate) fn undelivered(&self) -> Vec<(&[u8], Vec<Receipt>)> {
        let begun = self.written + usize::from(self.items > 0);
        let mut undelivered: Vec<(&[u8], Vec<Receipt>)> = Vec::new();
        for (form, reply) in self.forms.iter().zip(&self.replies.list).skip(begun) {
            let Reply::Tasks(span) = reply else { continue };
            for task in &self.replies.tasks[span.range()] {
                let Some(queue) = form.popped_queue(task.queue) else { continue };
                match undelivered.last_mut() {
                    Some((last, receipts)) if *last == queue => receipts.push(task.receipt()),
                    _ => undelivered.push((queue, vec![task.receipt()])),
                }
            }
        }
        undelivered
    }
}

fn forms_bytes<F: ReplyRecord>(forms: &Vec<F>) -> usize {
    forms.capacity() * size_of::<F>() + forms.iter().map(F::heap_bytes).sum::<usize>()
}

/// The memory of the name, the reason and the foreign id of a task.
fn more_bytes(task: &TaskView<Payload>) -> usize {
    let len = |bytes: &Option<Box<[u8]>>| bytes.as_ref().map_or(0, |bytes| bytes.len());
    task.more.as_ref().map_or(0, |more| size_of_val(&**more) + len(&more.name) + len(&more.reason))
        + len(&task.foreign_id)
}
