//! Homes on a Redis or a Valkey through the library.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use fastrand::Rng;
use redis::cmd;
use rustix::process::Signal;
use sureq_testkit::home_load::Access;
use sureq_testkit::process::free_port;
use sureq_testkit::proxy::FaultyProxy;
use sureq_testkit::redis_server::{RedisServer, valkey};
use sureq_testkit::slow_disk::slow_syncs;

use crate::{Fault, torment};

/// A server of this kind, with a network in front of it.
pub(crate) struct World {
    pub(crate) server: RedisServer,
    pub(crate) proxy: FaultyProxy,
}

impl World {
    /// Starts a server at a port with `start`.
    pub(crate) fn start(start: impl FnOnce(&str) -> RedisServer) -> Self {
        let port = free_port();
        let server = start(&port.to_string());
        Self { server, proxy: FaultyProxy::before(SocketAddr::from((Ipv4Addr::LOCALHOST, port))) }
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://{}", self.proxy.address)
    }

    pub(crate) fn suspend(&self, rng: &mut Rng) {
        self.server.suspend();
        crate::last(rng);
        self.server.resume();
    }

    pub(crate) fn slow_disk(&self, rng: &mut Rng) {
        let slow = slow_syncs(self.server.process(), Duration::from_millis(rng.u64(10..200)));
        crate::last(rng);
        drop(slow);
    }
}

/// The faults of a Redis.
pub(crate) const FAULTS: [Fault<World>; 11] = [
    ("kill", |world, _, _| world.server.crash()),
    ("restart", |world, _, _| world.server.restart()),
    ("functions and scripts forgotten", |world, _, _| {
        let mut admin = world.server.connect();
        for what in ["FUNCTION", "SCRIPT"] {
            cmd(what).arg("FLUSH").exec(&mut admin).expect("it answers");
        }
    }),
    ("suspend", |world, _, rng| world.suspend(rng)),
    ("slow disk", |world, _, rng| world.slow_disk(rng)),
    ("kill on a slow disk", |world, _, rng| {
        let slow = slow_syncs(world.server.process(), Duration::from_millis(rng.u64(10..200)));
        crate::last(rng);
        world.server.process().signal(Signal::KILL);
        drop(slow);
        world.server.crash();
    }),
    ("cut while it is suspended", |world, _, rng| {
        world.server.suspend();
        crate::last(rng);
        crate::cut(&world.proxy);
        world.server.resume();
    }),
    ("cut", |world, _, _| crate::cut(&world.proxy)),
    ("cut within a reply", |world, _, rng| crate::cut_within_a_reply(&world.proxy, rng)),
    ("half-open connections", |world, _, rng| crate::half_open(&world.proxy, rng)),
    ("slow network", |world, _, rng| crate::slow_network(&world.proxy, rng)),
];

fn torment_program(program: &Path) {
    let mut world = World::start(|port| RedisServer::start_with(program, &["--port", port]));
    let access = Access::Library(world.url());
    torment(&mut world, access, &FAULTS, 2);
    world.server.check("sureq:");
}

#[test]
fn a_home_on_redis() {
    torment_program(Path::new("redis-server"));
}

#[test]
fn a_home_on_valkey() {
    torment_program(&valkey());
}
