//! The mark of a store that is still being made: as long as it is there, the directory is no store.
//!
//! A backup or a repair that is killed has no chance to clear up behind itself. What it leaves looks like a damaged
//! store, and would send its owner looking for a fault of the disk.

use crate::disk::Disk;
use crate::failpoint::failpoint;
use crate::fault::{Fault, OpenError};

/// The file that is the mark, if its content is that of one.
pub(crate) const NAME: &str = "sureq-unfinished";

const CONTENT: &[u8] = b"This directory is a copy that was not finished. Remove it, and make it again.\n";

/// Says that a store is being made here, before anything of it is: a cut of power leaves the mark too.
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

/// Whether this is the content of a mark. One that was being written when its writer was killed has only some of it.
fn is_mark(content: &[u8]) -> bool {
    CONTENT.starts_with(content)
}

/// Whether there is a mark.
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
    fn a_file_of_that_name_that_says_something_else_is_no_mark() {
        assert!(is_mark(CONTENT) && is_mark(&CONTENT[..7]) && is_mark(b""));
        assert!(!is_mark(b"Chapter one.") && !is_mark(&[CONTENT, b"x"].concat()));
    }
}
