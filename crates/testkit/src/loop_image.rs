//! An ext4 file system in a file, whose power can be cut.
//!
//! The cut uses the kernel: `FS_IOC_SHUTDOWN` without flushing the journal keeps synced data and drops the rest.
//! Needs root, a loop device, `mkfs.ext4`, and python3 for the ioctl.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::process::run;

/// `FS_IOC_SHUTDOWN`, `_IOR('X', 125, u32)`, with the flag that leaves the journal unflushed.
const CUT: &str = "
import fcntl, os, struct, sys
fd = os.open(sys.argv[1], os.O_RDONLY)
fcntl.ioctl(fd, 0x8004587D, struct.pack('I', 2))
";

/// A mounted image, which is unmounted and removed on drop.
#[derive(Debug)]
pub struct LoopImage {
    image: PathBuf,
    mount: PathBuf,
    mounted: bool,
    _dir: TempDir,
}

impl LoopImage {
    /// Creates and mounts a file system of `bytes`.
    pub fn new(bytes: u64) -> Self {
        Self::with(bytes, &[])
    }

    /// The same, with more arguments for `mkfs.ext4`.
    pub fn with(bytes: u64, mkfs: &[&str]) -> Self {
        assert!(
            rustix::process::geteuid().is_root(),
            "a power cut needs root: it mounts a file system of its own"
        );
        let dir = tempfile::tempdir().expect("a temporary directory");
        let (image, mount) = (dir.path().join("image"), dir.path().join("mount"));
        std::fs::create_dir(&mount).expect("the directory is empty");
        let file = std::fs::File::create(&image).expect("the directory is empty");
        file.set_len(bytes).expect("a file may have holes");
        let arguments = ["-q", "-F"].iter().chain(mkfs).map(OsStr::new);
        run("mkfs.ext4", &arguments.chain([image.as_os_str()]).collect::<Vec<_>>());
        let mut made = Self { image, mount, mounted: false, _dir: dir };
        made.mount();
        made
    }

    /// The mount point.
    pub fn path(&self) -> &Path {
        &self.mount
    }

    fn mount(&mut self) {
        let options = "loop,errors=remount-ro";
        run("mount", &["-o".as_ref(), options.as_ref(), self.image.as_os_str(), self.mount.as_os_str()]);
        self.mounted = true;
    }

    /// Makes the kernel find an error in the file system, which then becomes read-only.
    pub fn make_read_only(&self) {
        let device =
            run("findmnt", &["-n".as_ref(), "-o".as_ref(), "SOURCE".as_ref(), self.mount.as_os_str()]);
        let device = device.trim().trim_start_matches("/dev/");
        std::fs::write(format!("/sys/fs/ext4/{device}/trigger_fs_error"), "a test")
            .expect("ext4 has the file");
    }

    fn unmount(&mut self) {
        run("umount", &[&self.mount]);
        self.mounted = false;
    }

    /// Cuts the power: from now on nothing reaches the image.
    pub fn cut_power(&self) {
        run("python3", &["-c".as_ref(), CUT.as_ref(), self.mount.as_os_str()]);
    }

    /// Remounts the file system as after a reboot. It must not be in use.
    pub fn restore_power(&mut self) {
        self.unmount();
        // Mounting replays the journal; a check without that would report errors.
        self.mount();
        self.unmount();
        run("fsck.ext4", &["-n".as_ref(), "-f".as_ref(), self.image.as_os_str()]);
        self.mount();
    }
}

impl Drop for LoopImage {
    fn drop(&mut self) {
        if self.mounted {
            // Lazily, since a failed test may still have a file open in it.
            let _ = Command::new("umount").arg("-l").arg(&self.mount).status();
        }
    }
}

/// A small file system in memory, which is unmounted on drop.
#[derive(Debug)]
pub struct Tmpfs {
    dir: TempDir,
}

impl Tmpfs {
    /// Mounts one, with options such as `size=32m`.
    pub fn new(options: &str) -> Self {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let words = ["-t", "tmpfs", "-o", options, "none"].map(OsStr::new);
        run("mount", &words.into_iter().chain([dir.path().as_os_str()]).collect::<Vec<_>>());
        Self { dir }
    }

    /// The mount point.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.dir.path()).status();
    }
}
