//! Encodes replies in DefferedQ's dialect. Each is one line that ends in LF.

use std::io::Write as _;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;

use super::reply_form::TextReplyForm;
use super::request::Complaint;
use crate::decimal;
use sureq_core::reply::{Info, Outcome, Refusal, Replies, Reply, TaskView};

/// The figures of STATS that describe the server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gauges {
    pub connections: usize,
    /// The resident memory in bytes.
    pub memory_bytes: u64,
}

/// Appends the reply to a request.
pub fn encode_reply<B: AsRef<[u8]>>(
    out: &mut Vec<u8>,
    form: &TextReplyForm<'_>,
    reply: &Reply,
    replies: &Replies<B>,
    gauges: Gauges,
) {
    match (form, reply) {
        (TextReplyForm::Added { delay_ms }, Reply::Added { id, .. }) => added(out, &id.short(), *delay_ms),
        (TextReplyForm::Added { delay_ms }, Reply::Pushed(ids)) => {
            replies.ids[ids.range()].iter().for_each(|id| added(out, &id.short(), *delay_ms));
        }
        (TextReplyForm::Added { delay_ms }, Reply::AddedForeign { at, .. }) => {
            added(out, foreign_id(replies, *at as usize), *delay_ms);
        }
        (TextReplyForm::Added { delay_ms }, Reply::PushedForeign(ids)) => {
            ids.range().for_each(|at| added(out, foreign_id(replies, at), *delay_ms));
        }
        (TextReplyForm::Reserved, Reply::Tasks(tasks)) => match replies.tasks[tasks.range()].first() {
            Some(task) => reserved(out, task),
            None => line(out, b"nil"),
        },
        (TextReplyForm::Reserved, Reply::TimedOut) => line(out, b"nil"),
        (TextReplyForm::Deleted { .. }, Reply::Acked(finished)) => ok_or_unknown(out, !finished.is_empty()),
        // Returning a cancelled task removes it; the reply is `ok` because the task was known.
        (TextReplyForm::Returned { .. }, Reply::Outcome(outcome)) => {
            ok_or_unknown(out, *outcome != Outcome::Stale);
        }
        (
            TextReplyForm::Deleted { .. } | TextReplyForm::Returned { .. },
            Reply::Refused(Refusal::MalformedId),
        ) => {
            ok_or_unknown(out, false);
        }
        (TextReplyForm::Stats, Reply::Info(info)) => stats(out, info, gauges),
        (_, Reply::Refused(refusal)) => refused(out, refusal),
        // No home gives another reply to these five commands. If one did, the client would still expect a line.
        _ => line(out, b"ok"),
    }
}

/// Appends the error for a line.
pub fn encode_complaint(out: &mut Vec<u8>, complaint: Complaint) {
    line(out, complaint.to_string().as_bytes());
}

fn added(out: &mut Vec<u8>, id: &[u8], delay_ms: u32) {
    out.extend_from_slice(b"TASK ");
    escaped_id(out, id);
    out.extend_from_slice(b" DELAY ");
    decimal::write_u64(out, u64::from(delay_ms));
    out.extend_from_slice(b"ms\n");
}

/// An id in the home's own format; empty if the task has no id yet.
fn foreign_id<B>(replies: &Replies<B>, at: usize) -> &[u8] {
    replies.foreign_ids[at].as_deref().unwrap_or_default()
}

/// Escapes an id in the home's own format, because it may contain characters that end the attribute or the line. No
/// id of this dialect contains them, so such an id could not be used in this dialect anyway.
fn escaped_id(out: &mut Vec<u8>, id: &[u8]) {
    out.extend(id.iter().map(|&c| if matches!(c, b' ' | b'\r' | b'\n') { b'?' } else { c }));
}

/// A payload from another dialect may contain characters that end the attribute or the line. It is then sent in
/// base64, so that no payload can forge or truncate a reply.
fn reserved<B: AsRef<[u8]>>(out: &mut Vec<u8>, task: &TaskView<B>) {
    let body = task.body.as_ref();
    out.extend_from_slice(b"TASK ");
    match &task.foreign_id {
        None => out.extend_from_slice(&task.id.short()),
        Some(foreign) => escaped_id(out, foreign),
    }
    if body.iter().any(|c| matches!(c, b' ' | b'\r' | b'\n')) {
        out.extend_from_slice(b" BODY64 ");
        out.extend_from_slice(BASE64_STANDARD.encode(body).as_bytes());
    } else {
        out.extend_from_slice(b" BODY ");
        out.extend_from_slice(body);
    }
    out.push(b'\n');
}

fn ok_or_unknown(out: &mut Vec<u8>, known: bool) {
    line(out, if known { b"ok" } else { b"unknown TASK_ID" });
}

fn stats(out: &mut Vec<u8>, info: &Info, gauges: Gauges) {
    // Hundredths of a MiB, rounded, as `%.2f` shows them.
    let heap = (u128::from(gauges.memory_bytes) * 100 + (1 << 19)) >> 20;
    // Writing to a `Vec` does not fail.
    let _ = writeln!(
        out,
        "TASKS {} RESERVED {} CONNECTIONS {} HEAP {}.{:02}m",
        info.ready.saturating_add(info.delayed),
        info.leased,
        gauges.connections,
        heap / 100,
        heap % 100
    );
}

/// DefferedQ has no limits and so no text for refusals.
fn refused(out: &mut Vec<u8>, refusal: &Refusal) {
    let _ = writeln!(out, "refused {}: {refusal}", refusal.code());
}

fn line(out: &mut Vec<u8>, text: &[u8]) {
    out.extend_from_slice(text);
    out.push(b'\n');
}

#[cfg(test)]
mod tests {
    use super::super::request::Request;
    use super::*;
    use sureq_core::id::TaskId;
    use sureq_core::reply::Span;
    use sureq_core::task::StateKind;
    use sureq_core::time::LogTime;

    fn check(request: &Request<'_>, reply: &Reply, bodies: &[&[u8]], expect: &[u8]) {
        let id = TaskId::new(1_601_155_608_777, 1).unwrap();
        let mut replies = Replies::<&[u8]>::default();
        for body in bodies {
            replies.ids.push(id);
            replies.tasks.push(TaskView {
                queue: 0,
                id,
                body,
                deliveries: 1,
                incarnation: 1,
                at: LogTime(0),
                elapsed_ms: 0,
                more: None,
                foreign_id: None,
            });
        }
        let mut out = Vec::new();
        encode_reply(
            &mut out,
            &TextReplyForm::of(request),
            reply,
            &replies,
            Gauges { connections: 3, memory_bytes: 1_234_567 },
        );
        let short = String::from_utf8(id.short().to_vec()).unwrap();
        let expect = String::from_utf8_lossy(expect).replace("<id>", &short);
        assert_eq!(String::from_utf8_lossy(&out), expect);
    }

    const ONE: Reply = Reply::Count(1);

    #[test]
    fn each_reply_equals_that_of_the_original() {
        let add = Request::Add { delay_ms: 2_147_483_647, body: b"x" };
        let id = TaskId::new(1_601_155_608_777, 1).unwrap();
        let added = Reply::Added { id, added: true, state: StateKind::Delayed };
        check(&add, &added, &[], b"TASK <id> DELAY 2147483647ms\n");
        check(&add, &Reply::Pushed(Span::new(0, 1)), &[b""], b"TASK <id> DELAY 2147483647ms\n");
        let one = Reply::Tasks(Span::new(0, 1));
        check(&Request::Reserve, &Reply::Tasks(Span::new(0, 0)), &[], b"nil\n");
        check(&Request::Reserve, &one, &[b"body"], b"TASK <id> BODY body\n");
        check(&Request::Reserve, &one, &[b""], b"TASK <id> BODY \n");
        check(&Request::Reserve, &one, &[b"a\tb"], b"TASK <id> BODY a\tb\n");
        let delete = Request::Delete { id: b"x" };
        check(&delete, &Reply::Acked(Span::new(0, 1)), &[], b"ok\n");
        check(&delete, &Reply::Acked(Span::new(1, 1)), &[], b"unknown TASK_ID\n");
        check(&delete, &Reply::Refused(Refusal::MalformedId), &[], b"unknown TASK_ID\n");
        let back = Request::Return { id: b"x", delay_ms: 0 };
        check(&back, &Reply::Outcome(Outcome::Done), &[], b"ok\n");
        check(&back, &Reply::Outcome(Outcome::Stale), &[], b"unknown TASK_ID\n");
        check(&back, &Reply::Outcome(Outcome::Cancelled), &[], b"ok\n");
        check(&back, &Reply::Refused(Refusal::MalformedId), &[], b"unknown TASK_ID\n");
        let info = Info { ready: 2, delayed: 3, leased: 4, dead: 100, ..Info::default() };
        let stats = b"TASKS 5 RESERVED 4 CONNECTIONS 3 HEAP 1.18m\n";
        check(&Request::Stats, &Reply::Info(Box::new(info)), &[], stats);
        check(&Request::Stats, &ONE, &[], b"ok\n");
    }

    #[test]
    fn no_payload_can_forge_or_truncate_a_reply() {
        let one = Reply::Tasks(Span::new(0, 1));
        check(&Request::Reserve, &one, &[b"a b"], b"TASK <id> BODY64 YSBi\n");
        check(&Request::Reserve, &one, &[b"a\nok"], b"TASK <id> BODY64 YQpvaw==\n");
        check(&Request::Reserve, &one, &[b"a\r"], b"TASK <id> BODY64 YQ0=\n");
    }

    #[test]
    fn no_foreign_id_can_forge_or_truncate_a_reply() {
        let add = Request::Add { delay_ms: 0, body: b"x" };
        let mut replies = Replies::<&[u8]>::default();
        replies.foreign_ids.push(Some(b"a b\nok"[..].into()));
        let reply = Reply::AddedForeign { at: 0, added: true, state: StateKind::Ready };
        let mut out = Vec::new();
        encode_reply(&mut out, &TextReplyForm::of(&add), &reply, &replies, Gauges::default());
        assert_eq!(out, b"TASK a?b?ok DELAY 0ms\n");
    }

    #[test]
    fn a_refusal_is_one_clear_line() {
        let add = Request::Add { delay_ms: 0, body: b"x" };
        let full = Reply::Refused(Refusal::QueueFull);
        let text = format!("refused QUEUEFULL: {}\n", Refusal::QueueFull);
        check(&add, &full, &[], text.as_bytes());
    }
}
