//! A queue inside an application shares its descriptors. When there are none left, the store waits for one.

use std::fs::File;
use std::process::Command;
use std::time::Duration;

use sureq::Options;

/// As few as a small application may have.
const LIMIT: usize = 128;
/// More than a few segments.
const TASKS: usize = 12;
const SEGMENT_BYTES: u64 = 1 << 20;

/// How often in a row there is none left before nobody is about to let go of one.
const QUIET_LOOKS: usize = 20;

/// All descriptors that are left, those too that the store has open for a moment only, to prepare files.
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
async fn without_descriptors_the_store_waits_and_goes_on_when_there_are_some() {
    let pid = std::process::id().to_string();
    let limited = Command::new("prlimit").args(["--pid", &pid, &format!("--nofile={LIMIT}")]).status();
    assert!(limited.expect("prlimit is there").success());
    let dir = tempfile::tempdir().expect("there is room for a directory");
    let options = Options { segment_bytes: Some(SEGMENT_BYTES), ..Options::default() };
    let home = sureq::open_with(&format!("file:{}", dir.path().display()), &options).expect("a store");
    let queue = home.queue("q");
    queue.push("first").await.expect("it is on disk");

    let hoarded = hoard().await;
    assert!(!hoarded.is_empty());
    let pushing = tokio::spawn(async move {
        for _ in 0..TASKS {
            queue.push(vec![b'x'; SEGMENT_BYTES as usize / 2]).await.expect("it is only late");
        }
        queue.info().await.expect("it can be asked")
    });
    // It cannot come to its end meanwhile: that is what the test is about.
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert!(!pushing.is_finished(), "new segments need descriptors");
    drop(hoarded);
    let info = pushing.await.expect("it does not panic");
    assert_eq!(info.ready, TASKS as u64 + 1);
    home.close().expect("it can be closed");
}
