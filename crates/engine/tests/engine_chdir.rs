//! A store that was opened by a relative path stays usable when the process changes its working directory. This is
//! the only test of its file, since a process has one working directory.

use sureq_core::{Command, Replies, Reply};
use sureq_engine::{Engine, Options};
use sureq_home_api::Home as _;

#[test]
fn a_relative_path_stays_valid_when_the_working_directory_changes() {
    let dir = tempfile::tempdir().unwrap();
    std::env::set_current_dir(dir.path()).unwrap();
    let options = Options { segment_bytes: Some(4096), ..Options::default() };
    let engine = Engine::open("data", &options).unwrap();
    std::env::set_current_dir("/").unwrap();
    for n in 0..20_u8 {
        let payload = vec![n; 1500];
        let mut replies = Replies::default();
        let executed = engine.execute(&[Command::Push { queue: b"q", payloads: &[&payload] }], &mut replies);
        assert!(engine.wait(executed.position), "{:?}", engine.failure());
        assert!(matches!(replies.list[0], Reply::Pushed(_)));
    }
    engine.close().unwrap();
    assert!(dir.path().join("data/store").is_file());
}
