//! One line of DefferedQ's dialect, and the command it stands for.
//!
//! Attributes are split at each single space. Extra attributes are ignored, except after a body: there they would be
//! a part of the body that got lost, so the line is refused.

use std::fmt;
use std::slice;

use super::QUEUE;
use crate::verbs::Role;
use sureq_core::command::{
    AckScope, Add, Command, IdForm, LapseEnd, LapsePolicy, LeaseAsk, Pop, Return, TaskRef, TaskRefs, When,
};
use sureq_core::settings::Place;

/// A request, which is one line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request<'b> {
    /// `ADD <ms> <body>`
    Add {
        /// The minimum delay in milliseconds.
        delay_ms: u32,
        body: &'b [u8],
    },
    /// `RESERVE`
    Reserve,
    /// `DELETE <id>`
    Delete {
        /// The id, as the client wrote it.
        id: &'b [u8],
    },
    /// `RETURN <id> <ms>`
    Return {
        /// The id, as the client wrote it.
        id: &'b [u8],
        /// The minimum delay in milliseconds.
        delay_ms: u32,
    },
    /// `STATS`
    Stats,
}

/// The reason why a line is refused. The connection stays open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Complaint {
    /// The line begins with none of the five commands.
    UnknownCommand,
    /// The delay is missing, not a whole number, negative, or too large.
    InvalidDelay,
    /// The body is missing or contains a space.
    InvalidBody,
    InvalidId,
    /// The line exceeds the length limit.
    LineTooLong,
    /// The user of this port does not have the required role.
    NotAllowed,
}

impl fmt::Display for Complaint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::UnknownCommand => "unknown command",
            Self::InvalidDelay => "invalid DELAY_MS attr",
            Self::InvalidBody => "invalid TASK_BODY attr",
            Self::InvalidId => "invalid TASK_ID attr",
            Self::LineTooLong => "line too long",
            Self::NotAllowed => "refused NOPERM: the user of this port may not do that",
        })
    }
}

/// The timeout of reservations, which DefferedQ's watcher enforced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReservationPolicy {
    /// The option `-rtt`: seconds after which a reservation times out; the task becomes due as many seconds later. 0
    /// is never.
    pub timeout_secs: u32,
    /// The option `-rta`: the number of timed-out reservations after which the task is deleted.
    pub attempts: u32,
}

impl ReservationPolicy {
    pub fn lease(self) -> LeaseAsk<'static> {
        if self.timeout_secs == 0 {
            return LeaseAsk::NONE;
        }
        let ms = u64::from(self.timeout_secs) * 1_000;
        let lapse = LapsePolicy { to: Place::After(ms), limit: Some(self.attempts), then: LapseEnd::Delete };
        LeaseAsk { ms: Some(ms), lapse: Some(lapse), ..LeaseAsk::NONE }
    }
}

impl<'b> Request<'b> {
    /// Parses a line without its end.
    pub fn parse(line: &'b [u8]) -> Result<Self, Complaint> {
        let (word, rest) = attribute(line);
        match word {
            b"ADD" => add(rest),
            b"RESERVE" => Ok(Self::Reserve),
            b"DELETE" => Ok(Self::Delete { id: attribute(rest.ok_or(Complaint::InvalidId)?).0 }),
            b"RETURN" => parse_return(rest),
            b"STATS" => Ok(Self::Stats),
            _ => Err(Complaint::UnknownCommand),
        }
    }

    /// The role that the request requires on the queue.
    pub const fn role(&self) -> Role {
        match self {
            Self::Add { .. } => Role::Produce,
            Self::Reserve | Self::Delete { .. } | Self::Return { .. } => Role::Consume,
            Self::Stats => Role::Read,
        }
    }

    /// The command that it stands for. The command borrows the request, because it may need a list with one element
    /// of it.
    pub fn command(&self, policy: ReservationPolicy) -> Command<'_> {
        const QUEUES: &[&[u8]] = &[QUEUE];
        match self {
            Self::Add { delay_ms: 0, body } => Command::Add(Add::plain(QUEUE, body)),
            Self::Add { delay_ms, body } => {
                Command::Add(Add { when: When::After(u64::from(*delay_ms)), ..Add::plain(QUEUE, body) })
            }
            Self::Reserve => Command::Pop(Pop { lease: policy.lease(), ..Pop::plain(QUEUES, 1) }),
            Self::Delete { id } => Command::Ack {
                queue: QUEUE,
                tasks: TaskRefs { list: slice::from_ref(id), form: IdForm::Short },
                scope: AckScope::Leased,
            },
            Self::Return { id, delay_ms } => Command::Return(Return {
                queue: QUEUE,
                task: TaskRef { bytes: id, form: IdForm::Short },
                to: Some(if *delay_ms == 0 { Place::Back } else { Place::After(u64::from(*delay_ms)) }),
                failed: None,
                is_last: false,
            }),
            Self::Stats => Command::Info { queue: QUEUE },
        }
    }
}

fn add(rest: Option<&[u8]>) -> Result<Request<'_>, Complaint> {
    let (delay, rest) = attribute(rest.ok_or(Complaint::InvalidDelay)?);
    let delay_ms = read_delay(delay)?;
    match rest {
        Some(body) if !body.contains(&b' ') => Ok(Request::Add { delay_ms, body }),
        _ => Err(Complaint::InvalidBody),
    }
}

fn parse_return(rest: Option<&[u8]>) -> Result<Request<'_>, Complaint> {
    let (id, rest) = attribute(rest.ok_or(Complaint::InvalidId)?);
    let (delay, _) = attribute(rest.ok_or(Complaint::InvalidDelay)?);
    Ok(Request::Return { id, delay_ms: read_delay(delay)? })
}

/// Splits at the first space: the part before it, and the part after it if there is a space.
fn attribute(rest: &[u8]) -> (&[u8], Option<&[u8]>) {
    match rest.iter().position(|&c| c == b' ') {
        Some(space) => (&rest[..space], Some(&rest[space + 1..])),
        None => (rest, None),
    }
}

/// Parses a delay: a signed 32-bit number that is not negative, possibly with a plus sign or leading zeros.
fn read_delay(text: &[u8]) -> Result<u32, Complaint> {
    std::str::from_utf8(text)
        .ok()
        .and_then(|text| text.parse::<i32>().ok())
        .and_then(|delay| u32::try_from(delay).ok())
        .ok_or(Complaint::InvalidDelay)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(line: &str, expect: Result<Request<'_>, &str>) {
        assert_eq!(
            Request::parse(line.as_bytes()).map_err(|no| no.to_string()),
            expect.map_err(str::to_owned),
            "{line:?}"
        );
    }

    fn check_add(line: &str, delay_ms: u32, body: &str) {
        check(line, Ok(Request::Add { delay_ms, body: body.as_bytes() }));
    }

    #[test]
    fn only_the_five_words_are_commands() {
        for line in ["", " ", "add 0 x", " ADD 0 x", "ADDX", "PING", "Stats", "RESERVE\t", "\0", "STATS\r"] {
            check(line, Err("unknown command"));
        }
        check("RESERVE", Ok(Request::Reserve));
        check("RESERVE and more", Ok(Request::Reserve));
        check("STATS ", Ok(Request::Stats));
    }

    #[test]
    fn add_checks_the_delay_before_the_body() {
        for line in [
            "ADD",
            "ADD ",
            "ADD  x",
            "ADD x y",
            "ADD x",
            "ADD 1.5 x",
            "ADD 0x1 x",
            "ADD 2147483648 x",
            "ADD + x",
        ] {
            check(line, Err("invalid DELAY_MS attr"));
        }
        for line in ["ADD -1 x", "ADD -2147483648 x", "ADD -1", "ADD \t0 x", "ADD 1_0 x"] {
            check(line, Err("invalid DELAY_MS attr"));
        }
        for line in ["ADD 0", "ADD 5", "ADD 0 a b", "ADD 0  x", "ADD 0 x "] {
            check(line, Err("invalid TASK_BODY attr"));
        }
    }

    #[test]
    fn add_accepts_the_same_input_as_the_original() {
        check_add("ADD 0 x", 0, "x");
        check_add("ADD +5 x", 5, "x");
        check_add("ADD 007 x", 7, "x");
        check_add("ADD -0 x", 0, "x");
        check_add("ADD 2147483647 x", 2_147_483_647, "x");
        check_add("ADD 0 ", 0, "");
        check_add("ADD 0 a\tb", 0, "a\tb");
        let raw = b"ADD 0 \xff\x00\r";
        assert_eq!(Request::parse(raw), Ok(Request::Add { delay_ms: 0, body: b"\xff\x00\r" }));
    }

    #[test]
    fn delete_and_return_check_the_id_first() {
        check("DELETE", Err("invalid TASK_ID attr"));
        check("DELETE ", Ok(Request::Delete { id: b"" }));
        check("DELETE abc more", Ok(Request::Delete { id: b"abc" }));
        check("RETURN", Err("invalid TASK_ID attr"));
        check("RETURN a", Err("invalid DELAY_MS attr"));
        check("RETURN a ", Err("invalid DELAY_MS attr"));
        check("RETURN a -5", Err("invalid DELAY_MS attr"));
        check("RETURN  0", Ok(Request::Return { id: b"", delay_ms: 0 }));
        check("RETURN a 5 more", Ok(Request::Return { id: b"a", delay_ms: 5 }));
    }

    #[test]
    fn each_request_is_a_command() {
        let off = ReservationPolicy::default();
        let parse = |line: &'static str| Request::parse(line.as_bytes()).unwrap();
        assert_eq!(parse("ADD 0 x").command(off), Command::Add(Add::plain(b"default", b"x")));
        let request = parse("ADD 5 x");
        let Command::Add(later) = request.command(off) else { panic!() };
        assert_eq!(later.when, When::After(5));
        assert_eq!(parse("RESERVE").command(off), Command::Pop(Pop::plain(&[b"default"], 1)));
        assert_eq!(
            parse("DELETE 0123456789").command(off),
            Command::Ack {
                queue: b"default",
                tasks: TaskRefs { list: &[b"0123456789"], form: IdForm::Short },
                scope: AckScope::Leased,
            }
        );
        for (line, to) in [("RETURN a 0", Place::Back), ("RETURN a 5", Place::After(5))] {
            let request = parse(line);
            let Command::Return(back) = request.command(off) else { panic!() };
            assert_eq!((back.to, back.failed, back.task.form), (Some(to), None, IdForm::Short));
        }
        assert_eq!(parse("STATS").command(off), Command::Info { queue: b"default" });
    }

    #[test]
    fn reservation_timeouts_become_leases() {
        let lapse = LapsePolicy { to: Place::After(2_000), limit: Some(300), then: LapseEnd::Delete };
        let lease = LeaseAsk { ms: Some(2_000), lapse: Some(lapse), ..LeaseAsk::NONE };
        let policy = ReservationPolicy { timeout_secs: 2, attempts: 300 };
        assert_eq!(
            Request::Reserve.command(policy),
            Command::Pop(Pop { lease, ..Pop::plain(&[b"default"], 1) })
        );
        assert_eq!(ReservationPolicy { timeout_secs: 0, attempts: 9 }.lease(), LeaseAsk::NONE);
    }
}
