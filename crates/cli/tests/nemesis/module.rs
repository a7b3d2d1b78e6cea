//! The module in a Redis, by RESP.

use sureq_testkit::home_load::Access;
use sureq_testkit::redis_module::Host;

use crate::redis::{FAULTS, World};
use crate::torment;

fn torment_module(host: Host) {
    let mut world = World::start(|port| host.start(&["--port", port], &[]));
    let access = Access::Resp(world.proxy.address);
    torment(&mut world, access, &FAULTS, 2);
}

#[test]
fn the_module_in_redis() {
    torment_module(Host::Redis);
}

#[test]
fn the_module_in_valkey() {
    torment_module(Host::Valkey);
}
