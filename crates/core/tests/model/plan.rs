//! Random plans: few queues, names, ids and times, so that they collide.

use proptest::prelude::*;
use sureq_core::command::{AckScope, IdForm, LapseEnd, LapsePolicy, View, When};
use sureq_core::settings::{Expired, Overflow, Place};
use sureq_core::{Receipt, TaskId, WallTime};

use super::Model;
use super::command::{AddPlan, Cmd, Happening, Name, Naming, PopPlan, Setting, TaskText, WorkerName};
use crate::support::START_MS;

pub const QUEUES: [Name; 3] = ["alpha", "beta", "gamma"];
const NAMES: [Name; 3] = ["", "n", "m"];
const WORKERS: [Name; 2] = ["w", "v"];

/// A step whose references are still open; they are filled in from the replies so far.
#[derive(Clone, Debug)]
pub enum Plan {
    /// A fixed step.
    Fixed(Happening),
    /// Time advances to about the next deadline, plus or minus this many milliseconds.
    ToDeadline(i64),
    Ack(Name, Vec<Ref>, IdForm, AckScope),
    Extend(Name, Ref, u64),
    Explain(Name, Ref),
    Return(Name, Ref, Option<Place>, Option<Vec<u8>>, bool),
    CancelIds(Name, Vec<Ref>),
    Bury(Name, Vec<Ref>),
    Revive(Name, Vec<Ref>),
    Delete(Name, Vec<Ref>),
    Pop(PopPlan, usize),
    Beat(usize),
    Work(usize, Name),
    Rest(usize, Name),
    Stop(usize),
    RequeueUndelivered(Name, Vec<usize>),
    Forward(usize),
}

/// A reference to a task; the number counts back from the newest.
#[derive(Clone, Copy, Debug)]
pub enum Ref {
    Id(usize),
    Receipt(usize),
    /// A receipt of another incarnation of the store.
    Foreign(usize),
    /// A receipt of a future delivery.
    Early(usize),
    Unknown,
    Garbage,
}

impl Model {
    /// The step that a plan stands for at this moment.
    pub fn resolve(&self, plan: Plan) -> Happening {
        let list =
            |refs: &[Ref], form| refs.iter().map(|r| self.task_text(*r, form)).collect::<Vec<TaskText>>();
        Happening::Cmd(match plan {
            Plan::Fixed(happening) => return happening,
            Plan::ToDeadline(bit) => {
                let next = self.next_log().unwrap_or(self.log + 1);
                return Happening::Pass(next.saturating_add_signed(bit).saturating_sub(self.log));
            }
            Plan::Ack(queue, refs, form, scope) => Cmd::Ack(queue, list(&refs, form), form, scope),
            Plan::Extend(queue, task, ms) => Cmd::Extend(queue, self.task_text(task, IdForm::Long), ms),
            Plan::Explain(queue, task) => Cmd::Explain(queue, self.task_text(task, IdForm::Long)),
            Plan::Return(queue, task, to, failed, is_last) => {
                Cmd::Return { queue, task: self.task_text(task, IdForm::Long), to, failed, is_last }
            }
            Plan::CancelIds(queue, refs) => Cmd::CancelIds(queue, list(&refs, IdForm::Long)),
            Plan::Bury(queue, refs) => Cmd::Bury(queue, list(&refs, IdForm::Long)),
            Plan::Revive(queue, refs) => Cmd::Revive(queue, Some(list(&refs, IdForm::Long))),
            Plan::Delete(queue, refs) => Cmd::Delete(queue, list(&refs, IdForm::Long)),
            Plan::Pop(plan, worker) => Cmd::Pop(PopPlan { worker: Some(self.worker(worker)), ..plan }),
            Plan::Beat(worker) => Cmd::Beat(self.worker(worker)),
            Plan::Work(worker, queue) => Cmd::Work(self.worker(worker), queue),
            Plan::Rest(worker, queue) => Cmd::Rest(self.worker(worker), queue),
            Plan::Stop(worker) => Cmd::Stop(self.worker(worker)),
            Plan::RequeueUndelivered(queue, picks) => {
                let receipts = picks.iter().filter_map(|&pick| back(&self.receipts, pick)).collect();
                return Happening::RequeueUndelivered(queue, receipts);
            }
            Plan::Forward(pick) => {
                let unknown = TaskId::new(7, 7).unwrap();
                return Happening::Forward(back(&self.ids, pick).unwrap_or(unknown));
            }
        })
    }

    fn task_text(&self, task: Ref, form: IdForm) -> TaskText {
        let unknown = TaskId::new(7, 7).unwrap();
        let id = |pick| back(&self.ids, pick).unwrap_or(unknown);
        let receipt = |pick| {
            let none = Receipt { id: unknown, incarnation: 1, delivery: 1 };
            back(&self.receipts, pick).unwrap_or(none)
        };
        let task_text = |id: TaskId| match form {
            IdForm::Long => id.to_string().into_bytes(),
            IdForm::Short => id.short().to_vec(),
        };
        let receipt_text = |receipt: Receipt| match form {
            IdForm::Long => receipt.to_string().into_bytes(),
            IdForm::Short => receipt.id.short().to_vec(),
        };
        match task {
            Ref::Id(pick) => task_text(id(pick)),
            Ref::Receipt(pick) => receipt_text(receipt(pick)),
            Ref::Foreign(pick) => {
                let receipt = receipt(pick);
                receipt_text(Receipt { incarnation: receipt.incarnation + 1, ..receipt })
            }
            Ref::Early(pick) => {
                let receipt = receipt(pick);
                receipt_text(Receipt { delivery: receipt.delivery + 1, ..receipt })
            }
            Ref::Unknown => task_text(unknown),
            Ref::Garbage => b"garbage".to_vec(),
        }
    }

    fn worker(&self, pick: usize) -> WorkerName {
        back(&self.incarnations, pick).unwrap_or(("w", 1))
    }
}

fn back<T: Copy>(list: &[T], pick: usize) -> Option<T> {
    list.len().checked_sub(1 + pick % list.len().max(1)).map(|at| list[at])
}

fn queue() -> impl Strategy<Value = Name> {
    prop_oneof![5 => Just(QUEUES[0]), 2 => Just(QUEUES[1]), 1 => Just(QUEUES[2])]
}

fn payload() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![Just(vec![]), Just(b"same".to_vec()), prop::collection::vec(any::<u8>(), 0..12)]
}

fn ms() -> impl Strategy<Value = u64> {
    prop_oneof![6 => 1..30u64, 1 => Just(0), 1 => 500..3_000u64, 1 => Just(20_000)]
}

fn task() -> impl Strategy<Value = Ref> {
    prop_oneof![
        10 => (0..8usize).prop_map(Ref::Id),
        10 => (0..6usize).prop_map(Ref::Receipt),
        2 => (0..40usize).prop_map(Ref::Receipt),
        1 => (0..6usize).prop_map(Ref::Foreign),
        1 => (0..6usize).prop_map(Ref::Early),
        1 => Just(Ref::Unknown),
    ]
}

/// Mostly valid references. A malformed one makes the command refuse all of them.
fn tasks() -> impl Strategy<Value = Vec<Ref>> {
    prop_oneof![
        20 => prop::collection::vec(task(), 0..4),
        1 => (task(), Just(Ref::Garbage)).prop_map(|(task, garbage)| vec![task, garbage]),
    ]
}

fn view() -> impl Strategy<Value = View> {
    prop::sample::select(vec![View::Ready, View::Delayed, View::Leased, View::Dead])
}

fn place() -> impl Strategy<Value = Place> {
    prop_oneof![Just(Place::Front), Just(Place::Back), ms().prop_map(Place::After)]
}

fn lapse() -> impl Strategy<Value = LapsePolicy> {
    let then = prop_oneof![Just(LapseEnd::Dead), Just(LapseEnd::Delete)];
    (place(), prop::option::of(0..3u32), then).prop_map(|(to, limit, then)| LapsePolicy { to, limit, then })
}

fn add() -> impl Strategy<Value = AddPlan> {
    let when = prop_oneof![
        3 => Just(When::AtOnce),
        3 => ms().prop_map(When::After),
        2 => (0..200u64).prop_map(|ms| When::At(WallTime(START_MS + ms))),
    ];
    let name = prop_oneof![
        3 => Just(None),
        2 => prop::sample::select(&NAMES[..]).prop_map(|name| Some(Naming::Name(name))),
        1 => Just(Some(Naming::Unique)),
    ];
    let tries = prop::option::weighted(0.3, 0..4u32);
    let (backoff, ttl) = (prop::option::weighted(0.3, ms()), prop::option::weighted(0.3, ms()));
    let priority = prop_oneof![4 => Just(0i8), 1 => any::<i8>()];
    (queue(), payload(), name, when, priority, tries, backoff, ttl).prop_map(
        |(queue, payload, name, when, priority, tries, backoff_ms, ttl_ms)| AddPlan {
            queue,
            payload,
            name,
            when,
            priority,
            tries,
            backoff_ms,
            ttl_ms,
        },
    )
}

fn pop() -> impl Strategy<Value = PopPlan> {
    let queues = prop_oneof![
        4 => queue().prop_map(|queue| vec![queue]),
        1 => prop::collection::vec(queue(), 0..4),
    ];
    let lease = prop::option::of(ms());
    let conn = prop::option::weighted(0.2, 1..3u64);
    let policy = prop::option::weighted(0.3, lapse());
    (queues, 0..5u32, lease, conn, policy, any::<bool>()).prop_map(
        |(queues, count, lease_ms, conn, lapse, meta)| PopPlan {
            queues,
            count,
            lease_ms,
            worker: None,
            conn,
            lapse,
            meta,
        },
    )
}

fn setting() -> impl Strategy<Value = Setting> {
    prop_oneof![
        ms().prop_map(Setting::Lease),
        (0..5u32).prop_map(Setting::Tries),
        ms().prop_map(Setting::Backoff),
        ms().prop_map(Setting::Ttl),
        prop_oneof![Just(Expired::Delete), Just(Expired::Dead)].prop_map(Setting::Expired),
        (0..8u64).prop_map(Setting::MaxLength),
        (0..40u64).prop_map(Setting::MaxBytes),
        prop_oneof![Just(Overflow::Refuse), Just(Overflow::DropOldest)].prop_map(Setting::Overflow),
        (0..4u64).prop_map(Setting::MaxLeased),
        prop::sample::select(vec!["", QUEUES[1], QUEUES[2]]).prop_map(Setting::DeadLetter),
    ]
}

fn cmd() -> impl Strategy<Value = Cmd> {
    prop_oneof![
        20 => (queue(), prop::collection::vec(payload(), 0..4)).prop_map(|(q, p)| Cmd::Push(q, p)),
        20 => add().prop_map(Cmd::Add),
        30 => pop().prop_map(Cmd::Pop),
        5 => (queue(), 0..4u32, ms()).prop_map(|(q, n, ms)| Cmd::Recover(q, n, ms)),
        8 => (queue(), view(), -4..4i64, 0..5u32).prop_map(|(q, v, s, n)| Cmd::Inspect(q, v, s, n)),
        3 => queue().prop_map(Cmd::Info),
        3 => (queue(), prop::collection::vec(prop::sample::select(&NAMES[..]), 0..3))
            .prop_map(|(q, n)| Cmd::CancelNames(q, n)),
        2 => (queue(), payload()).prop_map(|(q, p)| Cmd::CancelPayload(q, p)),
        2 => queue().prop_map(|q| Cmd::Revive(q, None)),
        1 => (queue(), prop::option::of(view())).prop_map(|(q, v)| Cmd::Purge(q, v)),
        1 => prop::collection::vec(queue(), 0..3).prop_map(Cmd::Drop),
        2 => prop::collection::vec(queue(), 0..4).prop_map(Cmd::Exists),
        1 => queue().prop_map(Cmd::Pause),
        3 => queue().prop_map(Cmd::Resume),
        6 => (queue(), prop::collection::vec(setting(), 0..3)).prop_map(|(q, s)| Cmd::Config(q, s)),
        2 => prop::option::of(queue()).prop_map(Cmd::Queues),
        6 => (prop::sample::select(&WORKERS[..]), ms()).prop_map(|(w, ttl)| Cmd::Start(w, ttl)),
        2 => prop::sample::select(&WORKERS[..]).prop_map(Cmd::Fail),
        2 => Just(Cmd::List),
    ]
}

fn reason() -> impl Strategy<Value = Option<Vec<u8>>> {
    prop_oneof![Just(None), Just(Some(vec![])), Just(Some(b"broke".to_vec()))]
}

pub fn plan() -> impl Strategy<Value = Plan> {
    let scope = prop_oneof![3 => Just(AckScope::LeasedOrLapsed), 1 => Just(AckScope::Leased)];
    let form = prop_oneof![4 => Just(IdForm::Long), 1 => Just(IdForm::Short)];
    let fixed = |happening| Just(Plan::Fixed(happening));
    prop_oneof![
        60 => cmd().prop_map(|cmd| Plan::Fixed(Happening::Cmd(cmd))),
        12 => (queue(), tasks(), form, scope).prop_map(|(q, t, f, s)| Plan::Ack(q, t, f, s)),
        5 => (queue(), task(), ms()).prop_map(|(q, t, ms)| Plan::Extend(q, t, ms)),
        12 => (queue(), task(), prop::option::of(place()), reason(), prop::bool::weighted(0.1))
            .prop_map(|(q, t, p, r, last)| Plan::Return(q, t, p, r, last)),
        5 => (queue(), tasks()).prop_map(|(q, t)| Plan::CancelIds(q, t)),
        8 => (queue(), task()).prop_map(|(q, t)| Plan::Explain(q, t)),
        4 => (queue(), tasks()).prop_map(|(q, t)| Plan::Bury(q, t)),
        3 => (queue(), tasks()).prop_map(|(q, t)| Plan::Revive(q, t)),
        2 => (queue(), tasks()).prop_map(|(q, t)| Plan::Delete(q, t)),
        10 => (pop(), 0..3usize).prop_map(|(p, w)| Plan::Pop(p, w)),
        4 => (0..3usize).prop_map(Plan::Beat),
        2 => (0..3usize, queue()).prop_map(|(w, q)| Plan::Work(w, q)),
        2 => (0..3usize, queue()).prop_map(|(w, q)| Plan::Rest(w, q)),
        1 => (0..3usize).prop_map(Plan::Stop),
        2 => (queue(), prop::collection::vec(0..6usize, 0..4)).prop_map(|(q, r)| Plan::RequeueUndelivered(q, r)),
        8 => (0..12usize).prop_map(Plan::Forward),
        14 => (-1..2i64).prop_map(Plan::ToDeadline),
        8 => ms().prop_map(|ms| Plan::Fixed(Happening::Pass(ms))),
        1 => Just(Plan::Fixed(Happening::Pass(3_600_000))),
        3 => (0..300u64).prop_map(|ms| Plan::Fixed(Happening::Wall(START_MS + ms))),
        12 => fixed(Happening::Tick),
        2 => fixed(Happening::Restart),
        2 => (1..3u64).prop_map(|conn| Plan::Fixed(Happening::CloseConn(conn))),
    ]
}
