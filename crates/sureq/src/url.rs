//! The one place that turns a URL into a home.

use std::path::PathBuf;

use sureq_engine::{Engine, Options};
use sureq_redis::{BadTarget, RedisHome, Target};

use crate::{Home, StoreError};

/// Why a URL did not become a home.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The URL does not say where.
    #[error(
        "{url:?} names no home: write file:DIR for a directory, mem: for memory only, or redis://HOST:PORT for a Redis"
    )]
    Unknown {
        /// What was given.
        url: String,
    },
    /// The store could not be opened.
    #[error("cannot open {url}: {source}")]
    Store {
        /// What was given.
        url: String,
        /// Why not.
        source: StoreError,
    },
    /// The URL of a Redis makes no sense.
    #[error("{url:?} makes no sense: {source}")]
    BadTarget {
        /// What was given.
        url: String,
        /// Why not.
        source: BadTarget,
    },
    /// The Redis will not do.
    #[error("cannot open {url}: {source}")]
    Redis {
        /// What was given.
        url: String,
        /// Why not.
        source: sureq_redis::OpenError,
    },
}

/// Opens a home with the defaults: everything confirmed is on disk.
pub fn open(url: &str) -> Result<Home, OpenError> {
    open_with(url, &Options::default())
}

/// Opens a home. The options concern embedded ones.
pub fn open_with(url: &str, options: &Options) -> Result<Home, OpenError> {
    match place_of(url) {
        Some(Place::Memory) => Ok(Home::Embedded(Engine::in_memory(options))),
        Some(Place::Directory(dir)) => match Engine::open(dir, options) {
            Ok(engine) => Ok(Home::Embedded(engine)),
            Err(source) => Err(OpenError::Store { url: url.to_owned(), source }),
        },
        Some(Place::Redis) => {
            let target =
                Target::parse(url).map_err(|source| OpenError::BadTarget { url: url.to_owned(), source })?;
            let home =
                RedisHome::open(target).map_err(|source| OpenError::Redis { url: url.to_owned(), source })?;
            Ok(Home::Redis(home))
        }
        None => Err(OpenError::Unknown { url: url.to_owned() }),
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Place {
    Memory,
    Directory(PathBuf),
    Redis,
}

fn place_of(url: &str) -> Option<Place> {
    if url == "mem:" {
        return Some(Place::Memory);
    }
    if ["redis://", "redis+unix://", "unix://"].iter().any(|scheme| url.starts_with(scheme)) {
        return Some(Place::Redis);
    }
    let path = url.strip_prefix("file:")?;
    // `file:///var/lib/sureq` has an empty host before its path.
    let path = if path.starts_with("///") { &path[2..] } else { path };
    let is_host = path.starts_with("//");
    (!path.is_empty() && !is_host).then(|| Place::Directory(path.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(url: &str, expected: Option<&str>) {
        let place = match place_of(url) {
            Some(Place::Directory(dir)) => Some(dir.to_str().unwrap().to_owned()),
            Some(Place::Memory) => Some("memory".to_owned()),
            Some(Place::Redis) => Some("redis".to_owned()),
            None => None,
        };
        assert_eq!(place.as_deref(), expected, "{url}");
    }

    #[test]
    fn urls_name_a_directory_or_memory() {
        check("mem:", Some("memory"));
        check("redis://localhost", Some("redis"));
        check("file:./sureq-data", Some("./sureq-data"));
        check("file:/var/lib/sureq", Some("/var/lib/sureq"));
        check("file:///var/lib/sureq", Some("/var/lib/sureq"));
        for bad in ["", "file:", "file://host/dir", "mem", "memory:", "redis:", "./sureq-data"] {
            check(bad, None);
        }
    }
}
