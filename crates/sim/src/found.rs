//! Stores runs that found something, each in a file. A test repeats all of them.

use std::path::{Path, PathBuf};
use std::{fs, io};

use crate::plan::Plan;
use crate::world::Outcome;

/// The directory of the files.
const DIR: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/found");

/// Reads a run.
pub(crate) fn read(path: &Path) -> io::Result<Plan> {
    toml::from_str(&fs::read_to_string(path)?).map_err(io::Error::other)
}

/// All stored runs.
#[cfg(test)]
pub(crate) fn all() -> io::Result<Vec<(PathBuf, Plan)>> {
    let mut paths =
        fs::read_dir(DIR)?.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<PathBuf>>>()?;
    paths.sort();
    paths.into_iter().map(|path| Ok((path.clone(), read(&path)?))).collect()
}

/// Stores a run. Returns its path.
pub(crate) fn keep(outcome: &Outcome) -> io::Result<PathBuf> {
    let path = Path::new(DIR).join(format!("{}.toml", outcome.plan.seed));
    let plan = toml::to_string(&outcome.plan).map_err(io::Error::other)?;
    let found = outcome.to_string().replace('\n', "\n# ");
    fs::create_dir_all(DIR)?;
    fs::write(&path, format!("# {found}\n{plan}"))?;
    Ok(path)
}
