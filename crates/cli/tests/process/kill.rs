//! `kill -9`, under load and at rest: no confirmed task is lost, and no finished task is redelivered.

use sureq_testkit::history::{Findings, SharedHistory};
use sureq_testkit::load::{Load, scale, seeded};

use crate::{scratch, serve};

#[test]
fn twenty_kills_under_load_lose_nothing() {
    let (mut rng, dir, history) = (seeded(), scratch(), SharedHistory::default());
    let launch = serve(dir.path());
    for _ in 0..20 * scale() {
        let mut server = launch.start();
        let load = Load { pushes: 10_000 + rng.u64(..2_000), ..Load::default() };
        load.run(server.resp, &mut rng, &history, || {
            server.kill9();
        });
    }
    let server = launch.start();
    Load::default().drain(server.resp, &history);
    let history = history.into_inner();
    println!("{history}");
    assert!(history.counts().pushes >= 200_000 * scale(), "{history}");
    assert_eq!(history.findings(0), Findings::default(), "{history}");
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
