//! The commands that redis-queue's own clients send.

use sureq_core::Reply;
use sureq_core::command::{Add, Command, NameArg, Pop};

pub(crate) use crate::common::shop::{QUEUE, Shop, answer, tasks, text};

impl Shop {
    pub(crate) fn open() -> Self {
        Self::with("layout=redis-queue")
    }

    /// Pushes a task with a body; returns its id.
    pub(crate) fn push(&self, payload: &str) -> String {
        let replies = self.execute(Command::Push { queue: QUEUE, payloads: &[payload.as_bytes()] });
        assert!(matches!(replies.list[..], [Reply::PushedForeign(_)]), "{:?}", replies.list);
        text(replies.foreign_ids[0].as_ref().expect("it has an id"))
    }

    /// Pushes an id alone.
    pub(crate) fn push_id(&self, id: &str) {
        let add = Add { name: Some(NameArg::Bytes(id.as_bytes())), ..Add::plain(QUEUE, b"") };
        assert!(matches!(self.reply(Command::Add(add)), Reply::AddedForeign { added: true, .. }));
    }

    pub(crate) fn pop(&self, count: u32) -> Vec<(String, String)> {
        tasks(&self.execute(Command::Pop(Pop::plain(&[QUEUE], count))))
    }

    /// The id of the next task, if there is one.
    pub(crate) fn pop_one(&self) -> Option<String> {
        self.pop(1).pop().map(|(id, _)| id)
    }

    /// The entries of the list; the next task is the last one.
    pub(crate) fn list(&mut self) -> Vec<String> {
        self.all("LRANGE jobs 0 -1")
    }

    /// The ids in the list, without their times; the next task is the last one.
    pub(crate) fn ids(&mut self) -> Vec<String> {
        let id = |entry: String| entry.split('|').next().unwrap_or_default().to_owned();
        self.list().into_iter().map(id).collect()
    }

    /// Redis' clock, in seconds.
    pub(crate) fn now(&mut self) -> u64 {
        let (seconds, _): (u64, u64) = self.raw("TIME");
        seconds
    }

    /// A foreign client takes this entry, this many seconds ago.
    pub(crate) fn foreign_take(&mut self, id: &str, ago_s: u64) {
        assert_eq!(self.all("BRPOP jobs 1"), ["jobs", id]);
        let at = self.now() - ago_s;
        self.raw::<()>(&format!("LPUSH jobs {id}|{at}"));
    }

    pub(crate) fn foreign_mark_done(&mut self, id: &str) {
        self.raw::<()>(&format!("SADD jobs:done {id}"));
        self.raw::<()>(&format!("DEL jobs:data:{id}"));
    }
}
