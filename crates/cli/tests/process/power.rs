//! Power cuts: confirmed changes are on the disk itself, not only in the page cache.

use sureq_testkit::history::{Findings, SharedHistory};
use sureq_testkit::load::{Load, scale, seeded};
use sureq_testkit::loop_image::LoopImage;

use crate::serve;

const IMAGE_BYTES: u64 = 1 << 30;

/// Cuts the power under load repeatedly, and then checks the history.
fn cut_power(durability: &str, cuts: u64) -> Findings {
    let (mut rng, history) = (seeded(), SharedHistory::default());
    let mut image = LoopImage::new(IMAGE_BYTES);
    let launch =
        serve(&image.path().join("data")).args(["--durability", durability, "--segment-bytes", "1MB"]);
    for _ in 0..cuts {
        let mut server = launch.start();
        let load = Load { pushes: rng.u64(200..2_000), pipeline: 8, ..Load::default() };
        load.run(server.resp, &mut rng, &history, || {
            // A sync during the cut may wrongly report success; a suspended server confirms nothing.
            server.suspend();
            image.cut_power();
            server.kill9();
        });
        image.restore_power();
    }
    let mut server = launch.start();
    Load::default().drain(server.resp, &history);
    server.kill9();
    let history = history.into_inner();
    println!("{history}");
    history.findings(0)
}

#[test]
fn twenty_power_cuts_lose_nothing() {
    assert_eq!(cut_power("always", 20 * scale()), Findings::default());
}

/// The control: if the test above could not find a loss, this one would fail.
#[test]
fn power_cuts_without_syncs_lose_tasks_but_repeat_no_id_and_change_no_payload() {
    let found = cut_power("none", 4 * scale());
    assert!(found.lost > 0, "cuts without losses prove nothing: {found:?}");
    let promised = Findings { repeated_ids: 0, phantom: 0, torn: 0, ..found };
    assert_eq!(found, promised);
}
