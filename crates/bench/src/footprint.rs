//! The disk use of files: allocated blocks, not lengths, since files are larger than their contents.

use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The unit of `st_blocks`, regardless of the file system.
const BLOCK_BYTES: u64 = 512;

/// Bytes allocated for the files below a directory whose names are `counted`. Files that vanish meanwhile do not
/// count.
pub(crate) fn allocated(directory: &Path, counted: &dyn Fn(&str) -> bool) -> io::Result<u64> {
    let mut sum = 0;
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        let metadata = match entry.metadata() {
            Err(e) if e.kind() == ErrorKind::NotFound => continue,
            other => other?,
        };
        if metadata.is_dir() {
            sum += match allocated(&entry.path(), counted) {
                Err(e) if e.kind() == ErrorKind::NotFound => 0,
                other => other?,
            };
        } else if counted(&entry.file_name().to_string_lossy()) {
            sum += metadata.blocks() * BLOCK_BYTES;
        }
    }
    Ok(sum)
}

/// The files that a server has written, without its output.
pub(crate) fn of_server(directory: &Path) -> io::Result<u64> {
    allocated(directory, &|name| name != "server.log")
}

/// sureq's log: its segments, including prepared ones.
pub(crate) fn of_segments(directory: &Path) -> io::Result<u64> {
    allocated(directory, &|name| {
        Path::new(name).extension().is_some_and(|end| end == "seg") || name.starts_with("spare-")
    })
}

/// sureq's checkpoints, including unfinished ones.
pub(crate) fn of_checkpoints(directory: &Path) -> io::Result<u64> {
    allocated(directory, &|name| name.starts_with("checkpoint"))
}

/// Free bytes in the file system of this directory.
pub(crate) fn free(directory: &Path) -> io::Result<u64> {
    let file_system = rustix::fs::statvfs(directory)?;
    Ok(file_system.f_bavail * file_system.f_frsize)
}

/// Copies the files of a directory into a new one.
pub(crate) fn copy(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy(&entry.path(), &target)?;
        } else {
            fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_counted_by_name_at_any_depth() {
        let directory = tempfile::tempdir().unwrap();
        let data = directory.path().join("data");
        fs::create_dir(&data).unwrap();
        for name in ["1.seg", "spare-2", "checkpoint-1", "lock"] {
            fs::write(data.join(name), vec![1; 10_000]).unwrap();
        }
        fs::write(directory.path().join("server.log"), vec![1; 10_000]).unwrap();
        let one = allocated(directory.path(), &|name| name == "lock").unwrap();
        assert!(one >= 10_000, "{one}");
        assert_eq!(of_segments(directory.path()).unwrap(), 2 * one);
        assert_eq!(of_checkpoints(directory.path()).unwrap(), one);
        assert_eq!(of_server(directory.path()).unwrap(), 4 * one);
        assert!(free(&data).unwrap() > 0);
        copy(&data, &directory.path().join("copy")).unwrap();
        assert_eq!(of_segments(directory.path()).unwrap(), 4 * one);
    }
}
