//! The embedded home behind `sureq serve`, on a disk of its own: by RESP, and as a `sureq://` home through the
//! library.

use std::fs::File;
use std::io::Write as _;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use rustix::process::Signal;
use sureq_testkit::home_load::{Access, HomeLoad};
use sureq_testkit::loop_image::LoopImage;
use sureq_testkit::process::Process;
use sureq_testkit::proxy::FaultyProxy;
use sureq_testkit::server_process::{Launch, Server};
use sureq_testkit::slow_disk::slow_syncs;

use crate::{Fault, SUREQ, torment};

const IMAGE_BYTES: u64 = 128 << 20;

struct World {
    server: Server,
    launch: Launch,
    proxy: FaultyProxy,
    image: LoopImage,
}

impl World {
    fn start() -> Self {
        let image = LoopImage::new(IMAGE_BYTES);
        let launch = Launch::serve(SUREQ, &image.path().join("data")).args(["--segment-bytes", "256KB"]);
        let server = launch.start();
        let proxy = FaultyProxy::before(server.resp);
        Self { server, launch, proxy, image }
    }

    fn start_again(&mut self) {
        self.server = self.launch.start();
        self.proxy.lead_to(&[self.server.resp]);
    }

    /// Cuts the power, and restarts with the contents of the disk.
    fn lose_power(&mut self, slow: Option<Process>) {
        // A sync during the cut may wrongly report success, so no client may receive a reply. A suspended server
        // would finish its syncs first.
        let dark = self.proxy.black_out();
        self.image.cut_power();
        self.server.signal(Signal::KILL);
        drop(slow);
        self.server.kill9();
        self.image.restore_power();
        self.start_again();
        drop(dark);
    }

    fn filler(&self) -> PathBuf {
        self.image.path().join("filler")
    }
}

const FAULTS: [Fault<World>; 14] = [
    ("kill", |world, _, _| {
        world.server.kill9();
        world.start_again();
    }),
    ("kills while it starts", |world, _, rng| {
        world.server.kill9();
        for _ in 0..3 {
            let mut starting = world.launch.spawn();
            thread::sleep(Duration::from_millis(rng.u64(..30)));
            starting.kill9();
        }
        world.start_again();
    }),
    ("suspend", |world, _, rng| {
        world.server.suspend();
        crate::last(rng);
        world.server.resume();
    }),
    ("power cut", |world, _, _| world.lose_power(None)),
    ("power cut on a slow disk", |world, _, rng| {
        let slow = slow_syncs(&world.server, Duration::from_millis(rng.u64(100..1_000)));
        crate::last(rng);
        world.lose_power(Some(slow));
    }),
    ("full disk", |world, load, _| {
        fill(world, load);
        std::fs::remove_file(world.filler()).expect("it exists");
    }),
    ("kill on a full disk", |world, load, _| {
        fill(world, load);
        world.server.kill9();
        world.start_again();
        std::fs::remove_file(world.filler()).expect("it exists");
    }),
    ("slow disk", |world, _, rng| {
        let slow = slow_syncs(&world.server, Duration::from_millis(rng.u64(10..400)));
        crate::last(rng);
        drop(slow);
    }),
    ("kill on a slow disk", |world, _, rng| {
        let slow = slow_syncs(&world.server, Duration::from_millis(rng.u64(10..400)));
        crate::last(rng);
        world.server.signal(Signal::KILL);
        drop(slow);
        world.server.kill9();
        world.start_again();
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

/// Takes all free space of the disk, until pushes are refused.
fn fill(world: &World, load: &HomeLoad) {
    let mut file = File::create(world.filler()).expect("there is an inode");
    let chunk = vec![b'x'; 1 << 20];
    let mut bytes = chunk.len();
    // Large pieces first, then smaller ones.
    while bytes > 0 {
        if file.write_all(&chunk[..bytes]).is_err() {
            bytes /= 2;
        }
    }
    load.until_refused();
}

#[test]
fn the_embedded_home_behind_a_server() {
    let mut world = World::start();
    let access = Access::Resp(world.proxy.address);
    torment(&mut world, access, &FAULTS, 1);
}

#[test]
fn a_home_on_another_server() {
    let mut world = World::start();
    let access = Access::Library(format!("sureq://{}", world.proxy.address));
    torment(&mut world, access, &FAULTS, 1);
}
