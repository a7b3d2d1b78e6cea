//! Sureq's own layout, which supports every command. docs/reference/redis-keys.md lists its keys.

use std::borrow::Cow;
use std::rc::Rc;

use futures_util::future::LocalBoxFuture;
use redis::{Cmd, Value};
use sureq_core::Refusal;
use sureq_core::command::Command;
use sureq_home_api::{CleanReport, Cleaning};

use super::{
    AnswerForm, Call, Channels, Exchange, HeaderContext, HomeThread, Ids, Late, Layout, LayoutSession,
    ListForm, PopForm, PopRoom, SliceForm, WakeUp,
};
use crate::connection::target::Target;
use crate::script::call::call_of;
use crate::script::clock::LogClock;
use crate::script::operations::{argument, header};
use crate::script::slices::is_sliced;

/// The positions of the limits of payload bytes in a pop.
pub(crate) const POP_ROOM: PopRoom =
    PopRoom { all: argument("pop", "room"), first: argument("pop", "first") };

/// The positions of the arguments of a pop.
pub(crate) const POP: PopForm =
    PopForm { count: argument("pop", "count"), room: Some(POP_ROOM), queues: argument("pop", "queues...") };

/// The script behind its generated header. `base.lua` describes the parts.
const SCRIPT: &str = concat!(
    include_str!("../script/lua/base.lua"),
    include_str!("../script/lua/time.lua"),
    include_str!("../script/lua/queues.lua"),
    include_str!("../script/lua/tasks.lua"),
    include_str!("../script/lua/deadlines.lua"),
    include_str!("../script/lua/workers.lua"),
    include_str!("../script/lua/ops_tasks.lua"),
    include_str!("../script/lua/ops_queues.lua"),
    include_str!("../script/lua/ops_workers.lua"),
    include_str!("../script/lua/run.lua"),
);

#[derive(Clone, Copy, Debug)]
pub(crate) struct OwnLayout;

impl Layout for OwnLayout {
    fn name(&self) -> &'static str {
        "sureq"
    }

    fn prefix(&self) -> &'static str {
        "sureq:"
    }

    fn script(&self) -> Cow<'static, str> {
        (header() + SCRIPT).into()
    }

    fn call_of(&self, command: &Command<'_>, home: &str) -> Result<(Call, AnswerForm), Refusal> {
        call_of(command, home)
    }

    fn pop_form(&self) -> PopForm {
        POP
    }

    fn is_sliced(&self, command: &Command<'_>, reply_bytes: usize) -> bool {
        is_sliced(command, reply_bytes)
    }

    fn slice_form(&self, op: &str) -> Option<SliceForm> {
        const RANGE: SliceForm = SliceForm::Range {
            start: argument("inspect", "start"),
            count: argument("inspect", "count"),
            room: argument("inspect", "room"),
        };
        let from = match op {
            "inspect" => return Some(RANGE),
            "ack" => const { argument("ack", "tasks...") },
            "cancel" | "bury" | "delete" => const { argument("cancel", "tasks...") },
            "cancel_names" => const { argument("cancel_names", "names...") },
            "revive" => const { argument("revive", "ids...") },
            "exists" | "drop" => const { argument("drop", "queues...") },
            _ => return None,
        };
        Some(SliceForm::List(ListForm::from(from)))
    }

    fn ids(&self) -> Ids {
        Ids::Numbers
    }

    /// The prefix of a queue's keys. The text in braces determines the slot; Redis ignores empty braces.
    fn queue_key(&self, prefix: &str, queue: &[u8]) -> Vec<u8> {
        let (before, letter): (_, &[u8]) =
            if queue.first().is_none_or(|&first| first == b'}') { ("x:{", b"x") } else { ("q:{", b"") };
        [prefix.as_bytes(), before.as_bytes(), letter, queue, b"}"].concat()
    }

    fn keys(&self, target: &Target, queue: Option<&[u8]>) -> Vec<Vec<u8>> {
        target.store_keys(queue).into()
    }

    fn spans_slots(&self) -> bool {
        true
    }

    fn channel(&self, prefix: &str, kind: &str) -> Option<(String, String)> {
        Some((format!("{prefix}{kind}:"), String::new()))
    }

    fn probe_channel(&self, prefix: &str) -> Option<Vec<u8>> {
        Some(Channels { prefix, layout: self }.name("wake", b""))
    }

    fn wake_up(&self) -> WakeUp {
        WakeUp::Published
    }

    fn has_deadlines(&self) -> bool {
        true
    }

    fn has_leases(&self) -> bool {
        true
    }

    fn first_calls(&self) -> Vec<Call> {
        vec![Call::new("epoch", None)]
    }

    fn session(&self, target: &Target) -> Rc<dyn LayoutSession> {
        Rc::new(OwnSession { log: LogClock::default(), is_spread: target.is_spread() })
    }
}

/// Log time, which every call reports and every answer corrects.
struct OwnSession {
    log: LogClock,
    is_spread: bool,
}

impl LayoutSession for OwnSession {
    fn time(&self, now_us: u64, late: Option<Late>) -> String {
        self.log.header(now_us, late)
    }

    fn header(&self, _: &Call, context: &HeaderContext<'_>, command: &mut Cmd) {
        let wall = context.clock.wall_us().map(|us| us.to_string()).unwrap_or_default();
        command.arg(context.time).arg(wall).arg(context.run_id);
    }

    fn answered(&self, _: &Call, log_us: u64, answer: &Value, exchange: Exchange) -> Result<(), Late> {
        let Exchange { sent_us, answered_us } = exchange;
        if let Some(offset_us) = offset_if_late(answer) {
            return Err(self.log.judge(log_us, offset_us, sent_us, answered_us));
        }
        match log_us {
            // A script that cannot read the clock of the store reports no time.
            0 => {}
            log_us if self.is_spread => self.log.learn_from_one_of_many(log_us, sent_us, answered_us),
            log_us => self.log.learn(log_us, sent_us, answered_us),
        }
        Ok(())
    }

    fn clean<'a>(
        &'a self,
        _: &'a HomeThread,
        _: Vec<Vec<u8>>,
        _: Cleaning,
    ) -> LocalBoxFuture<'a, Result<CleanReport, Refusal>> {
        let no = Refusal::not_there("cleaning: its keys need none", "layout=sureq");
        Box::pin(std::future::ready(Err(no)))
    }
}

/// The offset of log time from the wall clock, from a script that did not execute a call since log time is later than
/// the call reported.
fn offset_if_late(answer: &Value) -> Option<i64> {
    let Value::Array(words) = answer else { return None };
    let [Value::BulkString(mark), Value::BulkString(code), Value::BulkString(offset)] = &words[..] else {
        return None;
    };
    let is_late = mark == b"!" && code == b"LATE";
    std::str::from_utf8(offset).ok()?.parse().ok().filter(|_| is_late)
}
