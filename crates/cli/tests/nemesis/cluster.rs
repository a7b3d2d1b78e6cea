//! A home in a cluster of six servers through the library, with `durability=replicated`.

use std::time::Duration;

use redis::cmd;
use sureq_testkit::home_load::Access;
use sureq_testkit::patience::until_within;
use sureq_testkit::redis_cluster::RedisCluster;

use crate::{Fault, torment};

/// The time that a failover may take on a busy machine.
const TAKE_OVER: Duration = Duration::from_secs(60);

/// Keys of the two queues, which are in different slots.
const KEYS: [&str; 2] = ["{even}", "{odd}"];

/// Waits until the replica of a primary that is gone has taken over.
fn until_replaced(cluster: &RedisCluster, key: &str, replica: usize) {
    until_within("the replica takes over", TAKE_OVER, || {
        cluster.owners_as_seen_by(replica, key).0 == replica
    });
}

const FAULTS: [Fault<RedisCluster>; 5] = [
    ("kill of a primary", |cluster, _, rng| {
        let key = KEYS[rng.usize(..2)];
        let (primary, replica) = cluster.owners(key);
        cluster.server_mut(primary).kill();
        until_replaced(cluster, key, replica.expect("it has a replica"));
        cluster.server_mut(primary).start_again();
        cluster.settle();
    }),
    ("suspend of a primary", |cluster, _, rng| {
        let key = KEYS[rng.usize(..2)];
        let (primary, replica) = cluster.owners(key);
        cluster.server(primary).suspend();
        until_replaced(cluster, key, replica.expect("it has a replica"));
        cluster.server(primary).resume();
        cluster.settle();
    }),
    ("kill of a replica", |cluster, _, rng| {
        let replica = cluster.owners(KEYS[rng.usize(..2)]).1.expect("it has a replica");
        cluster.server_mut(replica).kill();
        crate::last(rng);
        cluster.server_mut(replica).start_again();
        cluster.settle();
    }),
    ("orderly failover", |cluster, _, rng| {
        let key = KEYS[rng.usize(..2)];
        let replica = cluster.owners(key).1.expect("it has a replica");
        cmd("CLUSTER").arg("FAILOVER").exec(&mut cluster.server(replica).connect()).expect("it is a replica");
        until_replaced(cluster, key, replica);
        cluster.settle();
    }),
    ("cut", |cluster, _, rng| {
        let (primary, _) = cluster.owners(KEYS[rng.usize(..2)]);
        let mut admin = cluster.server(primary).connect();
        let mut kill = |kind: &str| -> u64 {
            cmd("CLIENT").arg("KILL").arg("TYPE").arg(kind).query(&mut admin).expect("it is one of its kinds")
        };
        kill("normal");
        kill("pubsub");
    }),
];

#[test]
fn a_home_in_a_cluster() {
    let mut cluster = RedisCluster::start();
    let access = Access::Library(format!("{}?durability=replicated", cluster.url()));
    torment(&mut cluster, access, &FAULTS, 1);
    cluster.check("sureq:");
}
