//! Packed runs whose bytes are wrong although their checksum matches. They are decoded lazily, long after the start.
//! Damage may lose only the tasks of the damaged groups.
#![expect(unreachable_pub, reason = "the modules of a test share items")]
#![allow(clippy::unwrap_used, clippy::needless_pass_by_value, reason = "test helpers may panic")]

mod support;

use std::collections::{BTreeMap, BTreeSet};

use support::{Bytes, Home, Log, Store};
use sureq_core::codec::read_number;
use sureq_core::command::{Add, Cancel, IdForm, Pop, TaskRef, TaskRefs, View, When};
use sureq_core::event::QueueNo;
use sureq_core::{Broker, Command, LogTime, Now, Replies, Reply, TaskId, WallTime};

/// The number of entries of a group. Each group is decoded independently of those before it.
const GROUP: usize = 64;

/// Enough tasks for two runs of many groups.
const TASKS: usize = 6_000;

/// Of this many tasks one is delayed, one is leased, and one is deleted.
const SPARED: usize = 97;

/// A small generator of pseudo-random numbers that are the same in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % bound as u64) as usize
    }
}

/// A store with long runs.
struct Fixture {
    store: Store,
    /// The ready tasks of the queue `q`, by id.
    ready: BTreeMap<TaskId, Vec<u8>>,
    others: Vec<TaskId>,
    now: Now,
}

fn refs<'a>(list: &'a [&'a [u8]]) -> TaskRefs<'a> {
    TaskRefs { list, form: IdForm::Long }
}

fn fixture() -> Fixture {
    let mut home = Home::default();
    let (mut ready, mut others) = (BTreeMap::new(), Vec::new());
    for n in 0..TASKS {
        let payload = format!("{:x}", n * n % 1009).into_bytes();
        home.pass(n as u64 % 3);
        if n % SPARED == 5 {
            home.run(&Command::Add(Add { when: When::After(1_000_000), ..Add::plain(b"q", &payload) }));
            continue;
        }
        let queue: &[u8] = if n % 11 == 3 { b"other" } else { b"q" };
        let support::Answer::Ids(ids) = home.run(&Command::Push { queue, payloads: &[&payload] }) else {
            panic!("it is pushed");
        };
        if queue == b"other" {
            others.extend(ids);
        } else {
            ready.insert(ids[0], payload);
        }
    }
    let leased: Vec<TaskId> = {
        let mut out = Replies::default();
        let pop = Pop::plain(&[b"q"], 20);
        home.broker.execute(home.now, &Command::Pop(pop), &mut home.log, &mut out);
        out.tasks.iter().map(|task| task.id).collect()
    };
    let deleted: Vec<TaskId> = ready.keys().copied().skip(50).step_by(SPARED).collect();
    let texts: Vec<String> = deleted.iter().map(ToString::to_string).collect();
    let list: Vec<&[u8]> = texts.iter().map(String::as_bytes).collect();
    home.run(&Command::Delete { queue: b"q", tasks: refs(&list) });
    ready.retain(|id, _| !leased.contains(id) && !deleted.contains(id));
    let mut store = Store::default();
    store.take(&mut home.broker);
    Fixture { store, ready, others, now: home.now }
}

/// The offsets of the groups of a run; the header is before the first.
fn groups(run: &[u8]) -> Vec<usize> {
    let mut rest = &run[8..];
    let mut number = || {
        let (number, behind) = read_number(rest).expect("a header");
        rest = behind;
        number as usize
    };
    let (_, count, _) = (number(), number(), number());
    let mut starts = vec![0];
    starts.extend((1..count.div_ceil(GROUP)).map(|_| number()));
    let header = run.len() - rest.len();
    starts.into_iter().map(|start| header + start).collect()
}

/// A store with wrong bytes in one run of the queue `q`, and the maximum number of tasks that may be lost. `None` if
/// the restore refuses it.
fn damage(fixture: &Fixture, random: &mut Random) -> Option<(Store, Broker<Bytes>, usize)> {
    let mut store = fixture.store.clone();
    let (_, stamps) = &store.queues[&QueueNo(0)];
    let stamp = stamps[random.below(2)];
    let run = store.parts.get_mut(&stamp).unwrap();
    let starts = groups(run);
    let mut hit = BTreeSet::new();
    for _ in 0..=random.below(4) {
        // Sometimes the header is damaged, which affects the whole run.
        let is_header = random.below(20) == 0;
        let at =
            if is_header { random.below(starts[0]) } else { starts[0] + random.below(run.len() - starts[0]) };
        run[at] ^= 1 + random.below(255) as u8;
        let of_group = |group| BTreeSet::from([group]);
        let is_in = starts.iter().rposition(|start| *start <= at);
        hit.extend(is_in.map_or_else(|| (0..starts.len()).collect(), of_group));
    }
    let broker = store.restore().ok()?;
    Some((store, broker, hit.len() * GROUP))
}

/// A broker that continues with a damaged store.
struct Served {
    /// Its last checkpoint.
    store: Store,
    broker: Broker<Bytes>,
    log: Log,
    now: Now,
}

impl Served {
    fn run(&mut self, command: &Command<'_>) -> Replies<Bytes> {
        let mut out = Replies::default();
        self.broker.execute(self.now, command, &mut self.log, &mut out);
        out
    }

    /// Pops `count` tasks at a time until there are no more. Returns all of them.
    fn drain(&mut self, queue: &[u8], counts: &[u32]) -> BTreeMap<TaskId, Vec<u8>> {
        let mut popped = BTreeMap::new();
        for &count in counts.iter().cycle().take(2 * TASKS) {
            let out = self.run(&Command::Pop(Pop::plain(&[queue], count)));
            assert!(matches!(out.list[..], [Reply::Tasks(_)]), "{:?}", out.list);
            if out.tasks.is_empty() {
                return popped;
            }
            for task in out.tasks {
                let before = popped.insert(task.id, task.body.0.to_vec());
                assert!(before.is_none(), "{} is delivered twice", task.id);
            }
        }
        panic!("the pops never end");
    }

    fn ready(&mut self, queue: &[u8]) -> u64 {
        let out = self.run(&Command::Info { queue });
        let Reply::Info(info) = &out.list[0] else { panic!("{:?}", out.list) };
        info.ready
    }

    /// Executes other commands of a client.
    fn look_around(&mut self, fixture: &Fixture, random: &mut Random) -> BTreeSet<TaskId> {
        let mut gone = BTreeSet::new();
        for _ in 0..10 {
            let start = random.below(TASKS).cast_signed() as i64 - TASKS.cast_signed() as i64 / 3;
            self.run(&Command::Inspect { queue: b"q", view: View::Ready, start, count: 100 });
            let id = *fixture.ready.keys().nth(random.below(fixture.ready.len())).unwrap();
            let text = id.to_string();
            self.run(&Command::Explain {
                queue: b"q",
                task: TaskRef { bytes: text.as_bytes(), form: IdForm::Long },
            });
            let tasks = refs_of(&text);
            match random.below(3) {
                0 => self.run(&Command::Delete { queue: b"q", tasks: refs(&tasks) }),
                1 => self.run(&Command::Bury { queue: b"q", tasks: refs(&tasks) }),
                _ => self.run(&Command::Cancel { queue: b"q", which: Cancel::Ids(refs(&tasks)) }),
            };
            gone.insert(id);
        }
        gone
    }

    /// Continues from a checkpoint.
    fn restart(&mut self) {
        for _ in 0..100_000 {
            if !self.broker.is_under_way() {
                break;
            }
            self.broker.tick(self.now, &mut self.log);
        }
        drop(self.broker.take_dropped());
        self.store.take(&mut self.broker);
        self.broker = self.store.restore().unwrap();
    }
}

fn refs_of(text: &str) -> [&[u8]; 1] {
    [text.as_bytes()]
}

#[test]
fn wrong_bytes_in_a_run_lose_only_tasks_of_the_damaged_groups() {
    let fixture = fixture();
    let (mut refused, mut served, mut affected) = (0, 0, 0);
    for seed in 1..=150 {
        let mut random = Random(0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(seed));
        let Some((store, broker, cost)) = damage(&fixture, &mut random) else {
            refused += 1;
            continue;
        };
        served += 1;
        let mut this = Served { store, broker, log: Log::default(), now: fixture.now };
        this.broker.start(2, this.now, &mut this.log);
        let gone =
            if random.below(2) == 0 { this.look_around(&fixture, &mut random) } else { BTreeSet::new() };
        if random.below(3) == 0 {
            this.restart();
        }
        let counts: &[u32] = [&[1000][..], &[1, 7, 64, 300], &[5000, 1], &[40]][random.below(4)];
        let others = this.drain(b"other", counts);
        assert!(others.keys().eq(&fixture.others), "seed {seed}: another queue is unchanged");
        if random.below(4) == 0 {
            this.run(&Command::Purge { queue: b"q", state: Some(View::Ready) });
            this.restart();
            assert_eq!(this.ready(b"q"), 0, "seed {seed}");
            continue;
        }
        let popped = this.drain(b"q", counts);
        assert_eq!(this.ready(b"q"), 0, "seed {seed}: undeliverable tasks do not count as ready");
        let lost = fixture
            .ready
            .iter()
            .filter(|(id, payload)| popped.get(id) != Some(payload) && !gone.contains(id));
        let lost = lost.count();
        assert!(lost <= cost, "seed {seed}: {lost} are lost, at most {cost}");
        affected += usize::from(lost > 0);
        this.now.log = LogTime(this.now.log.0 + 2_000_000);
        this.now.wall = WallTime(this.now.wall.0 + 2_000_000);
        this.drain(b"q", counts);
        this.restart();
    }
    assert!(
        refused > 2 && served > 80 && affected > 30,
        "{refused} refused, {served} served, {affected} affected"
    );
}
