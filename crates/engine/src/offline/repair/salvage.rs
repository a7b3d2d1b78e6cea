//! Rebuilds the state from a log with gaps.
//!
//! As long as no event is missing, events are replayed as at a start. After the first gap, each event is applied as
//! far as possible: to the tasks that are known, and not to unknown ones. A task counts as finished if any event of
//! the log finishes it. It may also have been finished in the gap; so every task that no later event names is
//! doubtful.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use sureq_core::event::{Event, Fields, FullTask, Ids, QueueNo, Removal};
use sureq_core::settings::Settings;
use sureq_core::task::{Cause, OrderKey, TaskState, Tries};
use sureq_core::{Broker, TaskId, codec};

use crate::commit::commit_buffer::ReplayRecorder;
use crate::compaction::live::LiveBodies;
use crate::log::Position;
use crate::log::salvage::Piece;
use crate::payload::body::{Body, Stored};
use crate::payload::cache::is_whole;
use crate::payload::payload_scan::{offset_in, payloads_of};

/// A range of lost events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gap {
    /// The position of the first lost event.
    pub from: Position,
    /// The position of the first event after the gap; `None` if the number of lost events is unknown.
    pub upto: Option<Position>,
}

/// A state that is being rebuilt from a log with gaps.
pub(super) struct Salvage {
    pub(super) broker: Broker<Body>,
    /// The position of the next event to apply.
    position: Position,
    gaps: Vec<Gap>,
    /// Gaps in the log before the state began. Known only if that part of the log was searched for tasks that the
    /// state lacks.
    gaps_before: Vec<Gap>,
    /// Whether events or parts of the state were lost, so that a task that the state lacks may still have been
    /// pushed.
    is_bent: bool,
    /// Tasks that events have named since the last gap.
    heard: HashSet<TaskId>,
    /// Tasks that were doubtful from the beginning, and that no event has named since.
    pub(super) doubted: BTreeSet<TaskId>,
    /// Tasks from damaged frames, and the queues that those frames named. They may be wrong, so a later event may
    /// name another queue.
    strays: HashMap<TaskId, QueueNo>,
    /// The number of lost tasks of which not even the ids are known.
    pub(super) unnamed: u64,
    /// The names of queues, from checkpoints that may be damaged otherwise.
    pub(super) names: BTreeMap<QueueNo, Vec<u8>>,
    /// The replacement names of queues whose names are lost.
    pub(super) nameless: BTreeSet<Vec<u8>>,
    /// No id from this one on can have been assigned.
    ids_end: TaskId,
    /// Needed for replaying, and not read here.
    live: LiveBodies,
}

impl Salvage {
    /// Begins with a complete state, which contains all events before `position`.
    pub(super) fn from_whole(broker: Broker<Body>, position: Position, ids_end: TaskId) -> Salvage {
        Salvage {
            broker,
            position,
            gaps: Vec::new(),
            gaps_before: Vec::new(),
            is_bent: false,
            heard: HashSet::new(),
            doubted: BTreeSet::new(),
            strays: HashMap::new(),
            unnamed: 0,
            names: BTreeMap::new(),
            nameless: BTreeSet::new(),
            ids_end,
            live: LiveBodies::default(),
        }
    }

    /// Begins with a state of which parts are lost.
    pub(super) fn from_part(broker: Broker<Body>, position: Position, ids_end: TaskId) -> Salvage {
        Salvage { is_bent: true, ..Salvage::from_whole(broker, position, ids_end) }
    }

    /// The position of the next event to apply.
    pub(super) fn position(&self) -> Position {
        self.position
    }

    /// Applies the next frame, except for events that were applied already.
    pub(super) fn take(&mut self, piece: &Piece<'_>) {
        if piece.end() <= self.position {
            return;
        }
        if piece.first > self.position {
            self.gap(Some(piece.first));
        }
        if is_trusted(piece) {
            self.replay(piece);
        } else {
            let (last_id, was_bent) = (self.broker.last_id(), self.is_bent);
            self.gap(Some(piece.end()));
            self.pick_up(piece, last_id, was_bent);
        }
        self.position = piece.end();
    }

    /// Notes that all events from the current position up to this one are lost.
    pub(super) fn gap(&mut self, upto: Option<Position>) {
        widen(&mut self.gaps, Gap { from: self.position, upto });
        self.is_bent = true;
        self.heard.clear();
        if let Some(upto) = upto {
            self.position = upto;
        }
    }

    /// Notes that the events of this frame, which are older than the state, are lost.
    pub(super) fn gap_before(&mut self, piece: &Piece<'_>) {
        widen(&mut self.gaps_before, Gap { from: piece.first, upto: Some(piece.end()) });
    }

    /// All lost events.
    pub(super) fn all_gaps(&self) -> Vec<Gap> {
        self.gaps_before.iter().chain(&self.gaps).cloned().collect()
    }

    /// Whether a task of the state may have been finished in a gap.
    pub(super) fn is_doubtful(&self, id: TaskId) -> bool {
        !self.heard.contains(&id) && (!self.gaps.is_empty() || self.doubted.contains(&id))
    }

    fn replay(&mut self, piece: &Piece<'_>) {
        let mut rest = piece.body;
        for position in piece.first.0..piece.end().0 {
            let is_known = position < self.position.0;
            let decoded = codec::decode(rest, |event| {
                if !is_known && (self.is_bent || !self.apply(event, piece)) {
                    if !self.is_bent {
                        self.position = Position(position);
                        self.gap(Some(Position(position + 1)));
                    }
                    self.bend(event, piece);
                }
            });
            let Ok(((), behind)) = decoded else {
                self.position = Position(position);
                return self.gap(Some(piece.end()));
            };
            rest = behind;
        }
    }

    fn apply(&mut self, event: &Event<'_>, piece: &Piece<'_>) -> bool {
        let mut recorder = ReplayRecorder { frame: piece.body, place: piece.place, live: &mut self.live };
        self.broker.replay(event, &mut recorder).is_ok()
    }

    fn hear(&mut self, id: TaskId) {
        self.heard.insert(id);
        self.doubted.remove(&id);
    }

    /// Applies as much of an event as possible.
    fn bend(&mut self, event: &Event<'_>, piece: &Piece<'_>) {
        match *event {
            Event::Pushed { queue, first, payloads, ref fields } => {
                for (n, payload) in payloads.iter().enumerate() {
                    if let Some(id) = first.nth(n as u64) {
                        self.push(queue, id, payload, fields, piece);
                        self.hear(id);
                    }
                }
            }
            Event::Task(task) => {
                self.put(task, piece);
                self.hear(task.id);
            }
            Event::QueueMade { queue, name } => self.make(queue, name, piece),
            Event::QueueGone(queue) => self.forget(queue, piece),
            Event::WorkerStarted { name, .. } => {
                let before =
                    self.broker.workers().find(|(known, _)| *known == name).map(|(_, worker)| worker);
                if let Some(before) = before {
                    self.apply(&Event::WorkerEnded(before), piece);
                }
                self.apply(event, piece);
            }
            Event::Moved { from, id, to } => {
                let died =
                    Event::Died { queue: from, ids: Ids::Slice(&[id]), cause: Cause::Free, reason: None };
                if !self.apply(event, piece) && self.apply(&died, piece) {
                    self.apply(&Event::Moved { from, id, to }, piece);
                }
                self.hear(id);
            }
            Event::Extended { id, .. } => {
                self.apply(event, piece);
                self.hear(id);
            }
            _ => match ids_of(event) {
                Some((queue, ids)) => {
                    for id in ids.iter() {
                        let (queue, ids) = (self.whereabouts(queue, id), [id]);
                        let one = narrowed(event, queue, &ids).expect("it is about tasks");
                        let is_end = matches!(one, Event::Finished { .. } | Event::Removed { .. });
                        if self.apply(&one, piece) || !is_end {
                            self.hear(id);
                        }
                    }
                }
                None => _ = self.apply(event, piece),
            },
        }
    }

    /// The queue that contains a task: the one that the event names; the one that a damaged frame named; or a queue
    /// with a dead-letter queue, if the event that moved the task out of it was lost.
    fn whereabouts(&self, named: QueueNo, id: TaskId) -> QueueNo {
        let has = |no: &QueueNo| self.broker.queue_at(*no).is_some_and(|queue| queue.state_of(id).is_some());
        if let Some(no) = [Some(named), self.strays.get(&id).copied()].into_iter().flatten().find(has) {
            return no;
        }
        let mut sources = self.broker.queues().filter(|(_, queue)| queue.settings().dead_letter.is_some());
        sources.find(|(_, queue)| queue.state_of(id).is_some()).map_or(named, |(_, queue)| queue.no())
    }

    fn push(
        &mut self,
        queue: QueueNo,
        id: TaskId,
        payload: &[u8],
        fields: &Fields<'_>,
        piece: &Piece<'_>,
    ) -> bool {
        let state = fields.due.map_or(TaskState::Ready(OrderKey::pushed(id)), TaskState::Delayed);
        let task = FullTask {
            queue,
            id,
            payload,
            pushed: self.broker.clock(),
            state,
            stray_neg_priority: None,
            incarnation: 0,
            deliveries: 0,
            tries: Tries::default(),
            cancelled: false,
            late_ack: false,
            fields: Fields { due: None, ..*fields },
            reason: None,
            past: &[],
        };
        self.put(&task, piece)
    }

    /// Adds a task, or updates it if it is known.
    fn put(&mut self, task: &FullTask<'_>, piece: &Piece<'_>) -> bool {
        self.ensure(task.queue, piece);
        let queue = self.whereabouts(task.queue, task.id);
        let is_there = self.broker.queue_at(queue).is_some_and(|queue| queue.state_of(task.id).is_some());
        if let Some(name) = task.fields.name
            && !is_there
        {
            // At most one existing task has a name, so the earlier owner is gone.
            let before = self.broker.queue_at(queue).and_then(|queue| queue.bearer_of(&name.to_owned()));
            if let Some(before) = before {
                let gone = Event::Removed { queue, ids: Ids::Slice(&[before]), why: Removal::Deleted };
                self.apply(&gone, piece);
            }
        }
        let task = FullTask { queue, ..task.clone() };
        if self.apply(&Event::Task(&task), piece) {
            return true;
        }
        let state = TaskState::Ready(OrderKey::pushed(task.id));
        let plain = FullTask { state, stray_neg_priority: None, cancelled: false, ..task };
        !is_there && self.apply(&Event::Task(&plain), piece)
    }

    /// Makes a queue. An earlier queue with the same number or name must have been gone by then, so it is removed.
    fn make(&mut self, queue: QueueNo, name: &[u8], piece: &Piece<'_>) {
        if self.broker.name_of(queue) == Some(name) {
            return;
        }
        if self.broker.queue_at(queue).is_some() {
            self.forget(queue, piece);
        }
        if let Some(other) = self.broker.number_of(name) {
            self.forget(other, piece);
        }
        self.apply(&Event::QueueMade { queue, name }, piece);
    }

    /// Removes a queue, which had no tasks and settings left by then.
    fn forget(&mut self, queue: QueueNo, piece: &Piece<'_>) {
        self.apply(&Event::QueueDropped(queue), piece);
        self.apply(&Event::Configured { queue, settings: &Settings::default() }, piece);
        self.apply(&Event::Resumed(queue), piece);
        self.apply(&Event::QueueGone(queue), piece);
    }

    /// Makes a queue unless it exists, with a replacement name if its own is lost.
    fn ensure(&mut self, queue: QueueNo, piece: &Piece<'_>) {
        if self.broker.queue_at(queue).is_some() {
            return;
        }
        let known = self.names.get(&queue).cloned();
        let name = known.filter(|name| self.broker.number_of(name).is_none()).unwrap_or_else(|| {
            let name = format!("lost-queue-{}", queue.0).into_bytes();
            self.nameless.insert(name.clone());
            name
        });
        self.apply(&Event::QueueMade { queue, name: &name }, piece);
    }

    /// Takes tasks out of a damaged frame whose damage cannot be located: only tasks whose payloads match their
    /// checksums, whose ids are plausible, and which are still unknown. Known tasks stay as they are, since such a
    /// frame is less reliable. Payloads that cannot be read at their places are searched for in such frames later.
    fn pick_up(&mut self, piece: &Piece<'_>, last_id: TaskId, was_bent: bool) {
        let mut rest = piece.body;
        while !rest.is_empty() {
            let decoded = codec::decode(rest, |event| match event {
                Event::Pushed { queue, fields, .. } => {
                    believable_payloads(event, piece.body, false, &mut |_, id, payload| {
                        let may_be = id < self.ids_end && (was_bent || id > last_id);
                        if may_be && !self.is_known(*queue, id) {
                            self.push(*queue, id, payload, fields, piece);
                            self.strays.insert(id, *queue);
                        }
                    });
                }
                Event::Task(task) => believable_payloads(event, piece.body, false, &mut |queue, id, _| {
                    if was_bent && id < self.ids_end && !self.is_known(queue, id) {
                        self.put(task, piece);
                        self.strays.insert(id, queue);
                    }
                }),
                _ => {}
            });
            match decoded {
                Ok(((), behind)) => rest = behind,
                Err(_) => return,
            }
        }
    }

    fn is_known(&self, named: QueueNo, id: TaskId) -> bool {
        let queue = self.broker.queue_at(self.whereabouts(named, id));
        queue.is_some_and(|queue| queue.state_of(id).is_some())
    }

    /// Adds the wanted tasks of an event that is older than the state. They may have been in a lost part of it, or
    /// finished before, so they are doubtful.
    pub(super) fn take_doubtful(&mut self, event: &Event<'_>, wanted: &BTreeSet<TaskId>, piece: &Piece<'_>) {
        match event {
            Event::Pushed { queue, first, payloads, fields } => {
                for (n, payload) in payloads.iter().enumerate() {
                    let id = first.nth(n as u64).filter(|id| wanted.contains(id));
                    if let Some(id) = id
                        && self.push(*queue, id, payload, fields, piece)
                    {
                        self.doubted.insert(id);
                    }
                }
            }
            Event::Task(task) if wanted.contains(&task.id) && self.put(task, piece) => {
                self.doubted.insert(task.id);
            }
            _ => {}
        }
    }
}

/// Adds a gap, or extends the last one if it is adjacent.
fn widen(gaps: &mut Vec<Gap>, gap: Gap) {
    match gaps.last_mut() {
        Some(last) if last.upto == Some(gap.from) => last.upto = gap.upto,
        _ => gaps.push(gap),
    }
}

/// The queue and the tasks of an event that lists tasks.
pub(super) fn ids_of<'a>(event: &Event<'a>) -> Option<(QueueNo, Ids<'a>)> {
    match *event {
        Event::Popped { queue, ids, .. }
        | Event::Recovered { queue, ids }
        | Event::Finished { queue, ids }
        | Event::Returned { queue, ids, .. }
        | Event::Died { queue, ids, .. }
        | Event::Removed { queue, ids, .. }
        | Event::Marked { queue, ids }
        | Event::Revived { queue, ids } => Some((queue, ids)),
        _ => None,
    }
}

/// The same event for other tasks.
fn narrowed<'a>(event: &Event<'a>, queue: QueueNo, ids: &'a [TaskId]) -> Option<Event<'a>> {
    let ids = Ids::Slice(ids);
    Some(match *event {
        Event::Popped { terms, .. } => Event::Popped { queue, ids, terms },
        Event::Recovered { .. } => Event::Recovered { queue, ids },
        Event::Finished { .. } => Event::Finished { queue, ids },
        Event::Returned { to, cause, reason, .. } => Event::Returned { queue, ids, to, cause, reason },
        Event::Died { cause, reason, .. } => Event::Died { queue, ids, cause, reason },
        Event::Removed { why, .. } => Event::Removed { queue, ids, why },
        Event::Marked { .. } => Event::Marked { queue, ids },
        Event::Revived { .. } => Event::Revived { queue, ids },
        _ => return None,
    })
}

/// Visits the payloads of an event that match their checksums. If more than payloads may be damaged, it stops at the
/// first mismatch: a wrong length can swallow a whole payload, and then each later payload would be attributed to the
/// task before its own.
pub(super) fn believable_payloads<'a>(
    event: &Event<'a>,
    body: &[u8],
    is_frame_trusted: bool,
    visit: &mut dyn FnMut(QueueNo, TaskId, &'a [u8]),
) {
    let mut is_in_doubt = false;
    payloads_of(event, &mut |queue, id, payload| {
        let is_sound = is_sound_payload(body, payload);
        is_in_doubt |= !is_sound && !is_frame_trusted;
        if is_sound && !is_in_doubt {
            visit(queue, id, payload);
        }
    });
}

/// Whether everything in a frame except for its payloads can be trusted: the frame is sound, or damaged payloads,
/// which do not match their own checksums, explain why the checksum of the frame does not match.
pub(super) fn is_trusted(piece: &Piece<'_>) -> bool {
    if piece.is_sound {
        return true;
    }
    let (mut rest, mut events, mut damaged) = (piece.body, 0, 0);
    while !rest.is_empty() {
        let decoded = codec::decode(rest, |event| {
            payloads_of(event, &mut |_, _, payload| {
                damaged += usize::from(!is_sound_payload(piece.body, payload));
            });
        });
        let Ok(((), behind)) = decoded else { return false };
        (rest, events) = (behind, events + 1);
    }
    damaged > 0 && events == piece.events
}

/// Whether a payload of a frame matches the checksum before it.
pub(super) fn is_sound_payload(body: &[u8], payload: &[u8]) -> bool {
    is_whole(body, offset_in(body, payload), Stored { segment: 0, offset: 0, len: payload.len() as u32 })
}

/// The place of a payload of a frame.
pub(super) fn place_of(piece: &Piece<'_>, payload: &[u8]) -> Option<Stored> {
    let at = offset_in(piece.body, payload) as u64;
    Some(Stored {
        segment: u32::try_from(piece.place.segment).ok()?,
        offset: u32::try_from(piece.place.offset + at).ok()?,
        len: u32::try_from(payload.len()).ok()?,
    })
}

#[cfg(test)]
mod tests {
    use sureq_core::event::Payloads;

    use super::*;

    #[test]
    fn payloads_after_a_damaged_one_are_used_only_if_the_rest_of_the_frame_is_trusted() {
        let payloads: [&[u8]; 3] = [b"first", b"second", b"third"];
        let first = TaskId::new(1000, 1).expect("it is in range");
        let fields = Fields::default();
        let pushed =
            Event::Pushed { queue: QueueNo(1), first, payloads: Payloads::Slices(&payloads), fields };
        let mut body = Vec::new();
        codec::encode(&pushed, &mut body);
        let second = body.windows(6).position(|window| window == b"second").expect("it is in there");
        body[second] ^= 1;
        let believed = |is_trusted| {
            let mut believed = Vec::new();
            let decoded = codec::decode(&body, |event| {
                believable_payloads(event, &body, is_trusted, &mut |_, id, payload| {
                    believed.push((id.to_string(), payload.to_vec()));
                });
            });
            decoded.expect("all but a payload is whole");
            believed
        };
        let (one, three) =
            (("1000-1".to_owned(), b"first".to_vec()), ("1000-3".to_owned(), b"third".to_vec()));
        assert_eq!(believed(false), std::slice::from_ref(&one));
        assert_eq!(believed(true), [one, three]);
    }
}
