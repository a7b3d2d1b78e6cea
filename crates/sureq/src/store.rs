//! Checks, repairs and copies the directory of a store. Nothing here opens a home or changes the store.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use sureq_engine::clock::SystemClock;
use sureq_engine::disk::{DirDisk, Disk, ReadDisk};

use crate::StoreError;

pub use sureq_engine::backup::{Backup, BackupError, Verify};
pub use sureq_engine::check::{
    CheckpointReport, Finding, Progress, QueueReport, Report, SegmentReport, Severity,
};
pub use sureq_engine::repair::{Beginning, Doubtful, Gap, Lost, Repaired};

/// Checks the store in a directory that no process serves; it is locked meanwhile.
///
/// ```
/// # let dir = std::env::temp_dir().join(format!("sureq-doc-check-{}", std::process::id()));
/// let home = sureq::open(&format!("file:{}", dir.display()))?;
/// home.close().expect("the home closes");
/// drop(home);
/// let report = sureq::store::check(&dir, &mut |_, _, _| ()).expect("no process serves it");
/// assert!(report.is_sound());
/// # std::fs::remove_dir_all(&dir).unwrap();
/// # Ok::<(), sureq::OpenError>(())
/// ```
pub fn check(dir: &Path, progress: &mut Progress<'_>) -> Result<Report, StoreError> {
    let disk: Arc<dyn Disk> = Arc::new(ReadDisk::hold(dir)?);
    sureq_engine::check::check(&disk, progress)
}

/// Builds a new store in `out`, a new or empty directory, from the readable parts of the store in `dir`.
pub fn repair(dir: &Path, out: &Path, progress: &mut Progress<'_>) -> Result<Repaired, StoreError> {
    let from: Arc<dyn Disk> = Arc::new(ReadDisk::hold(dir)?);
    let to: Arc<dyn Disk> = Arc::new(DirDisk::make(out)?);
    sureq_engine::repair::repair(&from, &to, &SystemClock::default(), progress)
}

/// Copies the store in `dir`, which may be in use, to `out`, a new or empty directory.
pub fn backup(
    dir: &Path,
    out: &Path,
    verify: Verify,
    progress: &mut Progress<'_>,
) -> Result<Backup, BackupError> {
    let from: Arc<dyn Disk> = Arc::new(ReadDisk::peek(dir)?);
    let to: Arc<dyn Disk> = Arc::new(DirDisk::make(out)?);
    sureq_engine::backup::backup(&from, &to, verify, progress)
}

/// Whether `out` lies in `dir`, which must not be changed.
pub fn is_within(out: &Path, dir: &Path) -> bool {
    let Ok(dir) = dir.canonicalize() else { return false };
    let absolute = std::path::absolute(out).unwrap_or_else(|_| out.to_owned());
    // A path that does not exist yet is resolved by its nearest existing parent.
    let mut ancestors = absolute.ancestors();
    let there: Option<PathBuf> = ancestors.find_map(|path| path.canonicalize().ok());
    there.is_some_and(|there| there.starts_with(&dir))
}
