//! `kill -9`, under load and at rest: nothing confirmed is lost, nothing finished comes back.

use sureq_testkit::ledger::{Findings, Ledger};
use sureq_testkit::load::{Load, Numbers, scale, seeded};

use crate::{scratch, serve};

#[test]
fn twenty_kills_under_load_lose_nothing() {
    let (mut rng, dir) = (seeded(), scratch());
    let (mut ledger, numbers) = (Ledger::default(), Numbers::default());
    let launch = serve(dir.path());
    for _ in 0..20 * scale() {
        let mut server = launch.start();
        let load = Load { pushes: 10_000 + rng.u64(..2_000), ..Load::default() };
        let journals = load.run(server.resp, &mut rng, &numbers, || {
            server.kill9();
        });
        ledger.close_life(&journals);
    }
    let server = launch.start();
    ledger.close_life(&[Load::default().drain(server.resp)]);
    println!("{ledger}");
    assert!(ledger.confirmed_pushes() >= 200_000 * scale(), "{ledger}");
    assert_eq!(ledger.settle(), Findings::default(), "{ledger}");
}

#[test]
fn an_empty_store_and_one_of_one_task_survive_kills() {
    let dir = scratch();
    let launch = serve(dir.path());
    for _ in 0..3 {
        launch.start().kill9();
    }
    let id = {
        let mut server = launch.start();
        let id = server.client().push("q", "only");
        server.kill9();
        id
    };
    for _ in 0..3 {
        launch.start().kill9();
    }
    let server = launch.start();
    let tasks = server.client().pop("q", 10);
    assert_eq!(
        tasks.iter().map(|task| (&*task.id, &*task.payload)).collect::<Vec<_>>(),
        [(&*id, &b"only"[..])]
    );
    assert!(server.client().ack("q", &id));
    assert_ne!(server.client().push("q", "next"), id);
}
