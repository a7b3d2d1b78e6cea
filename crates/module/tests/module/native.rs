//! The commands and the type as Redis sees them: keys, flags, permissions, memory, notifications, cluster.

use std::collections::BTreeSet;

use redis::Value;
use sureq_testkit::process::free_port;
use sureq_testkit::redis_module::Host;

use crate::support::{Client, cpu, list, shown, text};

#[test]
fn a_queue_is_a_key_of_its_own_type() {
    for host in Host::ALL {
        let server = host.start(&[], &[]);
        let mut client = Client::of(&server);
        client.say("RQ.PUSH q a b");
        assert_eq!(client.text("TYPE q"), "RELIABLEQ");
        assert_eq!(shown(&client.say("SCAN 0 TYPE RELIABLEQ")), "[0 [q]]");
        assert_eq!(shown(&client.say("RQ.QUEUES MATCH q*")), "[0 [[q 2 0 0 0]]]");
        client.say("SET string x");
        for command in ["RQ.PUSH string a", "RQ.POP string", "RQ.INFO string", "RQ.ACK string 1-1"] {
            assert!(client.error(command).contains("WRONGTYPE"), "{command}");
        }
        assert_eq!(shown(&list(client.say("RQ.POP q string"))[0]).split(' ').next(), Some("[q"));
        client.say("RQ.POP q");
        let ids: Vec<String> = list(client.say("RQ.INSPECT q PENDING 0 9"))
            .into_iter()
            .map(|task| shown(&list(task)[0]))
            .collect();
        client.say(&format!("RQ.ACK q {}", ids.join(" ")));
        assert_eq!(client.number("EXISTS q"), 0, "an empty queue has no key");
        client.say("RQ.PAUSE q");
        assert_eq!(client.number("EXISTS q"), 1, "a paused queue keeps its key");
        client.say("RQ.RESUME q");
        assert_eq!(client.number("EXISTS q"), 0);
        let later = shown(&list(client.say("RQ.PUSH q c"))[0]);
        assert!(ids.iter().all(|id| *id < later), "no id is issued twice");
    }
}

#[test]
fn commands_report_their_keys_and_flags() {
    for host in Host::ALL {
        let server = host.start(&[], &[]);
        let mut client = Client::of(&server);
        let keys = client.say("COMMAND GETKEYS RQ.POP COUNT 3 BLOCK 0 a b c");
        assert_eq!(shown(&keys), "[a b c]");
        assert_eq!(shown(&client.say("COMMAND GETKEYS RQ.PUSH q x y")), "[q]");
        let flags = |client: &mut Client, name: &str| {
            let info = list(list(client.say(&format!("COMMAND INFO {name}"))).swap_remove(0));
            match &info[2] {
                Value::Array(flags) => flags.iter().map(shown).collect::<Vec<_>>(),
                Value::Set(flags) => flags.iter().map(shown).collect(),
                other => panic!("{other:?}"),
            }
        };
        for (name, wanted) in [
            ("RQ.PUSH", &["write", "denyoom", "fast"][..]),
            ("RQ.ADD", &["write", "denyoom", "fast"]),
            ("RQ.POP", &["write", "blocking", "movablekeys"]),
            ("RQ.ACK", &["write", "fast"]),
            ("RQ.INFO", &["readonly", "fast"]),
            ("RQ.INSPECT", &["readonly"]),
        ] {
            let flags = flags(&mut client, name);
            assert!(
                wanted.iter().all(|flag| flags.iter().any(|has| has == flag)),
                "{host:?} {name}: {flags:?}"
            );
            assert_eq!(wanted.contains(&"denyoom"), flags.iter().any(|flag| flag == "denyoom"), "{name}");
        }
        client.say("ACL SETUSER reader on nopass ~q +rq.info +rq.pop");
        client.say("RQ.PUSH q x");
        let mut reader = Client::of(&server);
        reader.say("AUTH reader any");
        reader.say("RQ.INFO q");
        assert!(reader.error("RQ.PUSH q x").contains("NOPERM"), "{host:?}");
        assert!(reader.error("RQ.POP q other").contains("NOPERM"), "{host:?}: every key is checked");
        reader.say("RQ.POP q");
    }
}

#[test]
fn valkey_puts_commands_into_categories() {
    let server = Host::Valkey.start(&[], &[]);
    let mut client = Client::of(&server);
    let writing = shown(&client.say("ACL CAT write"));
    assert!(writing.contains("rq.push") && !writing.contains("rq.info"), "{writing}");
    assert!(shown(&client.say("ACL CAT blocking")).contains("rq.pop"));
}

#[test]
fn full_memory_refuses_pushes_but_not_pops_and_acks() {
    for host in Host::ALL {
        let server = host.start(&["--appendonly", "no"], &[]);
        let mut client = Client::of(&server);
        client.say("RQ.PUSH q a b");
        client.say("CONFIG SET maxmemory-policy noeviction");
        client.say("CONFIG SET maxmemory 1");
        assert!(client.error("RQ.PUSH q c").contains("OOM"), "{host:?}");
        let task = list(list(client.say("RQ.POP q")).swap_remove(0));
        assert_eq!(
            shown(&client.say(&format!("RQ.ACK q {}", shown(&task[1])))),
            format!("[{}]", shown(&task[1]))
        );
    }
}

#[test]
fn a_waiting_task_takes_little_more_than_its_bytes() {
    const TASKS: u64 = 100_000;
    for host in Host::ALL {
        let server = host.start(&["--appendonly", "no"], &[]);
        let mut client = Client::of(&server);
        let used =
            |client: &mut Client| -> u64 { client.told("memory", "used_memory").parse().expect("a number") };
        client.say("RQ.PUSH warm up");
        let before = used(&mut client);
        for batch in 0..TASKS / 100 {
            // Payloads differ, because neighbours with equal payloads are stored once.
            let payloads: Vec<String> = (0..100).map(|n| format!("{:064}", batch * 100 + n)).collect();
            let words = [&b"RQ.PUSH"[..], b"q"].into_iter().chain(payloads.iter().map(String::as_bytes));
            client.try_words(&words.collect::<Vec<_>>()).expect("a push");
        }
        let grown = (used(&mut client) - before) / TASKS;
        let told = client.number("MEMORY USAGE q").unsigned_abs() / TASKS;
        assert!(
            grown <= 100 && told <= 100,
            "{host:?}: used_memory grew by {grown} bytes per task, MEMORY USAGE reports {told}"
        );
        assert!(
            told >= 64 && told.abs_diff(grown) < 25,
            "{host:?}: used_memory grew by {grown} bytes per task, MEMORY USAGE reports {told}"
        );
        client.say("UNLINK q");
        let since = std::time::Instant::now();
        while used(&mut client) > before + (1 << 20) {
            assert!(since.elapsed() < crate::support::PATIENCE, "{host:?}: the memory is not freed");
        }
    }
}

#[test]
fn changes_of_keys_send_keyspace_events() {
    for host in Host::ALL {
        let server = host.start(&["--notify-keyspace-events", "KEAd"], &[]);
        let (mut listening, mut client) = (Client::of(&server), Client::of(&server));
        listening.say("SUBSCRIBE __keyspace@0__:q");
        let id = shown(&list(client.say("RQ.PUSH q a"))[0]);
        client.say("RQ.POP q");
        client.say(&format!("RQ.ACK q {id}"));
        for expected in ["rq.push", "rq.pop", "rq.ack", "del"] {
            let heard = listening.answer().expect("a message");
            assert!(shown(&heard).ends_with(&format!("{expected}]")), "{host:?}: {heard:?}, not {expected}");
        }
    }
}

#[test]
fn a_cluster_allows_keys_of_one_slot_and_refuses_workers() {
    let port = free_port();
    let (port_text, bus) = (port.to_string(), free_port().to_string());
    let options = ["--port", &port_text, "--cluster-port", &bus, "--cluster-enabled", "yes"];
    let server = Host::Redis.start(&options, &[]);
    let mut client = Client::of(&server);
    client.say("CLUSTER ADDSLOTSRANGE 0 16383");
    client.wait_until("cluster", "cluster_enabled", "1");
    let since = std::time::Instant::now();
    while !client.text("CLUSTER INFO").contains("cluster_state:ok") {
        assert!(since.elapsed() < crate::support::PATIENCE, "the cluster does not come up");
    }
    client.say("RQ.PUSH {a}1 x");
    client.say("RQ.PUSH {a}2 y");
    assert_eq!(list(client.say("RQ.POP COUNT 9 {a}1 {a}2")).len(), 2);
    assert!(client.error("RQ.POP {a}1 {b}1").contains("CROSSSLOT"));
    assert!(client.error("RQ.WORKER START w").contains("a module in a cluster has no RQ.WORKER"));
    assert!(client.error("RQ.POP WORKER w#1 {a}1").contains("a module in a cluster has no RQ.WORKER"));
    assert!(client.error("RQ.CONFIG {a}1 DEAD-LETTER b").contains("another slot"));
    client.say("RQ.CONFIG {a}1 DEAD-LETTER {a}graves");
    let id = shown(&list(client.say("RQ.PUSH {a}1 z"))[0]);
    client.say(&format!("RQ.BURY {{a}}1 {id}"));
    assert_eq!(client.counts("{a}graves"), [1, 0, 0, 0]);
}

#[test]
fn any_bytes_are_payloads_names_and_keys() {
    let server = Host::Redis.start(&[], &[]);
    let mut client = Client::of(&server);
    let all: Vec<u8> = (0..=255).collect();
    let name = vec![0xff; 4096];
    let added = client.try_words(&[b"RQ.ADD", &all, &all, b"NAME", &name]).expect("any bytes");
    assert_eq!(list(added)[1], Value::Int(1));
    let again = client.try_words(&[b"RQ.ADD", &all, b"other", b"NAME", &name]).expect("any bytes");
    assert_eq!(list(again)[1], Value::Int(0), "the name is taken");
    let task = list(list(client.try_words(&[b"RQ.POP", &all]).expect("a task")).swap_remove(0));
    assert_eq!(task[2], Value::BulkString(all.clone()));
    // An id of any length is an ordinary error.
    for id in [vec![b'1'; 300], vec![b'9'; 100_000], all.clone(), Vec::new(), b"1-".to_vec()] {
        let error = client.try_words(&[b"RQ.ACK", &all, &id]).expect_err("no id").to_string();
        assert!(error.contains("malformed task id"), "{error}");
    }
    let large = vec![b'z'; 8 << 20];
    client.try_words(&[b"RQ.PUSH", b"large", &large]).expect("a large payload");
    let task = list(list(client.say("RQ.POP large")).swap_remove(0));
    assert_eq!(task[2], Value::BulkString(large));
}

/// Redis 7.0 computes the time to its next timer in 32 bits of microseconds, and would poll without pause if they
/// overflow.
#[test]
fn tasks_due_in_an_hour_cost_nothing_until_then() {
    let server = Host::Redis.start(&[], &[]);
    let mut client = Client::of(&server);
    client.say("RQ.ADD near x DELAY 50");
    client.say("RQ.ADD far x DELAY 3600000");
    assert_ne!(client.say("RQ.POP BLOCK 20000 near"), Value::Nil);
    let before = cpu(&mut client);
    // The CPU time within this second is the measured value.
    std::thread::sleep(std::time::Duration::from_secs(1));
    let spent = cpu(&mut client) - before;
    assert!(spent < 0.25, "{spent} s of CPU in a second without anything to do");
}

#[test]
fn a_queue_that_comes_and_goes_leaves_no_schedule_entries() {
    let server = Host::Redis.start(&[], &[]);
    let mut client = Client::of(&server);
    for n in 0..200 {
        client.say(&format!("RQ.PUSH q {n}"));
        let task = list(list(client.say("RQ.POP LEASE 3600000 q")).swap_remove(0));
        client.say(&format!("RQ.ACK q {}", text(&task[3])));
        client.say(&format!("RQ.PUSH other {n}"));
        client.say(&format!("RQ.POP LEASE {} other", 3_600_000 - n));
    }
    let planned: u32 = client.told("sureq", "sureq_planned").parse().expect("a number");
    assert!(planned <= 2, "{planned} plans for one queue");
}

#[test]
fn workers_whose_key_is_deleted_are_lost() {
    let server = Host::Redis.start(&[], &[]);
    let mut client = Client::of(&server);
    let worker = client.text("RQ.WORKER START w TTL 3600000");
    client.say("RQ.PUSH q a");
    client.say(&format!("RQ.POP WORKER {worker} q"));
    client.say("DEL sureq:workers");
    assert_ne!(client.say("RQ.POP BLOCK 20000 q"), Value::Nil, "its task is requeued");
    assert!(client.error("RQ.PUSH sureq:workers x").starts_with("WRONGTYPE"), "the key is not a queue");
}

#[test]
fn watch_is_triggered_by_changes_only() {
    let server = Host::Redis.start(&[], &[]);
    let (mut watcher, mut other) = (Client::of(&server), Client::of(&server));
    let mut disturbs = |line: &str| {
        for before in ["UNWATCH", "WATCH q", "MULTI", "PING"] {
            watcher.say(before);
        }
        other.say(line);
        watcher.say("EXEC") == Value::Nil
    };
    assert!(!disturbs("RQ.POP q"), "it is empty");
    assert!(disturbs("RQ.PUSH q a"));
    assert!(!disturbs("RQ.INFO q"));
    assert!(disturbs("RQ.POP q"));
    assert!(!disturbs("RQ.POP q"), "all tasks are leased");
    assert!(disturbs("RQ.RECOVER q 10 0"));
    assert!(!disturbs("RQ.PURGE q"), "no task waits");
    assert!(!disturbs("RQ.PUSH other a"), "it is another key");
}

/// The schedule entries of a key are removed with the key, in whichever way it disappears.
#[test]
fn schedule_entries_are_removed_with_their_keys() {
    for host in Host::ALL {
        let server = host.start(&[], &[]);
        let mut client = Client::of(&server);
        for gone_by in ["DEL", "UNLINK", "EXPIREAT", "SET", "FLUSHDB", "FLUSHALL"] {
            for n in 0..200 {
                client.say(&format!("RQ.ADD q{n} x DELAY 3600000"));
                match gone_by {
                    "FLUSHDB" | "FLUSHALL" => {}
                    "SET" => _ = client.say(&format!("SET q{n} x")),
                    "EXPIREAT" => _ = client.say(&format!("EXPIREAT q{n} 1")),
                    gone_by => _ = client.say(&format!("{gone_by} q{n}")),
                }
            }
            client.say(if gone_by == "FLUSHDB" { "FLUSHDB" } else { "FLUSHALL" });
            assert_eq!(client.told("sureq", "sureq_planned"), "0", "after {gone_by}");
        }
    }
}

/// After any history of a key, the schedule has no entries about it once it is gone.
#[test]
fn removed_keys_leave_no_schedule_entries() {
    let ways: &[&[&str]] = &[
        &["DEL q"],
        &["UNLINK q"],
        &["SET q x"],
        &["EXPIREAT q 1"],
        &["RENAME q r", "DEL r"],
        &["RENAME q r", "SET r x"],
        &["SET r x", "RENAME r q"],
        &["COPY q r", "COPY q r REPLACE", "DEL q r"],
        &["COPY q r", "RENAME q r", "DEL r"],
        &["MOVE q 1", "SELECT 1", "DEL q"],
        &["COPY q q DB 1", "SWAPDB 0 1", "DEL q", "SELECT 1", "DEL q"],
        &["COPY q q DB 1", "DEL q", "SELECT 1", "FLUSHDB"],
        &["RESTORE r 0 dump", "RESTORE q 0 dump REPLACE", "RESTORE q 0 dump REPLACE", "DEL q r"],
        &["RESTORE r 1 dump ABSTTL", "DEL q"],
        &["RESTORE q 1 dump ABSTTL REPLACE"],
        &["FLUSHDB"],
        &["FLUSHALL"],
    ];
    for host in Host::ALL {
        let server = host.start(&[], &[]);
        for way in ways {
            let mut client = Client::of(&server);
            client.say("FLUSHALL");
            client.wait_until("sureq", "sureq_overdue", "0");
            let worker = client.text("RQ.WORKER START w TTL 3600000");
            client.say("RQ.PUSH q a b c d");
            client.say(&format!("RQ.POP COUNT 2 WORKER {worker} q"));
            client.say("RQ.POP CONN q");
            client.say("RQ.ADD q x DELAY 3600000");
            client.say("RQ.POP LEASE 1800000 q");
            let Value::BulkString(dump) = client.say("DUMP q") else { panic!("a dump") };
            for line in *way {
                let words: Vec<&[u8]> = line
                    .split(' ')
                    .map(|word| if word == "dump" { &dump } else { word.as_bytes() })
                    .collect();
                client.try_words(&words).unwrap_or_else(|error| panic!("{host:?} {line}: {error}"));
            }
            client.wait_until("sureq", "sureq_overdue", "0");
            client.say("SELECT 0");
            let workers = client.number("EXISTS sureq:workers").to_string();
            client.say("SELECT 1");
            let moved = client.number("EXISTS sureq:workers").to_string();
            let planned = client.told("sureq", "sureq_planned");
            assert!(planned == workers || planned == moved, "{host:?} {way:?}: {planned} plans");
            assert_eq!(client.told("sureq", "sureq_held"), "0", "{host:?} {way:?}");
        }
    }
}

/// Redis deletes an expired key as soon as a command opens it, which may be a command of the module.
#[test]
fn schedule_entries_of_keys_that_expire_within_a_command_are_removed() {
    for host in Host::ALL {
        let server = host.start(&[], &[]);
        let mut client = Client::of(&server);
        client.say("DEBUG SET-ACTIVE-EXPIRE 0");
        let worker = client.text("RQ.WORKER START w TTL 3600000");
        for command in ["RQ.POP q", "RQ.INFO q", "RQ.PUSH q x", "RQ.PURGE q"] {
            client.say("RQ.PUSH q a");
            client.say(&format!("RQ.POP WORKER {worker} q"));
            client.say("RQ.ADD q x DELAY 3600000");
            client.say("PEXPIRE q 1");
            // Wait by the clock, without a command that would open the key.
            let since = std::time::Instant::now();
            while since.elapsed() < std::time::Duration::from_millis(5) {}
            client.say(command);
            assert_eq!(client.told("sureq", "sureq_held"), "0", "{host:?} {command}");
            assert_eq!(client.told("sureq", "sureq_planned"), "1", "{host:?} {command}: the worker's");
            client.say("DEL q");
        }
    }
}

#[test]
fn workers_whose_table_expires_within_a_command_are_lost() {
    for host in Host::ALL {
        let server = host.start(&[], &[]);
        let mut client = Client::of(&server);
        client.say("DEBUG SET-ACTIVE-EXPIRE 0");
        let worker = client.text("RQ.WORKER START w TTL 3600000");
        client.say("RQ.PUSH q a");
        client.say(&format!("RQ.POP WORKER {worker} q"));
        client.say("PEXPIRE sureq:workers 1");
        let gone = || client.try_say(&format!("RQ.WORKER BEAT {worker}")).is_err();
        sureq_testkit::patience::until("it is gone", gone);
        assert_ne!(client.say("RQ.POP BLOCK 20000 q"), Value::Nil, "{host:?}: its task is requeued");
    }
}

#[test]
fn workers_that_come_and_go_leave_no_schedule_entries() {
    for host in Host::ALL {
        let server = host.start(&[], &[]);
        let mut client = Client::of(&server);
        for n in 0..200 {
            let worker = client.text(&format!("RQ.WORKER START w TTL {}", 86_400_000 - n * 1_000));
            client.say(&format!("RQ.WORKER STOP {worker}"));
        }
        assert_eq!(client.told("sureq", "sureq_planned"), "0", "{host:?}: there is no worker");
        for n in 0..200 {
            client.say(&format!("RQ.WORKER START w{n} TTL {}", 86_400_000 - n * 1_000));
        }
        assert_eq!(client.told("sureq", "sureq_planned"), "1", "{host:?}: the next to be lost");
    }
}

#[test]
fn a_key_that_is_replaced_by_its_copy_keeps_its_schedule_entry() {
    for host in Host::ALL {
        let server = host.start(&[], &[]);
        let mut client = Client::of(&server);
        client.say("RQ.ADD q x DELAY 700");
        let Value::BulkString(dump) = client.say("DUMP q") else { panic!("a dump") };
        client.try_words(&[b"RESTORE", b"q", b"0", &dump, b"REPLACE"]).expect("it is restored");
        client.say("COPY q copy");
        client.say("COPY q copy REPLACE");
        client.say("RENAME q other");
        // Without a command on these keys, only the schedule makes the tasks ready.
        for queue in ["other", "copy"] {
            assert_eq!(list(client.say(&format!("RQ.POP BLOCK 20000 {queue}"))).len(), 1, "{queue}");
        }
    }
}

#[test]
fn keys_without_tasks_of_a_worker_are_forgotten() {
    for host in Host::ALL {
        let server = host.start(&[], &[]);
        let mut client = Client::of(&server);
        let worker = client.text("RQ.WORKER START w TTL 600000");
        let take = |client: &mut Client, how: &str, n: usize| {
            client.say(&format!("RQ.PUSH q{n} x"));
            let popped = list(client.say(&format!("RQ.POP {how} q{n}")));
            shown(&list(popped.into_iter().next().expect("a task"))[1])
        };
        for how in [&format!("WORKER {worker}"), "CONN"] {
            let kept = take(&mut client, how, 0);
            for n in 1..500 {
                let id = take(&mut client, how, n);
                client.say(&format!("RQ.ACK q{n} {id}"));
            }
            client.say(&format!("RQ.WORKER BEAT {worker}"));
            let held: u32 = client.told("sureq", "sureq_held").parse().expect("a number");
            assert!((1..=40).contains(&held), "{held} keys are recorded for one with a task, by {how}");
            client.say(&format!("RQ.ACK q0 {kept}"));
        }
        client.say(&format!("RQ.WORKER STOP {worker}"));
    }
}

/// Redis serves no other client while a page of RQ.QUEUES is made, so it is small, whatever count is asked for.
#[test]
fn a_page_of_queues_is_bounded_and_its_cursor_leads_to_the_rest() {
    const QUEUES: usize = 3_000;
    /// The keys of one page, and those that share the last slot of Redis' table with them.
    const PAGE_MAX: usize = 1_050;
    for host in Host::ALL {
        let server = host.start(&[], &[]);
        let mut client = Client::of(&server);
        for n in 0..QUEUES {
            client.say(&format!("RQ.PUSH q{n} x"));
        }
        for count in ["1000000", "4294967295"] {
            let (mut seen, mut cursor, mut pages) = (BTreeSet::new(), "0".to_owned(), 0);
            loop {
                let mut page = list(client.say(&format!("RQ.QUEUES COUNT {count} CURSOR {cursor}")));
                let rows = list(page.pop().expect("a page has rows"));
                assert!(rows.len() <= PAGE_MAX, "{host:?}: {} queues at once", rows.len());
                seen.extend(rows.into_iter().map(|row| shown(&list(row)[0])));
                pages += 1;
                cursor = shown(&page.pop().expect("a page has a cursor"));
                if cursor == "0" {
                    break;
                }
            }
            assert_eq!(seen.len(), QUEUES, "{host:?}");
            assert!(pages >= 3, "{host:?}: {pages} pages");
        }
    }
}
