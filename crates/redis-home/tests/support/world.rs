//! Time that a test moves by hand.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use sureq_redis::{Clock, RedisHome, Target};
use sureq_testkit::redis_server::RedisServer;

/// The wall clock at the start.
pub const START_US: u64 = 1_600_000_000_000_000;

/// True time, and the wall clock of Redis, which may also be set.
#[derive(Default)]
#[expect(clippy::struct_field_names, reason = "all are microseconds, which their names say")]
pub struct World {
    passed_us: AtomicU64,
    wall_set_by_us: AtomicI64,
    late_us: AtomicU64,
}

/// The clocks as one process sees them: its monotonic clock starts at an arbitrary time, and runs a little fast or
/// slow.
struct Seen {
    world: Arc<World>,
    began_us: u64,
    drift_ppm: i64,
}

impl Clock for Seen {
    fn monotonic_ms(&self) -> u64 {
        self.monotonic_us() / 1_000
    }

    fn monotonic_us(&self) -> u64 {
        let passed_us = self.world.passed_us();
        let drifted = passed_us.cast_signed() / 1_000 * self.drift_ppm / 1_000;
        (passed_us + self.began_us).saturating_add_signed(drifted)
    }

    fn wall_ms(&self) -> Option<u64> {
        self.wall_us().map(|us| us / 1_000)
    }

    /// Called for each call that is sent.
    fn wall_us(&self) -> Option<u64> {
        self.world.pass(self.world.late_us.load(Ordering::Acquire));
        let wall = START_US + self.world.passed_us();
        wall.checked_add_signed(self.world.wall_set_by())
    }
}

impl World {
    /// A process with these clocks. Its monotonic clock is ahead by `began_us`.
    pub fn home(self: &Arc<Self>, server: &RedisServer, began_us: u64) -> RedisHome {
        self.drifting_home(server, began_us, 0)
    }

    /// A process whose monotonic clock also runs fast by `drift_ppm`.
    pub fn drifting_home(self: &Arc<Self>, server: &RedisServer, began_us: u64, drift_ppm: i64) -> RedisHome {
        let target = Target::parse(&server.url()).expect("a URL");
        let clock = Seen { world: Arc::clone(self), began_us, drift_ppm };
        RedisHome::open_by(target, Arc::new(clock)).expect("Redis listens")
    }

    pub fn pass(&self, us: u64) {
        self.passed_us.fetch_add(us, Ordering::AcqRel);
    }

    /// From now on each call takes this long to reach Redis; answers take no time.
    pub fn set_late(&self, us: u64) {
        self.late_us.store(us, Ordering::Release);
    }

    pub fn passed_us(&self) -> u64 {
        self.passed_us.load(Ordering::Acquire)
    }

    pub fn wall_set_by(&self) -> i64 {
        self.wall_set_by_us.load(Ordering::Acquire)
    }

    /// Sets the wall clock of Redis to true time plus this difference.
    pub fn set_wall_by(&self, us: i64) {
        self.wall_set_by_us.store(us, Ordering::Release);
    }
}
