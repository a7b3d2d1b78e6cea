//! A btrfs file system in a file, with a directory that has a quota: the kernel refuses writes beyond it with `EDQUOT`.
//!
//! Needs root, a loop device, `mkfs.btrfs` and `btrfs`, and a kernel with btrfs.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::process::run;

/// A mounted image, which is unmounted and removed on drop.
#[derive(Debug)]
pub struct Btrfs {
    mount: PathBuf,
    _dir: TempDir,
}

impl Btrfs {
    /// Creates and mounts a file system of `bytes`, at least 128 MB.
    pub fn new(bytes: u64) -> Self {
        assert!(
            rustix::process::geteuid().is_root(),
            "a disk of one's own needs root: the test mounts a file system"
        );
        // The kernel may list it only after it was requested.
        let _ = Command::new("modprobe").args(["-q", "btrfs"]).status();
        let known = std::fs::read_to_string("/proc/filesystems").expect("/proc is mounted");
        assert!(known.contains("btrfs"), "the test needs btrfs, which this kernel does not know");
        let dir = tempfile::tempdir().expect("a temporary directory");
        let (image, mount) = (dir.path().join("image"), dir.path().join("mount"));
        std::fs::create_dir(&mount).expect("the directory is empty");
        let file = std::fs::File::create(&image).expect("the directory is empty");
        file.set_len(bytes).expect("a file may have holes");
        run("mkfs.btrfs", &["-q".as_ref(), image.as_os_str()]);
        run("mount", &["-o".as_ref(), "loop".as_ref(), image.as_os_str(), mount.as_os_str()]);
        Self { mount, _dir: dir }
    }

    /// The mount point.
    pub fn path(&self) -> &Path {
        &self.mount
    }
}

impl Drop for Btrfs {
    fn drop(&mut self) {
        // Lazily, since a failed test may still have a file open in it.
        let _ = Command::new("umount").arg("-l").arg(&self.mount).status();
    }
}

/// A directory with a quota that is smaller than its disk.
#[derive(Debug)]
pub struct Quota {
    limited: PathBuf,
    _disk: Btrfs,
}

impl Quota {
    /// Makes a directory with a quota.
    pub fn new(bytes: u64) -> Self {
        let disk = Btrfs::new(512 << 20);
        let limited = disk.path().join("limited");
        btrfs(&["quota", "enable"], disk.path());
        btrfs(&["subvolume", "create"], &limited);
        let made = Self { limited, _disk: disk };
        made.limit(bytes);
        made
    }

    pub fn path(&self) -> &Path {
        &self.limited
    }

    /// Changes the limit of the quota.
    pub fn limit(&self, bytes: u64) {
        btrfs(&["qgroup", "limit", &bytes.to_string()], &self.limited);
    }
}

fn btrfs(words: &[&str], path: &Path) {
    let words = words.iter().map(OsStr::new);
    run("btrfs", &words.chain([path.as_os_str()]).collect::<Vec<_>>());
}
