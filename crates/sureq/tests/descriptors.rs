//! A store inside an application shares its file descriptors. When none is free, the store waits for one.

use std::fs::File;
use std::process::Command;
use std::time::Duration;

use sureq::Options;

/// A limit as low as that of a small application.
const LIMIT: usize = 128;
/// Enough to fill several segments.
const TASKS: usize = 12;
const SEGMENT_BYTES: u64 = 1 << 20;

/// The looks in a row without a free descriptor after which none is expected to become free.
const QUIET_LOOKS: usize = 20;

/// Opens all free descriptors, including those that the store holds only for a moment, to prepare files.
async fn hoard() -> Vec<File> {
    let (mut hoarded, mut quiet) = (Vec::new(), 0);
    while quiet < QUIET_LOOKS {
        let before = hoarded.len();
        hoarded.extend(std::iter::from_fn(|| File::open("/dev/null").ok()));
        quiet = if hoarded.len() == before { quiet + 1 } else { 0 };
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    hoarded
}

#[tokio::test]
async fn the_store_waits_while_no_descriptor_is_free() {
    let pid = std::process::id().to_string();
    let limited = Command::new("prlimit").args(["--pid", &pid, &format!("--nofile={LIMIT}")]).status();
    assert!(limited.expect("prlimit is installed").success());
    let dir = tempfile::tempdir().expect("a temporary directory");
    let options = Options { segment_bytes: Some(SEGMENT_BYTES), ..Options::default() };
    let home = sureq::open_with(&format!("file:{}", dir.path().display()), &options).expect("a store");
    let queue = home.queue("q");
    queue.push("first").await.expect("it is on disk");

    let hoarded = hoard().await;
    assert!(!hoarded.is_empty());
    let pushing = tokio::spawn(async move {
        for _ in 0..TASKS {
            queue.push(vec![b'x'; SEGMENT_BYTES as usize / 2]).await.expect("the push waits and succeeds");
        }
        queue.info().await.expect("the home answers")
    });
    // The push must not finish before descriptors are free.
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert!(!pushing.is_finished(), "new segments need descriptors");
    drop(hoarded);
    let info = pushing.await.expect("it does not panic");
    assert_eq!(info.ready, TASKS as u64 + 1);
    home.close().expect("the home closes");
}
