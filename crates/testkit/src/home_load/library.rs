//! A client that uses the library.

use sureq::Home;
use sureq_core::command::{AckScope, Command, IdForm, LeaseAsk, Pop, Return, TaskRef, TaskRefs};
use sureq_core::{Refusal, Replies, Reply};
use sureq_history::Outcome;
use sureq_home_api::Payload;

use super::{AckReply, Asking, Session, Taken};

pub(super) struct LibrarySession(Home);

impl LibrarySession {
    pub(super) fn open(url: &str) -> Result<Self, sureq::OpenError> {
        sureq::open(url).map(Self)
    }

    /// The reply to one command, retried until the home is available.
    fn ask(&self, command: &Command<'_>) -> Replies<Payload> {
        let mut replies = Replies::default();
        let submitted = self.0.api().execute(std::slice::from_ref(command), &mut replies);
        self.0.api().wait(submitted.position);
        if let Some(ticket) = submitted.into_ticket() {
            replies.append(ticket.wait().replies);
        }
        replies
    }
}

impl Session for LibrarySession {
    fn push(&mut self, queue: &[u8], payloads: &[Vec<u8>]) -> Outcome {
        let payloads: Vec<&[u8]> = payloads.iter().map(Vec::as_slice).collect();
        match &self.ask(&Command::Push { queue, payloads: &payloads }).list[0] {
            Reply::Pushed(_) => Outcome::Ok,
            no => outcome_of(no),
        }
    }

    fn pop(&mut self, queue: &[u8], asking: &Asking) -> Vec<Taken> {
        let lease = LeaseAsk { ms: Some(asking.lease_ms), ..LeaseAsk::NONE };
        let queues = [queue];
        let pop = Pop { block: asking.block, lease, ..Pop::plain(&queues, asking.count) };
        let replies = self.ask(&Command::Pop(pop));
        match &replies.list[0] {
            Reply::Tasks(_) | Reply::TimedOut => {}
            // The popped tasks are requeued, and a later pop finds them.
            no => _ = outcome_of(no),
        }
        let taken = replies.tasks.iter().map(|task| Taken {
            id: task.id.to_string(),
            receipt: task.receipt().to_string(),
            payload: task.body.as_ref().to_vec(),
        });
        taken.collect()
    }

    fn ack(&mut self, queue: &[u8], id_or_receipt: &str) -> AckReply {
        let tasks = TaskRefs { list: &[id_or_receipt.as_bytes()], form: IdForm::Long };
        match &self.ask(&Command::Ack { queue, tasks, scope: AckScope::LeasedOrLapsed }).list[0] {
            Reply::Acked(span) if span.len() == 1 => AckReply::Done,
            Reply::Acked(_) => AckReply::Denied,
            no => AckReply::Other(outcome_of(no)),
        }
    }

    fn requeue(&mut self, queue: &[u8], receipt: &str) {
        let task = TaskRef { bytes: receipt.as_bytes(), form: IdForm::Long };
        let command = Command::Return(Return { queue, task, to: None, failed: None, is_last: false });
        if let no @ Reply::Refused(_) = &self.ask(&command).list[0] {
            outcome_of(no);
        }
    }

    fn count(&mut self, queue: &[u8]) -> Option<u64> {
        match &self.ask(&Command::Info { queue }).list[0] {
            Reply::Info(info) => Some(info.ready + info.leased + info.delayed + info.dead),
            no => {
                outcome_of(no);
                None
            }
        }
    }

    fn close(self: Box<Self>) {
        self.0.close().expect("the stop is orderly");
    }
}

/// The outcome of a command without a normal reply. A home under faults may report only these errors.
fn outcome_of(no: &Reply) -> Outcome {
    match no {
        Reply::Refused(Refusal::Unknown { .. }) => Outcome::Unknown,
        Reply::Refused(Refusal::Unavailable { .. } | Refusal::NoSpace) => Outcome::Failed,
        other => panic!("{other:?}"),
    }
}
