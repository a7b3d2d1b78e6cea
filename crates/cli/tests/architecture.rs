//! The rules of the architecture: which crate may use which, and which files have access to the outside world.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The dependencies that each of our crates may have. ARCHITECTURE.md has the reasons; a new dependency is added
/// there and here.
const EDGES: [(&str, &[&str]); 17] = [
    ("core", &[]),
    ("sync", &[]),
    ("slots", &[]),
    ("proto", &["core"]),
    ("home-api", &["core", "sync"]),
    ("engine", &["core", "home-api", "sync"]),
    ("redis-home", &["core", "home-api", "slots"]),
    ("redis-compat", &["core", "home-api", "redis"]),
    ("remote-home", &["core", "home-api", "proto"]),
    ("sureq", &["core", "home-api", "engine", "redis", "redis-compat", "remote"]),
    ("server", &["core", "home-api", "proto"]),
    ("module", &["core", "proto", "slots"]),
    ("history", &[]),
    ("cli", &["sureq", "server", "history"]),
    (
        "testkit",
        &["core", "home-api", "sync", "proto", "engine", "redis", "remote", "sureq", "server", "history"],
    ),
    ("sim", &["core", "sync", "home-api", "engine", "testkit"]),
    ("bench", &["sureq", "history"]),
];

fn crates() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("")
}

/// The Rust files below a directory, by relative path.
fn sources(dir: &Path) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut left = vec![dir.to_owned()];
    while let Some(path) = left.pop() {
        for entry in fs::read_dir(&path).expect("the directory can be read") {
            let path = entry.expect("the entry can be read").path();
            if path.is_dir() {
                left.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let name = path.strip_prefix(dir).expect("it is below").to_str().expect("a name is text");
                found.insert(name.to_owned(), fs::read_to_string(&path).expect("the file can be read"));
            }
        }
    }
    found
}

/// The files of a crate that contain any of these words, without its tests.
fn holders(krate: &str, words: &[&str]) -> Vec<String> {
    let sources = sources(&crates().join(krate).join("src"));
    let holds = |text: &str| {
        let before = std::iter::once("").chain(text.lines());
        let is_code = |(line, before): &(&str, &str)| {
            !line.trim_start().starts_with("//") && before.trim() != "#[cfg(test)]"
        };
        let mut code = text.lines().zip(before).filter(is_code);
        code.any(|(line, _)| words.iter().any(|word| line.contains(word)))
    };
    sources.into_iter().filter(|(_, text)| holds(text)).map(|(name, _)| name).collect()
}

#[test]
fn crates_have_only_allowed_dependencies() {
    let mut known: Vec<String> = EDGES.iter().map(|(name, _)| (*name).to_owned()).collect();
    let entries = fs::read_dir(crates()).expect("there are crates");
    let mut present: Vec<String> = entries
        .map(|entry| entry.expect("it can be read").file_name().into_string().expect("a name"))
        .collect();
    known.sort();
    present.sort();
    assert_eq!(present, known);
    for (name, allowed) in EDGES {
        let manifest =
            fs::read_to_string(crates().join(name).join("Cargo.toml")).expect("a crate has a manifest");
        let manifest: toml::Table = manifest.parse().expect("a manifest is TOML");
        let uses = manifest.get("dependencies").and_then(toml::Value::as_table).cloned().unwrap_or_default();
        let ours =
            uses.keys().filter_map(|key| key.strip_prefix("sureq-").or((key == "sureq").then_some("sureq")));
        for used in ours {
            assert!(allowed.contains(&used), "{name} uses {used}");
        }
    }
}

/// Rule 8: the core needs no standard library, and therefore cannot read a clock, disk, network or random numbers.
#[test]
fn the_core_is_pure() {
    let root = fs::read_to_string(crates().join("core/src/lib.rs")).expect("the core has a root");
    assert!(root.contains("#![no_std]") && root.contains("#![forbid(unsafe_code)]"));
    // The meter counts steps by thread, for the simulator only.
    assert_eq!(holders("core", &["std::", "extern crate std"]), ["meter.rs"]);
}

/// Steps are counted only in the simulator: a feature that another crate enabled would be part of the product.
#[test]
fn only_the_simulator_counts_steps() {
    for (name, _) in EDGES {
        let manifest =
            fs::read_to_string(crates().join(name).join("Cargo.toml")).expect("a crate has a manifest");
        let lines = manifest.lines().filter(|line| line.contains("meter") && !line.starts_with('#'));
        let lines: Vec<&str> = lines.collect();
        let expected: &[&str] = match name {
            "core" => &["meter = []"],
            "engine" => &["meter = [\"sureq-core/meter\"]"],
            "sim" => &["sureq-engine = { workspace = true, features = [\"meter\"] }"],
            _ => &[],
        };
        assert_eq!(lines, expected, "{name}");
    }
    let workspace = crates().with_file_name("Cargo.toml");
    let workspace = fs::read_to_string(workspace).expect("the workspace has a manifest");
    assert!(!workspace.contains("\"meter\"") && workspace.contains("default-members = [\"crates/cli\"]"));
}

/// The simulator is tried on each of these patches. One that no longer fits the sources tests nothing, and ends
/// `mutants/run`.
#[test]
fn every_injected_defect_can_be_applied() {
    let root = crates().with_file_name("");
    let entries = fs::read_dir(root.join("mutants")).expect("there are patches");
    let paths = entries.map(|entry| entry.expect("it can be read").path());
    let patches: Vec<_> =
        paths.filter(|path| path.extension().is_some_and(|extension| extension == "patch")).collect();
    let fits = |patch: &PathBuf| {
        let output = Command::new("git").args(["apply", "--check"]).arg(patch).current_dir(&root).output();
        output.expect("git runs").status.success()
    };
    let stale: Vec<_> = patches.iter().filter(|patch| !fits(patch)).collect();
    assert!(stale.is_empty() && patches.len() > 40, "{stale:?} of {} patches", patches.len());
}

/// Rule 9: the disk and the clock are each accessed in one file. Unsafe code is only in the module, at the C API, and
/// where the command configures its allocator.
#[test]
fn the_disk_and_the_clock_are_each_accessed_in_one_file() {
    assert_eq!(holders("engine", &["std::fs", "rustix::fs", "File::"]), ["disk.rs"]);
    assert_eq!(holders("engine", &["SystemTime"]), ["clock.rs"]);
    for krate in ["core", "proto"] {
        assert_eq!(holders(krate, &["std::fs", "SystemTime", "Instant", "std::net"]), Vec::<String>::new());
    }
    assert_eq!(holders("home-api", &["std::fs", "SystemTime", "std::net"]), Vec::<String>::new());
    // Simulated code gets time, locks and threads from one crate.
    for krate in ["home-api", "engine"] {
        let words = ["Instant::now", "std::sync::Mutex", "std::sync::Condvar", "std::thread::sleep"];
        assert_eq!(holders(krate, &words), Vec::<String>::new(), "{krate}");
    }
    assert_eq!(holders("sync", &["Instant::now"]), ["lib.rs", "sim.rs"]);
    assert_eq!(holders("sureq", &["std::fs", "SystemTime::now"]), Vec::<String>::new());
    assert_eq!(holders("remote-home", &["SystemTime::now"]), ["clock.rs"]);
    for (krate, _) in EDGES {
        let doors: &[&str] = match krate {
            "cli" => &["allocator.rs"],
            "module" => &["allocator.rs", "callbacks.rs", "load.rs", "redis.rs"],
            _ => &[],
        };
        assert_eq!(holders(krate, &["unsafe {", "unsafe fn", "unsafe impl"]), doors, "{krate}");
    }
}

/// Only the command prints and exits.
#[test]
fn only_the_command_prints_and_exits() {
    for krate in [
        "core",
        "home-api",
        "proto",
        "engine",
        "redis-home",
        "redis-compat",
        "remote-home",
        "sureq",
        "server",
    ] {
        let words = ["println!(", "print!(", "process::exit", "dbg!("];
        assert_eq!(holders(krate, &words), Vec::<String>::new(), "{krate}");
    }
}
