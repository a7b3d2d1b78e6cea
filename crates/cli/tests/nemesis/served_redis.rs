//! Two servers in front of one Redis, by RESP.

use sureq_testkit::home_load::Access;
use sureq_testkit::proxy::FaultyProxy;
use sureq_testkit::redis_server::RedisServer;
use sureq_testkit::server_process::{Launch, Server};

use crate::{Fault, SUREQ, redis, torment};

struct World {
    servers: [Server; 2],
    launch: Launch,
    /// The network between clients and servers.
    proxy: FaultyProxy,
    redis: redis::World,
}

impl World {
    fn start() -> Self {
        let redis =
            redis::World::start(|port| RedisServer::start_with("redis-server".as_ref(), &["--port", port]));
        let launch = Launch::new(SUREQ).args([
            "serve",
            "--resp",
            "127.0.0.1:0",
            "--text",
            "127.0.0.1:0",
            "--home",
            &redis.url(),
        ]);
        let servers = [launch.start(), launch.start()];
        let proxy = FaultyProxy::before(servers[0].resp);
        let world = Self { servers, launch, proxy, redis };
        world.lead();
        world
    }

    fn lead(&self) {
        self.proxy.lead_to(&[self.servers[0].resp, self.servers[1].resp]);
    }
}

const FAULTS: [Fault<World>; 10] = [
    ("kill of a server", |world, _, rng| {
        let at = rng.usize(..2);
        world.servers[at].kill9();
        world.servers[at] = world.launch.start();
        world.lead();
    }),
    ("suspend of a server", |world, _, rng| {
        let server = &world.servers[rng.usize(..2)];
        server.suspend();
        crate::last(rng);
        server.resume();
    }),
    ("kill of Redis", |world, _, _| world.redis.server.crash()),
    ("restart of Redis", |world, _, _| world.redis.server.restart()),
    ("suspend of Redis", |world, _, rng| world.redis.suspend(rng)),
    ("slow disk of Redis", |world, _, rng| world.redis.slow_disk(rng)),
    ("cut before the servers", |world, _, _| crate::cut(&world.proxy)),
    ("cut within a reply of Redis", |world, _, rng| crate::cut_within_a_reply(&world.redis.proxy, rng)),
    ("half-open connections to Redis", |world, _, rng| crate::half_open(&world.redis.proxy, rng)),
    ("slow network before Redis", |world, _, rng| crate::slow_network(&world.redis.proxy, rng)),
];

#[test]
fn two_servers_in_front_of_redis() {
    let mut world = World::start();
    let access = Access::Resp(world.proxy.address);
    torment(&mut world, access, &FAULTS, 1);
    world.redis.server.check("sureq:");
}
