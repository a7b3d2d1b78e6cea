//! Controls: the same tests with the safety off must find losses, or the others prove nothing.

use sureq_testkit::home_load::{Access, Asking, Habits, HomeLoad};
use sureq_testkit::load::seeded;
use sureq_testkit::patience::until;
use sureq_testkit::proxy::FaultyProxy;
use sureq_testkit::redis_server::RedisServer;
use sureq_testkit::server_process::Launch;

use crate::{ASKING, PAIRS, QUEUES, SUREQ, load, redis};

const KILLS: usize = 5;

/// Kills a home under load that does not store everything that it confirms.
fn kill_without_safety(access: Access, mut kill: impl FnMut()) {
    let load: HomeLoad = load(access, &mut seeded());
    load.run(PAIRS, || {
        for _ in 0..KILLS {
            load.until_confirmed(200);
            kill();
        }
        load.until_confirmed(100);
    });
    let found = load.drain();
    assert!(found.lost > 0, "kills that lose no task prove nothing: {found:?}");
    assert_eq!((found.phantom, found.torn), (0, 0), "{found:?}");
}

#[test]
fn kills_at_the_level_none_lose_tasks() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let launch = Launch::serve(SUREQ, dir.path()).args(["--durability", "none"]);
    let mut server = launch.start();
    let proxy = FaultyProxy::before(server.resp);
    kill_without_safety(Access::Resp(proxy.address), || {
        server.kill9();
        server = launch.start();
        proxy.lead_to(&[server.resp]);
    });
}

#[test]
fn kills_of_a_redis_without_persistence_lose_tasks() {
    let mut world = redis::World::start(|port| {
        RedisServer::start_with("redis-server".as_ref(), &["--port", port, "--appendonly", "no"])
    });
    kill_without_safety(Access::Library(world.url()), || world.server.crash());
}

/// Workers whose leases end earlier than they expect.
#[test]
fn tasks_whose_leases_end_early_have_two_holders() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let server = Launch::serve(SUREQ, dir.path()).start();
    let asking = Asking { lease_ms: 100, ..ASKING };
    let load = HomeLoad::with(Access::Resp(server.resp), QUEUES, asking, Habits::Mixed, seeded());
    load.run(PAIRS, || until("tasks are delivered again", || load.counts().redelivered > 100));
    let found = load.drain();
    assert!(found.double_held > 0, "{found:?}");
    assert_eq!((found.lost, found.resurrected, found.finished_twice), (0, 0, 0), "{found:?}");
}
