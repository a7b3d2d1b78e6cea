//! Every home over real sockets, under load and faults: it is killed, suspended, cut off, slowed down, filled up,
//! failed over. No confirmed task may be lost, no finished task may be redelivered, and no two workers may hold the
//! same task.
//!
//! Each round applies every fault of a home once, in an order and with times that follow from `SUREQ_TEST_SEED`;
//! `SUREQ_TEST_SCALE` multiplies the rounds.

mod cluster;
mod controls;
mod embedded;
mod module;
mod redis;
mod served_redis;

use std::time::{Duration, Instant};

use fastrand::Rng;
use sureq_testkit::home_load::{Access, Asking, Habits, HomeLoad};
use sureq_testkit::load::{scale, seeded};
use sureq_testkit::proxy::FaultyProxy;

/// The binary under test.
const SUREQ: &str = env!("CARGO_BIN_EXE_sureq");

const PAIRS: usize = 4;
const QUEUES: &[&[u8]] = &[b"even", b"odd"];

/// The load. A fault may last longer than a lease, and a lease longer than a fault.
const ASKING: Asking = Asking {
    count: 8,
    block: Some(sureq_core::command::Block::Millis(50)),
    lease_ms: 1_000,
    believed_ms: 1_000,
};

/// Applies a fault: harms a home for a while, and leaves it able to serve.
type Act<W> = fn(&mut W, &HomeLoad, &mut Rng);

/// A fault and its name.
type Fault<W> = (&'static str, Act<W>);

/// Clients of this kind on a home.
fn load(access: Access, rng: &mut Rng) -> HomeLoad {
    HomeLoad::with(access, QUEUES, ASKING, Habits::Mixed, rng.fork())
}

/// Applies faults to a home under load; in the end, its history must be legal.
fn torment<W>(world: &mut W, access: Access, faults: &[Fault<W>], rounds: u64) {
    let mut rng = seeded();
    let load = load(access, &mut rng);
    load.run(PAIRS, || {
        for _ in 0..rounds * scale() {
            let mut order: Vec<&Fault<W>> = faults.iter().collect();
            rng.shuffle(&mut order);
            for (name, act) in order {
                load.until_confirmed(rng.u64(20..200));
                let (confirmed, since) = (load.counts().confirmed, Instant::now());
                act(world, &load, &mut rng);
                println!("{name} after {confirmed} confirmed, for {:?}", since.elapsed());
            }
        }
        // The home recovers by itself.
        load.until_confirmed(100);
    });
    load.finish();
}

/// Lets a fault last for less than a lease, or for longer.
fn last(rng: &mut Rng) {
    std::thread::sleep(Duration::from_millis(rng.u64(50..1_500)));
}

fn cut(proxy: &FaultyProxy) {
    proxy.cut();
}

/// Cuts connections within a reply, or between two.
fn cut_within_a_reply(proxy: &FaultyProxy, rng: &mut Rng) {
    proxy.cut_after(rng.usize(..200));
}

/// Loses everything that is sent, while the connections stay open for some time.
fn half_open(proxy: &FaultyProxy, rng: &mut Rng) {
    let hanging = proxy.hang();
    last(rng);
    drop(hanging);
}

fn slow_network(proxy: &FaultyProxy, rng: &mut Rng) {
    proxy.delay(Duration::from_millis(rng.u64(1..50)));
    last(rng);
    proxy.delay(Duration::ZERO);
}
