//! Crashes at every step of rolling, recycling, copying forward, taking checkpoints, giving segments up and starting, three
//! times in a row each: nothing confirmed is lost, and nothing finished comes back.

use std::os::unix::process::ExitStatusExt as _;
use std::thread;
use std::time::Duration;

use rustix::process::Signal;
use sureq_testkit::ledger::{Findings, Journal, Ledger};
use sureq_testkit::load::{Load, Numbers, scale, seeded};
use sureq_testkit::process::Process;
use sureq_testkit::server_process::Launch;

use crate::serve;

/// The steps, and how often each is passed before the crash: those that a start comes to as well at its first time, and
/// under load.
const STEPS: [&str; 19] = [
    "segment.before-rename:1",
    "segment.before-rename:3",
    "segment.after-rename:1",
    "segment.after-rename:3",
    "roll.before-seal:2",
    "roll.after-seal:2",
    "recover.after-rewrite:1",
    "recover.after-retire:1",
    "open.after-recovery:1",
    "open.after-incarnation:1",
    "spare.created:3",
    "checkpoint.before-rename:2",
    "checkpoint.after-rename:2",
    "checkpoint.before-the-last-sync:3",
    "retire.after-sync:2",
    "retire.before-rename:1",
    "retire.after-rename:1",
    "retire.after-unlink:1",
    "forward.half:1",
];

/// How long a step may take to be reached.
const PATIENCE: Duration = Duration::from_secs(20);

/// A life that ends at a step.
fn live(launch: &Launch, load: &Load, rng: &mut fastrand::Rng, numbers: &Numbers) -> (Vec<Journal>, Process) {
    match launch.try_start() {
        Err(process) => (Vec::new(), process),
        Ok(server) => {
            let journals = thread::scope(|scope| {
                scope.spawn(|| {
                    if !server.ends_within(PATIENCE) {
                        server.signal(Signal::KILL);
                    }
                });
                load.run_until_gone(server.resp, rng, numbers)
            });
            (journals, server.into_process())
        }
    }
}

#[test]
fn a_crash_at_every_step_three_times_in_a_row_loses_nothing() {
    let mut rng = seeded();
    for step in STEPS {
        let dir = tempfile::tempdir_in("/dev/shm").expect("there is room for a directory");
        let launch = serve(&dir.path().join("data")).args(["--segment-bytes", "64KB"]);
        let (numbers, mut ledger) = (Numbers::default(), Ledger::default());
        let load = Load { producers: 3, consumers: 3, pipeline: 8, ..Load::default() };
        let armed = launch.clone().env("SUREQ_FAILPOINT", step);
        for _ in 0..scale() {
            let mut first = launch.start();
            let load_first = Load { pushes: 1_000, ..load.clone() };
            let journals = load_first.run(first.resp, &mut rng, &numbers, || {
                first.kill9();
            });
            ledger.close_life(&journals);
            for _ in 0..3 {
                let (journals, mut process) = live(&armed, &load, &mut rng, &numbers);
                ledger.close_life(&journals);
                let signal = process.wait(PATIENCE).signal();
                assert_eq!(signal, Some(Signal::ABORT.as_raw()), "{step} was not reached:\n{process}");
            }
        }
        let mut server = launch.start();
        ledger.close_life(&[load.drain(server.resp)]);
        server.kill9();
        println!("{step}: {ledger}");
        assert_eq!(ledger.settle(), Findings::default(), "{step}");
    }
}
