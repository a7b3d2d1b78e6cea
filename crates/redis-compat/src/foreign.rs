//! The common part of the foreign layouts: commands that all of them support or none does, and the form of new ids.
//!
//! Each layout handles its own commands, and leaves the others to [`Foreign::call_of`].

use sureq_core::command::{Add, Command, Pop, Return, View, When};
use sureq_core::settings::Place;
use sureq_core::{Refusal, limits};
use sureq_redis::layout::{AnswerForm, Call, ListForm, SliceForm, is_long};

/// The positions of two arguments of INSPECT: the limit of payload bytes, and the cursor.
const INSPECT_ROOM: usize = 4;
const INSPECT_CURSOR: usize = 5;

/// A foreign layout, by its name in refusals.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Foreign(pub(crate) &'static str);

impl Foreign {
    /// Refuses a command that this layout does not support.
    pub(crate) fn no<T>(self, what: &'static str) -> Result<T, Refusal> {
        Err(Refusal::not_there(what, self.0))
    }

    /// The call for a command that all these layouts support in the same way, or none does.
    pub(crate) fn call_of(self, command: &Command<'_>) -> Result<(Call, AnswerForm), Refusal> {
        Ok(match *command {
            Command::Inspect { queue, view, start, count } => {
                let view = match view {
                    View::Ready => "ready",
                    View::Leased => "leased",
                    View::Delayed => return self.no("INSPECT DELAYED: it has no delays"),
                    View::Dead => return self.no("INSPECT DEAD: it has no dead tasks"),
                };
                let count = count.min(limits::REPLY_TASKS_MAX);
                let call = Call::about("inspect", queue).arg(view).arg(start.to_string());
                let call = call.number(count.into()).number(limits::REPLY_BYTES_MAX as u64).arg("0");
                (call, AnswerForm::Inspected)
            }
            Command::Info { queue } => (Call::about("info", queue), AnswerForm::Lengths),
            Command::Drop { queues } => (Call::over("drop", queues), AnswerForm::Counts(None)),
            Command::Exists { queues } => (Call::over("exists", queues), AnswerForm::Count),
            Command::Size => (Call::new("size", None).arg("0"), AnswerForm::Counts(Some(0))),
            Command::Queues { pattern, cursor, count } => {
                let call = Call::new("queues", None).number(cursor).number(count.max(1).into());
                (call, AnswerForm::Queues { pattern: pattern.map(<[u8]>::to_vec) })
            }
            Command::Push { .. } | Command::Add(_) | Command::Pop(_) | Command::Ack { .. } => {
                return self.no("tasks of this kind");
            }
            Command::Return(_) => return self.no("RETURN"),
            Command::Cancel { .. } => return self.no("CANCEL of this kind"),
            Command::Extend { .. } => return self.no("EXTEND"),
            Command::Recover { .. } => return self.no("RECOVER: abandoned tasks are requeued automatically"),
            Command::Bury { .. } => return self.no("BURY"),
            Command::Revive { .. } => return self.no("REVIVE"),
            Command::Delete { .. } => return self.no("DELETE: use CANCEL"),
            Command::Purge { .. } => return self.no("PURGE: use DEL"),
            Command::Pause { .. } => return self.no("PAUSE"),
            Command::Resume { .. } => return self.no("RESUME"),
            Command::Config { .. } => return self.no("CONFIG"),
            Command::Explain { .. } => return self.no("EXPLAIN"),
            Command::Worker(_) => return self.no("WORKER"),
        })
    }

    /// Refuses options of a push that no foreign layout supports: delays, priorities, counters.
    pub(crate) fn check_add(self, add: &Add<'_>) -> Result<(), Refusal> {
        match add.when {
            When::AtOnce | When::After(0) => {}
            When::After(_) => return self.no("ADD DELAY"),
            When::At(_) => return self.no("ADD AT"),
        }
        if add.priority != 0 {
            return self.no("ADD PRIORITY");
        }
        if add.tries.is_some() {
            return self.no("ADD TRIES");
        }
        if add.backoff_ms.is_some() {
            return self.no("ADD BACKOFF");
        }
        if add.ttl_ms.is_some() {
            return self.no("ADD TTL");
        }
        Ok(())
    }

    /// Refuses options of a pop that no foreign layout supports: connections, metadata.
    pub(crate) fn check_pop(self, pop: &Pop<'_>) -> Result<(), Refusal> {
        if pop.lease.conn.is_some() {
            return self.no("POP CONN");
        }
        if pop.lease.lapse.is_some() {
            return self.no("limit of lapses, which this pop needs");
        }
        if pop.meta {
            return self.no("POP META");
        }
        Ok(())
    }

    /// The end of the queue to which a task returns: F or B. Foreign layouts neither count failures nor delay
    /// retries.
    pub(crate) fn return_place(self, back: &Return<'_>, default: Place) -> Result<&'static str, Refusal> {
        if back.failed.is_some() {
            return self.no("RETURN FAILED: it does not count failures");
        }
        match back.to.unwrap_or(default) {
            Place::Front => Ok("F"),
            Place::Back | Place::After(0) => Ok("B"),
            Place::After(_) => self.no("RETURN DELAY"),
        }
    }
}

/// Whether a command takes several calls, if its calls are those of [`Foreign::call_of`].
pub(crate) fn is_sliced(command: &Command<'_>) -> bool {
    is_long(command) || matches!(command, Command::Inspect { .. })
}

/// How the calls of [`Foreign::call_of`] are divided.
pub(crate) fn slice_form(op: &str) -> Option<SliceForm> {
    match op {
        "inspect" => Some(SliceForm::Steps { room: INSPECT_ROOM, cursor: INSPECT_CURSOR }),
        "exists" | "drop" => Some(SliceForm::List(ListForm::from(0))),
        _ => None,
    }
}

/// A random UUID, which is the form of ids in all these programs.
pub(crate) fn new_id() -> Result<String, Refusal> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes)
        .map_err(|error| Refusal::Unavailable { why: format!("cannot get random bytes: {error}").into() })?;
    let random = u128::from_be_bytes(bytes);
    let number = random & !(0xf << 76) & !(0x3 << 62) | (0x4 << 76) | (0x2 << 62);
    let hex = format!("{number:032x}");
    Ok([&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]].join("-"))
}

/// The code and text of a refusal.
#[cfg(test)]
pub(crate) fn refused(answer: Result<(Call, AnswerForm), Refusal>) -> String {
    let no = answer.expect_err("it is refused");
    format!("{} {no}", no.code())
}

#[cfg(test)]
mod tests {
    use super::*;
    use sureq_core::command::{ConnId, LeaseAsk};

    const HERE: Foreign = Foreign("layout=theirs");

    #[test]
    fn ids_are_random_uuids() {
        let ids = [new_id().unwrap(), new_id().unwrap()];
        assert_ne!(ids[0], ids[1]);
        for id in ids {
            let bytes = id.as_bytes();
            let is_right = |at: usize, c: u8| match at {
                8 | 13 | 18 | 23 => c == b'-',
                14 => c == b'4',
                19 => b"89ab".contains(&c),
                _ => c.is_ascii_digit() || (b'a'..=b'f').contains(&c),
            };
            assert!(bytes.len() == 36 && bytes.iter().enumerate().all(|(at, &c)| is_right(at, c)), "{id}");
        }
    }

    #[test]
    fn commands_that_no_foreign_layout_has_are_refused_by_name() {
        let queue = &b"q"[..];
        let refused_as = |answer: Result<(), Refusal>| answer.unwrap_err().to_string();
        assert_eq!(refused(HERE.call_of(&Command::Pause { queue })), "NOTTHERE layout=theirs has no PAUSE");
        let add = Add::plain(queue, b"x");
        let late = Add { when: When::After(1), ..add };
        assert_eq!(refused_as(HERE.check_add(&late)), "layout=theirs has no ADD DELAY");
        let urgent = Add { priority: 1, ..add };
        assert_eq!(refused_as(HERE.check_add(&urgent)), "layout=theirs has no ADD PRIORITY");
        let brief = Add { ttl_ms: Some(1), ..add };
        assert_eq!(refused_as(HERE.check_add(&brief)), "layout=theirs has no ADD TTL");
        let pop = Pop::plain(&[b"q"], 1);
        let lease = LeaseAsk { conn: Some(ConnId(1)), ..LeaseAsk::NONE };
        assert_eq!(refused_as(HERE.check_pop(&Pop { lease, ..pop })), "layout=theirs has no POP CONN");
        assert_eq!(refused_as(HERE.check_pop(&Pop { meta: true, ..pop })), "layout=theirs has no POP META");
    }
}
