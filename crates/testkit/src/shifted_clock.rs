//! Manual clocks for another process: a small library is loaded into it before all others, and shifts the times that
//! the system returns.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

use tempfile::TempDir;

use crate::process::run;

const DAY_MS: i64 = 86_400_000;

/// Clocks for one process, or for several.
pub struct ShiftedClock {
    dir: TempDir,
    file: File,
    wall_ms: AtomicI64,
    passed_ms: AtomicI64,
    is_frozen: AtomicBool,
}

impl Default for ShiftedClock {
    /// Clocks that are not shifted yet.
    fn default() -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/src/clock_shift.c");
        let options = ["-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o"].map(AsRef::as_ref);
        run("cc", &[&options[..], &[dir.path().join("shim.so").as_os_str(), source.as_ref()]].concat());
        let path = dir.path().join("shift");
        let file =
            OpenOptions::new().write(true).create_new(true).open(path).expect("the directory is empty");
        let (wall_ms, passed_ms, is_frozen) = Default::default();
        let clock = Self { dir, file, wall_ms, passed_ms, is_frozen };
        clock.write();
        clock
    }
}

impl ShiftedClock {
    /// The environment variables that make a process use these clocks.
    pub fn environment(&self) -> [(&'static str, PathBuf); 2] {
        [("LD_PRELOAD", self.dir.path().join("shim.so")), ("CLOCK_SHIFT_FILE", self.dir.path().join("shift"))]
    }

    /// Sets the wall clock ahead of the real one, in milliseconds.
    pub fn set_wall(&self, ms: i64) {
        self.wall_ms.store(ms, Ordering::Relaxed);
        self.write();
    }

    /// Stops time at this wall-clock time; from now on only the test moves it.
    pub fn freeze(&self, wall_ms: u64) {
        self.is_frozen.store(true, Ordering::Relaxed);
        // Monotonic time must be larger than any age: a clock that starts at 0 would make everything as old as the
        // machine.
        self.passed_ms.store(DAY_MS, Ordering::Relaxed);
        self.set_wall(wall_ms.cast_signed() - DAY_MS);
    }

    /// Sets the wall clock forward or back.
    pub fn jump(&self, ms: i64) {
        self.wall_ms.fetch_add(ms, Ordering::Relaxed);
        self.write();
    }

    /// Lets time pass, on all clocks.
    pub fn pass(&self, ms: u64) {
        self.passed_ms.fetch_add(ms.cast_signed(), Ordering::Relaxed);
        self.write();
    }

    fn write(&self) {
        let [wall, passed] = [&self.wall_ms, &self.passed_ms].map(|ms| ms.load(Ordering::Relaxed));
        let frozen = i64::from(self.is_frozen.load(Ordering::Relaxed));
        let bytes = [wall, passed, frozen].map(i64::to_ne_bytes).concat();
        self.file.write_all_at(&bytes, 0).expect("there is room for three numbers");
    }
}
