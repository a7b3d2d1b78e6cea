//! Messages on the four channels, in both directions.

use std::task::{Context, Poll, Waker};

use redis::Connection;
use sureq_core::Reply;
use sureq_core::command::{Cancel, Command, Worker};
use sureq_core::notice::Kind;
use sureq_home_api::{Home as _, ListenEvent, Listener, Notice, NoticeTasks};

use crate::common::{PATIENCE, run, until};
use crate::support::{QUEUE, Shop, TTL_MS, beat, cancel, pop_one, start, worker};

/// Subscribes a foreign client; the function returns the next message about the queue: kind and payload.
fn foreign_subscriber(shop: &Shop) -> impl FnMut() -> (String, String) + use<> {
    let mut connection: Connection = shop.server.connect();
    let (heard, hear) = std::sync::mpsc::channel();
    let (ready, is_ready) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let channels = ["work", "done", "cancel", "delete"].map(|kind| format!("worqr_jobs_{kind}"));
        let mut pubsub = connection.as_pubsub();
        for channel in &channels {
            pubsub.subscribe(channel).expect("Redis listens");
        }
        ready.send(()).expect("the test waits for it");
        while let Ok(message) = pubsub.get_message() {
            let kind = message.get_channel_name().rsplit('_').next().expect("it has parts").to_owned();
            let said: String = message.get_payload().expect("it is text");
            if heard.send((kind, said)).is_err() {
                return;
            }
        }
    });
    is_ready.recv_timeout(PATIENCE).expect("it subscribes");
    move || hear.recv_timeout(PATIENCE).expect("a message arrives")
}

#[test]
fn foreign_clients_receive_messages_of_sureq() {
    let shop = Shop::open();
    let mut hear = foreign_subscriber(&shop);
    let said = |kind: &str, text: &str| (kind.to_owned(), text.to_owned());
    run(&shop.home, &Command::Push { queue: QUEUE, payloads: &[b"a", b"b\"c/", b"d"] });
    assert_eq!(hear(), said("work", "3"));
    start(&shop.home, "w", TTL_MS);
    let first = pop_one(&shop.home, "w");
    let second = pop_one(&shop.home, "w");
    assert!(shop.ack(&first));
    assert_eq!(hear(), said("done", r#"{"workerId":"w","task":"a"}"#));
    assert!(shop.ack(&second));
    let (kind, text) = hear();
    assert_eq!(kind, "done");
    assert_eq!(text.replace("\\/", "/"), r#"{"workerId":"w","task":"b\"c/"}"#, "it is JSON");
    cancel(&shop.home, "d");
    assert_eq!(hear(), said("cancel", "d"));
    run(&shop.home, &Command::Purge { queue: QUEUE, state: None });
    assert_eq!(hear(), said("delete", ""));
    run(&shop.home, &Command::Push { queue: QUEUE, payloads: &[b"e"] });
    assert_eq!(hear(), said("work", "1"));
    pop_one(&shop.home, "w");
    run(&shop.home, &Command::Worker(sureq_core::command::Worker::Fail { name: b"w" }));
    assert_eq!(hear(), said("work", "1"), "as documented by Worqr, though its code differs");
}

fn subscribers(shop: &Shop, channel: &str) -> i64 {
    let mut numsub = redis::cmd("PUBSUB");
    let (_, n): (String, i64) =
        numsub.arg("NUMSUB").arg(channel).query(&mut shop.server.connect()).expect("Redis answers");
    n
}

fn patterns(shop: &Shop) -> i64 {
    redis::cmd("PUBSUB").arg("NUMPAT").query(&mut shop.server.connect()).expect("Redis answers")
}

fn next(listener: &Listener) -> (Kind, NoticeTasks) {
    let mut heard = None;
    until("a message arrives", || {
        if let Poll::Ready(next) = listener.poll(&mut Context::from_waker(Waker::noop())) {
            heard = next;
        }
        heard.is_some()
    });
    match heard {
        Some(ListenEvent::Notice(Notice { kind, queue, tasks })) => {
            assert_eq!(&*queue, QUEUE);
            (kind, tasks)
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn listeners_receive_messages_of_foreign_clients() {
    let mut shop = Shop::open();
    let listener = shop.home.listen();
    listener.subscribe(Kind::Work, QUEUE);
    for kind in [Kind::Done, Kind::Cancel, Kind::Delete] {
        listener.subscribe_all([kind].into_iter().collect());
    }
    until("it listens", || subscribers(&shop, "worqr_jobs_work") == 1 && patterns(&shop) == 3);
    shop.foreign_enqueue("a");
    assert_eq!(next(&listener), (Kind::Work, NoticeTasks::Count(1)));
    shop.raw::<()>(r#"PUBLISH worqr_jobs_done {"workerId":"x","task":"a"}"#);
    let said = |text: &str| NoticeTasks::Foreign(text.as_bytes().into());
    assert_eq!(next(&listener), (Kind::Done, said(r#"{"workerId":"x","task":"a"}"#)));
    shop.raw::<()>("PUBLISH worqr_jobs_cancel a");
    assert_eq!(next(&listener), (Kind::Cancel, said("a")));
    shop.raw::<()>("PUBLISH worqr_jobs_delete ");
    assert_eq!(next(&listener), (Kind::Delete, said("")));
}

#[test]
fn a_heartbeat_reports_cancels_of_foreign_clients() {
    let mut shop = Shop::open();
    shop.push("a");
    shop.push("b");
    start(&shop.home, "w", TTL_MS);
    let [cancelled, kept] = [pop_one(&shop.home, "w"), pop_one(&shop.home, "w")];
    until("the home listens", || subscribers(&shop, "worqr_jobs_cancel") == 1);
    shop.multi(&["LREM worqr:queues:jobs 0 a", "PUBLISH worqr_jobs_cancel a"]);
    until("the task is marked", || beat(&shop.home, "w") == Ok(vec![cancelled.clone()]));
    assert!(shop.ack(&cancelled) && shop.ack(&kept));
}

/// Homes receive their own cancels too, with a delay. A task that is pushed right after a cancel is a new task.
#[test]
fn a_cancel_does_not_affect_later_tasks() {
    let mut shop = Shop::open();
    start(&shop.home, "w", TTL_MS);
    shop.push("x");
    pop_one(&shop.home, "w");
    until("the home listens", || subscribers(&shop, "worqr_jobs_cancel") == 1);
    // The MD5 of `a`. The mark of an executed cancel expires after a second; PERSIST makes the test independent of
    // time.
    until("it is cancelled and marked", || {
        cancel(&shop.home, "a");
        shop.raw::<i64>("PERSIST worqr:sureq:told:0cc175b9c0f1b6a831c399e269772661:jobs") == 1
    });
    shop.push("a");
    let after = pop_one(&shop.home, "w");
    let mut monitor = shop.monitor();
    // The home receives its own cancel only now.
    shop.raw::<()>("PUBLISH worqr_jobs_cancel a");
    monitor.wait_for("hear_cancel");
    assert_eq!(beat(&shop.home, "w"), Ok(vec![]));
    shop.raw::<()>("DEL worqr:sureq:told:0cc175b9c0f1b6a831c399e269772661:jobs");
    shop.raw::<()>("PUBLISH worqr_jobs_cancel a");
    until("another client has cancelled it", || beat(&shop.home, "w") == Ok(vec![after.clone()]));
}

/// The mark of an executed cancel applies to one queue.
#[test]
fn a_cancel_in_another_queue_does_not_hide_a_foreign_cancel() {
    let mut shop = Shop::open();
    start(&shop.home, "w", TTL_MS);
    shop.push("a");
    let held = pop_one(&shop.home, "w");
    until("the home listens", || subscribers(&shop, "worqr_jobs_cancel") == 1);
    let elsewhere = Command::Cancel { queue: b"other", which: Cancel::Payload(b"a") };
    // It expires after a second; PERSIST makes the test independent of time.
    until("it is marked for the other queue", || {
        run(&shop.home, &elsewhere);
        let notes: Vec<String> = shop.raw("KEYS worqr:sureq:told:0cc175b9c0f1b6a831c399e269772661*");
        notes.len() == 1 && shop.raw::<i64>(&format!("PERSIST {}", notes[0])) == 1
    });
    let mut monitor = shop.monitor();
    shop.raw::<()>("PUBLISH worqr_jobs_cancel a");
    monitor.wait_for("hear_cancel");
    assert_eq!(beat(&shop.home, "w"), Ok(vec![held]));
}

/// Like `startWork`: a sleeping worker gets a message that there is work.
#[test]
fn working_on_a_queue_publishes_the_number_of_its_tasks() {
    let shop = Shop::open();
    start(&shop.home, "w", TTL_MS);
    let mut hear = foreign_subscriber(&shop);
    let work = |queue| run(&shop.home, &Command::Worker(Worker::Work(worker("w"), queue))).list.remove(0);
    assert_eq!(work(QUEUE), Reply::Ok);
    run(&shop.home, &Command::Push { queue: QUEUE, payloads: &[b"a", b"b"] });
    assert_eq!(hear(), ("work".to_owned(), "2".to_owned()), "an empty queue publishes nothing");
    pop_one(&shop.home, "w");
    assert_eq!(work(QUEUE), Reply::Ok);
    assert_eq!(hear(), ("work".to_owned(), "1".to_owned()));
}
