//! Client-side accounting: what was confirmed, what was handed out, and whether the two agree over any number of crashes.
//!
//! Clients write a [`Journal`] each; after every life of the server the [`Ledger`] takes them over. A task is known by a
//! number of our own, from which its payload is derived, so that a changed payload shows itself.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;

/// What one client did and saw during one life of the server.
#[derive(Debug, Default)]
pub struct Journal {
    pushes: Vec<Push>,
    deliveries: Vec<Delivery>,
    asked: Vec<u64>,
    finished: Vec<u64>,
    denied: u64,
}

#[derive(Debug)]
struct Push {
    first: u64,
    count: u64,
    /// What the server answered, if it did.
    ids: Vec<u64>,
}

#[derive(Debug)]
struct Delivery {
    id: u64,
    /// Which task it is by its payload; none if no payload of ours looks like that.
    number: Option<u64>,
}

impl Journal {
    /// Tasks `first..first + count` are about to be pushed with one command. Answers the entry to confirm.
    pub fn push(&mut self, first: u64, count: u64) -> usize {
        self.pushes.push(Push { first, count, ids: Vec::new() });
        self.pushes.len() - 1
    }

    /// A push was answered.
    pub fn confirm(&mut self, entry: usize, ids: &[String]) {
        let push = &mut self.pushes[entry];
        assert_eq!(ids.len() as u64, push.count, "one id for each payload");
        push.ids = ids.iter().map(|id| number_of(id)).collect();
    }

    /// A task was handed to this client.
    pub fn deliver(&mut self, id: &str, payload: &[u8]) {
        self.deliveries.push(Delivery { id: number_of(id), number: read_payload(payload) });
    }

    /// An acknowledgement is about to be sent.
    pub fn ask(&mut self, id: &str) {
        self.asked.push(number_of(id));
    }

    /// Of the acknowledgements `asked`, these were answered as done.
    pub fn finish(&mut self, asked: &[String], done: &[String]) {
        self.denied += (asked.len() - done.len()) as u64;
        self.finished.extend(done.iter().map(|id| number_of(id)));
    }
}

/// The payload of task `number`: the number and filler that follows from it.
pub fn payload(number: u64) -> Vec<u8> {
    let mut bytes = number.to_le_bytes().to_vec();
    let mut word = mix(number);
    for _ in 0..word % 12 {
        word = mix(word);
        bytes.extend_from_slice(&word.to_le_bytes());
    }
    bytes.truncate(8 + (mix(number) >> 32) as usize % 96);
    bytes
}

/// The task that a payload belongs to, if it is that task's payload byte for byte.
pub fn read_payload(bytes: &[u8]) -> Option<u64> {
    let number = u64::from_le_bytes(bytes.get(..8)?.try_into().ok()?);
    (payload(number) == bytes).then_some(number)
}

/// An id as one number, in the same order.
pub fn number_of(id: &str) -> u64 {
    let parsed =
        id.split_once('-').and_then(|(ms, seq)| Some((ms.parse::<u64>().ok()?, seq.parse::<u64>().ok()?)));
    let (ms, seq) = parsed.unwrap_or_else(|| panic!("not an id: {id}"));
    assert!(seq < 1 << 17 && ms < 1 << 43, "not an id of this store: {id}");
    ms << 17 | seq
}

fn mix(number: u64) -> u64 {
    let mut word = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

/// The accounts over all lives of a server.
#[derive(Debug, Default)]
pub struct Ledger {
    life: u32,
    tasks: HashMap<u64, Task>,
    by_id: HashMap<u64, u64>,
    /// Commands of several tasks that were never answered.
    unknown: Vec<(u64, u64)>,
    confirmed_pushes: u64,
    found: Findings,
}

#[derive(Debug, Default)]
struct Task {
    confirmed: bool,
    delivered_in: Option<u32>,
    asked: bool,
    finished: bool,
}

/// What does not agree. All of it must be zero, except where a level promises less.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Findings {
    /// Confirmed, never finished and not there any more.
    pub lost: u64,
    /// Handed out after their end had been confirmed.
    pub came_back: u64,
    /// Handed out with a payload that nobody pushed, or under another task's id.
    pub changed: u64,
    /// Ids that stand for two tasks.
    pub repeated_ids: u64,
    /// Handed out twice within one life, although nobody gave them back.
    pub twice: u64,
    /// Handed out but never pushed.
    pub phantoms: u64,
    /// Commands of which a part was executed.
    pub torn: u64,
    /// Acknowledged by their holder, in time, and refused.
    pub denied: u64,
    /// Acknowledged with success more than once.
    pub finished_twice: u64,
}

impl Ledger {
    /// Takes over what the clients of one life wrote down.
    pub fn close_life(&mut self, journals: &[Journal]) {
        self.life += 1;
        for push in journals.iter().flat_map(|journal| &journal.pushes) {
            self.note_push(push);
        }
        for delivery in journals.iter().flat_map(|journal| &journal.deliveries) {
            self.note_delivery(delivery);
        }
        for journal in journals {
            self.found.denied += journal.denied;
            self.note_acks(journal);
        }
    }

    fn note_push(&mut self, push: &Push) {
        let confirmed = !push.ids.is_empty();
        if confirmed {
            self.confirmed_pushes += 1;
        } else if push.count > 1 {
            self.unknown.push((push.first, push.count));
        }
        for number in push.first..push.first + push.count {
            self.tasks.insert(number, Task { confirmed, ..Task::default() });
        }
        for (number, &id) in (push.first..).zip(&push.ids) {
            self.note_id(id, number);
        }
    }

    fn note_id(&mut self, id: u64, number: u64) {
        match self.by_id.entry(id) {
            Entry::Vacant(free) => {
                free.insert(number);
            }
            Entry::Occupied(taken) => self.found.repeated_ids += u64::from(*taken.get() != number),
        }
    }

    fn note_delivery(&mut self, delivery: &Delivery) {
        let Some(number) = delivery.number else {
            self.found.changed += 1;
            return;
        };
        self.note_id(delivery.id, number);
        let Some(task) = self.tasks.get_mut(&number) else {
            self.found.phantoms += 1;
            return;
        };
        self.found.came_back += u64::from(task.finished);
        self.found.twice += u64::from(task.delivered_in == Some(self.life));
        task.delivered_in = Some(self.life);
    }

    fn note_acks(&mut self, journal: &Journal) {
        for id in &journal.asked {
            if let Some(task) = self.by_id.get(id).and_then(|number| self.tasks.get_mut(number)) {
                task.asked = true;
            }
        }
        for id in &journal.finished {
            if let Some(task) = self.by_id.get(id).and_then(|number| self.tasks.get_mut(number)) {
                self.found.finished_twice += u64::from(task.finished);
                task.finished = true;
            }
        }
    }

    /// How many commands that push have been confirmed.
    pub fn confirmed_pushes(&self) -> u64 {
        self.confirmed_pushes
    }

    /// How many tasks are known to the clients, confirmed or not.
    pub fn tasks(&self) -> usize {
        self.tasks.len()
    }

    /// What does not agree, once everything that was left has been taken and acknowledged.
    pub fn settle(&self) -> Findings {
        let lost = self.tasks.values().filter(|task| task.confirmed && !task.asked).count() as u64;
        let seen = |number: &u64| self.tasks[number].delivered_in.is_some();
        let torn = self.unknown.iter().filter(|&&(first, count)| {
            let seen = (first..first + count).filter(seen).count() as u64;
            seen != 0 && seen != count
        });
        Findings { lost, torn: torn.count() as u64, ..self.found }
    }

    /// How many tasks were executed and never confirmed.
    pub fn executed_unanswered(&self) -> usize {
        self.tasks.values().filter(|task| !task.confirmed && task.delivered_in.is_some()).count()
    }
}

impl fmt::Display for Ledger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let finished = self.tasks.values().filter(|task| task.finished).count();
        write!(
            f,
            "{} lives, {} confirmed pushes, {} tasks, {finished} finished",
            self.life,
            self.confirmed_pushes,
            self.tasks.len()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_fault_is_found() {
        let journal = |act: fn(&mut Journal)| {
            let mut journal = Journal::default();
            act(&mut journal);
            vec![journal]
        };
        let mut ledger = Ledger::default();
        ledger.close_life(&journal(|j| {
            for (number, id) in [(0, "1-1"), (1, "1-2"), (2, "1-2")] {
                let entry = j.push(number, 1);
                j.confirm(entry, &[id.to_owned()]);
            }
            j.push(3, 2);
            j.deliver("1-1", &payload(0));
            j.ask("1-1");
            j.finish(&["1-1".to_owned()], &["1-1".to_owned()]);
        }));
        ledger.close_life(&journal(|j| {
            j.deliver("1-1", &payload(0));
            j.deliver("1-4", &payload(3));
            j.deliver("1-4", &payload(3));
            j.deliver("1-9", &payload(9));
            j.deliver("1-5", b"never pushed");
        }));
        let expected = Findings {
            lost: 2,
            came_back: 1,
            changed: 1,
            repeated_ids: 1,
            twice: 1,
            phantoms: 1,
            torn: 1,
            ..Findings::default()
        };
        assert_eq!(ledger.settle(), expected);
    }

    #[test]
    fn a_payload_tells_its_task_and_nothing_else_does() {
        for number in [0, 1, 77, 1 << 40] {
            let mut bytes = payload(number);
            assert_eq!(read_payload(&bytes), Some(number));
            let last = bytes.len() - 1;
            bytes[last] ^= 1;
            assert_ne!(read_payload(&bytes), Some(number));
        }
    }
}
