//! The commands that run on the crowded store: every command of the table, in its most expensive forms.

use super::fixture::Fixture;

/// Commands that run one after the other, and are measured together.
pub(super) struct Step {
    pub(super) name: &'static str,
    pub(super) commands: Vec<Vec<Vec<u8>>>,
}

/// A large payload.
const LARGE_BYTES: usize = 32 << 20;

/// The repetitions of commands that change little.
const REPEATS: usize = 5;

/// All steps; those that empty queues are last.
pub(super) fn all(fixture: &Fixture) -> Vec<Step> {
    let mut steps = lookups(fixture);
    steps.extend(changes(fixture));
    steps.extend(workers(fixture));
    steps.extend(sweeping());
    steps
}

fn lookups(fixture: &Fixture) -> Vec<Step> {
    let middle = (fixture.tasks / 2).to_string();
    let id = |ids: &[String]| ids.first().cloned().unwrap_or_default();
    vec![
        often("RQ.INFO", "RQ.INFO ready"),
        often("RQ.INSPECT, first 1,000", "RQ.INSPECT ready 0 1000"),
        often("RQ.INSPECT, middle 1,000", &format!("RQ.INSPECT ready {middle} 1000")),
        often("RQ.INSPECT, last 1,000", "RQ.INSPECT ready -1000 1000"),
        often("RQ.INSPECT, 100,000", "RQ.INSPECT ready 0 100000"),
        often("RQ.INSPECT PENDING, middle", &format!("RQ.INSPECT leased PENDING {middle} 1000")),
        often("RQ.INSPECT PENDING, last", "RQ.INSPECT leased PENDING -1 1"),
        often("RQ.INSPECT DELAYED, middle", &format!("RQ.INSPECT delayed DELAYED {middle} 1000")),
        often("RQ.INSPECT DELAYED, last", "RQ.INSPECT delayed DELAYED -1 1"),
        often("RQ.INSPECT DEAD, middle", &format!("RQ.INSPECT dead DEAD {middle} 1000")),
        often("RQ.EXPLAIN, ready", &format!("RQ.EXPLAIN ready {}", id(&fixture.ready))),
        often("RQ.EXPLAIN, leased", &format!("RQ.EXPLAIN leased {}", id(&fixture.leased))),
        often("RQ.QUEUES, all", &format!("RQ.QUEUES COUNT {}", fixture.queues.max(1))),
        often("RQ.QUEUES MATCH", "RQ.QUEUES MATCH *99* COUNT 1000"),
        often("KEYS", "KEYS queue-*"),
        often("DBSIZE", "DBSIZE"),
        often("EXISTS, 1,000 queues", &with_queues("EXISTS", fixture)),
        often("RQ.CONFIG, shown", "RQ.CONFIG ready"),
    ]
}

fn changes(fixture: &Fixture) -> Vec<Step> {
    let ready = &fixture.ready;
    let payloads = " x".repeat(10_000);
    let large = "x".repeat(LARGE_BYTES);
    vec![
        often("RQ.PUSH, 10,000 payloads", &format!("RQ.PUSH ready{payloads}")),
        often("RQ.PUSH, 32 MB", &format!("RQ.PUSH large {large}")),
        often("RQ.POP, 32 MB", "RQ.POP LEASE 3600000 large"),
        often("RQ.ADD NAME", "RQ.ADD ready x NAME one DELAY 1"),
        often("RQ.POP, one", "RQ.POP LEASE 3600000 ready"),
        often("RQ.POP COUNT 10,000", "RQ.POP COUNT 10000 LEASE 3600000 ready"),
        once("RQ.POP COUNT 100,000", "RQ.POP COUNT 100000 LEASE 3600000 ready"),
        often(
            "RQ.POP, 1,000 queues",
            &format!("{} ready", with_queues("RQ.POP COUNT 1000 LEASE 3600000", fixture)),
        ),
        often("RQ.POP BLOCK, 100 ms", "RQ.POP BLOCK 100 nothing"),
        often("RQ.RECOVER", "RQ.RECOVER leased 1000 0"),
        with_ids("RQ.EXTEND, 1,000 times", &fixture.leased, |id| format!("RQ.EXTEND leased {id} 3600000")),
        with_ids("RQ.RETURN, 500 times", first(&fixture.leased, 500), |id| {
            format!("RQ.RETURN leased {id} BACK")
        }),
        once("RQ.ACK, 500 ids", &format!("RQ.ACK leased {}", last(&fixture.leased, 500).join(" "))),
        once("RQ.CANCEL ID, 300 ids", &format!("RQ.CANCEL ready ID {}", first(ready, 300).join(" "))),
        once("RQ.CANCEL PAYLOAD", "RQ.CANCEL ready PAYLOAD absent"),
        once("RQ.BURY, 300 ids", &format!("RQ.BURY ready {}", last(ready, 300).join(" "))),
        once("RQ.REVIVE, 500 ids", &format!("RQ.REVIVE dead {}", first(&fixture.dead, 500).join(" "))),
        once("RQ.DELETE, 500 ids", &format!("RQ.DELETE dead {}", last(&fixture.dead, 500).join(" "))),
        many("RQ.PAUSE, RQ.RESUME", &["RQ.PAUSE ready", "RQ.RESUME ready"]),
        many("RQ.CONFIG, changed", &["RQ.CONFIG ready TRIES 7", "RQ.CONFIG ready TRIES 0"]),
    ]
}

fn workers(fixture: &Fixture) -> Vec<Step> {
    let worker = |n: usize| fixture.workers[n % fixture.workers.len()].clone();
    let name = |n: usize| worker(n).split('#').next().unwrap_or_default().to_owned();
    vec![
        often("RQ.WORKER START", "RQ.WORKER START newcomer"),
        often("RQ.WORKER BEAT", &format!("RQ.WORKER BEAT {}", worker(0))),
        often("RQ.WORKER LIST", "RQ.WORKER LIST"),
        often("RQ.WORKER WORK", &format!("RQ.WORKER WORK {} ready", worker(0))),
        once("RQ.WORKER REST", &format!("RQ.WORKER REST {} leased", worker(1))),
        once("RQ.WORKER STOP", &format!("RQ.WORKER STOP {}", worker(2))),
        once("RQ.WORKER FAIL", &format!("RQ.WORKER FAIL {}", name(3))),
    ]
}

/// Commands that affect all tasks of a state.
fn sweeping() -> Vec<Step> {
    vec![
        once("RQ.REVIVE ALL", "RQ.REVIVE dead ALL"),
        once("RQ.PURGE DELAYED", "RQ.PURGE delayed DELAYED"),
        once("RQ.PURGE", "RQ.PURGE ready"),
        once("UNLINK", "UNLINK dead"),
        once("DEL", "DEL leased"),
    ]
}

fn with_queues(command: &str, fixture: &Fixture) -> String {
    let names: Vec<String> = (0..fixture.queues.min(1_000)).map(|n| format!("queue-{n}")).collect();
    format!("{command} {}", names.join(" "))
}

fn first(ids: &[String], count: usize) -> &[String] {
    &ids[..count.min(ids.len())]
}

fn last(ids: &[String], count: usize) -> &[String] {
    &ids[ids.len().saturating_sub(count)..]
}

fn once(name: &'static str, command: &str) -> Step {
    Step { name, commands: vec![words(command)] }
}

fn often(name: &'static str, command: &str) -> Step {
    Step { name, commands: vec![words(command); REPEATS] }
}

fn many(name: &'static str, commands: &[&str]) -> Step {
    Step { name, commands: commands.iter().map(|command| words(command)).collect() }
}

fn with_ids(name: &'static str, ids: &[String], command: impl Fn(&str) -> String) -> Step {
    Step { name, commands: ids.iter().map(|id| words(&command(id))).collect() }
}

fn words(command: &str) -> Vec<Vec<u8>> {
    command.split(' ').map(|word| word.as_bytes().to_vec()).collect()
}
