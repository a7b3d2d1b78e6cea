//! The mark of a store that is still being written. While the mark exists, the directory is not a store.
//!
//! A backup or a repair that is killed cannot remove its files. Without the mark they would look like a damaged
//! store, and suggest that the disk is faulty.

use crate::disk::Disk;
use crate::failpoint::failpoint;
use crate::fault::{Fault, OpenError};

/// The name of the mark. A file of this name with other content is not a mark.
pub(crate) const NAME: &str = "sureq-unfinished";

const CONTENT: &[u8] = b"This directory is a copy that was not finished. Remove it, and make it again.\n";

/// Marks a directory before any file of the store is written. The mark is durable, so that it also survives a power
/// cut.
pub(crate) fn begin(to: &dyn Disk) -> Result<(), Fault> {
    let mark = to.create(NAME)?;
    mark.write_at(0, CONTENT)?;
    mark.sync_data()?;
    to.sync_dir()
}

/// Marks the copy as complete.
pub(crate) fn end(to: &dyn Disk) -> Result<(), Fault> {
    failpoint("copy.before-unmark");
    to.remove(NAME)?;
    to.sync_dir()
}

/// Whether this is the content of a mark, or the beginning of it, which a process leaves that is killed while
/// writing.
fn is_mark(content: &[u8]) -> bool {
    CONTENT.starts_with(content)
}

pub(crate) fn is_marked(disk: &dyn Disk) -> Result<bool, Fault> {
    if !disk.list()?.iter().any(|name| name == NAME) {
        return Ok(false);
    }
    let mut content = [0; CONTENT.len() + 1];
    let read = disk.open(NAME)?.read_at(0, &mut content)?;
    Ok(is_mark(&content[..read]))
}

/// Refuses a directory with the mark.
pub(crate) fn refuse(disk: &dyn Disk) -> Result<(), OpenError> {
    if !is_marked(disk)? {
        return Ok(());
    }
    let mark = disk.open(NAME)?;
    let path = mark.path().parent().unwrap_or(mark.path()).to_owned();
    Err(OpenError::Unfinished { path })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_with_other_content_is_not_a_mark() {
        assert!(is_mark(CONTENT) && is_mark(&CONTENT[..7]) && is_mark(b""));
        assert!(!is_mark(b"Chapter one.") && !is_mark(&[CONTENT, b"x"].concat()));
    }
}
