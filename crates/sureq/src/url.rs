//! [`open`]: from a URL to a home.

use std::io;
use std::path::PathBuf;

use tokio::sync::oneshot;

use crate::Home;

/// Why a home could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The scheme of the URL is unknown.
    #[error("{url:?} is not the URL of a home: write {}", homes())]
    Unknown {
        /// The URL that was opened, without passwords.
        url: String,
    },
    /// The store could not be opened.
    #[cfg(feature = "embedded")]
    #[error("cannot open {url}: {source}")]
    Store {
        /// The URL that was opened, without passwords.
        url: String,
        /// The reason.
        source: crate::StoreError,
    },
    /// The URL of a Redis is invalid.
    #[cfg(feature = "redis")]
    #[error("invalid URL {url:?}: {source}")]
    BadTarget {
        /// The URL without passwords.
        url: String,
        /// The reason.
        source: sureq_redis::BadTarget,
    },
    /// The Redis cannot be reached or used.
    #[cfg(feature = "redis")]
    #[error("cannot open {url}: {source}")]
    Redis {
        /// The URL without passwords.
        url: String,
        /// The reason.
        source: sureq_redis::OpenError,
    },
    /// The URL of a server is invalid.
    #[cfg(feature = "remote")]
    #[error("invalid URL {url:?}: {source}")]
    BadServer {
        /// The URL without the password.
        url: String,
        /// The reason.
        source: sureq_remote::BadTarget,
    },
    /// The server cannot be reached or used.
    #[cfg(feature = "remote")]
    #[error("cannot open {url}: {source}")]
    Server {
        /// The URL without the password.
        url: String,
        /// The reason.
        source: sureq_remote::OpenError,
    },
    /// A thread cannot be started.
    #[error("cannot start a thread: {0}")]
    Thread(io::Error),
    /// The program was built without this kind of home.
    #[error("cannot open {url:?}: this program was built without the feature `{feature}` of the crate sureq")]
    LeftOut {
        /// The URL that was opened, without passwords.
        url: String,
        /// The missing feature.
        feature: &'static str,
    },
}

impl OpenError {
    /// Whether the credentials were missing or wrong, or the user lacks the role.
    pub fn is_denied(&self) -> bool {
        match self {
            #[cfg(feature = "redis")]
            Self::Redis { source, .. } => crate::error::is_denial(&source.to_string()),
            #[cfg(feature = "remote")]
            Self::Server { source, .. } => crate::error::is_denial(&source.to_string()),
            _ => false,
        }
    }
}

/// Opens a home with default options: a reply means that the change is on disk.
///
/// This blocks the thread: for a directory, while its newest checkpoint and the end of its log are read; for Redis or
/// a server, until it answers, or for a few seconds if it does not. If a server is loading its data, this waits for a
/// minute at most. In async code use [`open_async`], except at the start of the program.
pub fn open(url: &str) -> Result<Home, OpenError> {
    match kind_of(url) {
        #[cfg(feature = "embedded")]
        Some(HomeKind::Memory | HomeKind::Directory(_)) => open_with(url, &crate::Options::default()),
        #[cfg(not(feature = "embedded"))]
        Some(HomeKind::Memory | HomeKind::Directory(_)) => {
            Err(OpenError::LeftOut { url: url.to_owned(), feature: "embedded" })
        }
        Some(HomeKind::Redis) => open_redis(url),
        Some(HomeKind::Server) => open_remote(url),
        None => Err(OpenError::Unknown { url: without_passwords(url) }),
    }
}

/// Opens a home like [`open`], without blocking the runtime. If the future is dropped before it is ready, the home is
/// opened and then dropped.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let home = sureq::open_async("mem:").await?;
/// home.queue("emails").push("to: ann").await?;
/// home.close_async().await?;
/// # Ok(()) }
/// ```
pub async fn open_async(url: &str) -> Result<Home, OpenError> {
    let url = url.to_owned();
    match on_a_thread("sureq-open", move || open(&url)).await {
        Ok(opened) => opened,
        Err(error) => Err(OpenError::Thread(error)),
    }
}

/// Runs a blocking function on a new thread.
pub(crate) async fn on_a_thread<T: Send + 'static>(
    name: &str,
    act: impl FnOnce() -> T + Send + 'static,
) -> io::Result<T> {
    let (done, is_done) = oneshot::channel();
    // The receiver may be dropped.
    let act = move || _ = done.send(act());
    std::thread::Builder::new().name(name.to_owned()).spawn(act)?;
    is_done.await.map_err(|_| io::Error::other("the thread panicked"))
}

/// Opens a home with options, which apply to `file:` and `mem:`. Blocks the thread like [`open`].
#[cfg(feature = "embedded")]
pub fn open_with(url: &str, options: &crate::Options) -> Result<Home, OpenError> {
    use sureq_engine::Engine;
    match kind_of(url) {
        Some(HomeKind::Memory) => Ok(Home::from_api(Engine::in_memory(options))),
        Some(HomeKind::Directory(dir)) => match Engine::open(dir, options) {
            Ok(engine) => Ok(Home::from_api(engine)),
            Err(source) => Err(OpenError::Store { url: url.to_owned(), source }),
        },
        Some(HomeKind::Redis | HomeKind::Server) | None => open(url),
    }
}

#[cfg(feature = "redis")]
fn open_redis(url: &str) -> Result<Home, OpenError> {
    use sureq_redis::{RedisHome, Target};
    let redacted = || without_passwords(url);
    let target = Target::parse_with(url, &sureq_redis_compat::LAYOUTS)
        .map_err(|source| OpenError::BadTarget { url: redacted(), source })?;
    let home = RedisHome::open(target).map_err(|source| OpenError::Redis { url: redacted(), source })?;
    Ok(Home::from_api(home))
}

#[cfg(not(feature = "redis"))]
fn open_redis(url: &str) -> Result<Home, OpenError> {
    Err(OpenError::LeftOut { url: without_passwords(url), feature: "redis" })
}

#[cfg(feature = "remote")]
fn open_remote(url: &str) -> Result<Home, OpenError> {
    use sureq_remote::{RemoteHome, Target};
    let redacted = || without_passwords(url);
    let target = Target::parse(url).map_err(|source| OpenError::BadServer { url: redacted(), source })?;
    let home = RemoteHome::open(target).map_err(|source| OpenError::Server { url: redacted(), source })?;
    Ok(Home::from_api(home))
}

#[cfg(not(feature = "remote"))]
fn open_remote(url: &str) -> Result<Home, OpenError> {
    Err(OpenError::LeftOut { url: without_passwords(url), feature: "remote" })
}

/// The supported URLs, for an error.
fn homes() -> String {
    let kinds: &[&str] = &[
        #[cfg(feature = "embedded")]
        "file:DIR for a directory",
        #[cfg(feature = "embedded")]
        "mem: for memory only",
        #[cfg(feature = "redis")]
        "redis://HOST:PORT for a Redis",
        #[cfg(feature = "redis")]
        "redis-cluster://HOST:PORT for a cluster",
        #[cfg(feature = "remote")]
        "sureq://HOST:PORT for a server",
    ];
    kinds.join(", or ")
}

#[derive(Debug, PartialEq, Eq)]
enum HomeKind {
    Memory,
    Directory(PathBuf),
    Redis,
    Server,
}

/// One server (TCP or Unix socket), a cluster, or sentinels; with TLS or without.
const REDIS_SCHEMES: [&str; 8] = [
    "redis",
    "rediss",
    "redis+unix",
    "unix",
    "redis-cluster",
    "rediss-cluster",
    "redis-sentinel",
    "rediss-sentinel",
];

/// A URL for display: without the passwords in it.
pub fn without_passwords(url: &str) -> String {
    let (address, options) = url.split_once('?').unwrap_or((url, ""));
    let mut redacted =
        match address.split_once("://").and_then(|(scheme, rest)| Some((scheme, rest.rsplit_once('@')?))) {
            Some((scheme, (who, hosts))) => {
                let user = who.split_once(':').map_or("", |(user, _)| user);
                format!("{scheme}://{user}:***@{hosts}")
            }
            None => address.to_owned(),
        };
    for (at, option) in options.split('&').filter(|option| !option.is_empty()).enumerate() {
        redacted.push(if at == 0 { '?' } else { '&' });
        match option.split_once('=') {
            Some((name, _)) if name.ends_with("pass") => redacted.extend([name, "=***"]),
            _ => redacted.push_str(option),
        }
    }
    redacted
}

fn kind_of(url: &str) -> Option<HomeKind> {
    if url == "mem:" {
        return Some(HomeKind::Memory);
    }
    if url.split_once("://").is_some_and(|(scheme, _)| REDIS_SCHEMES.contains(&scheme)) {
        return Some(HomeKind::Redis);
    }
    if url.starts_with("sureq://") {
        return Some(HomeKind::Server);
    }
    let path = url.strip_prefix("file:")?;
    // `file:///var/lib/sureq` has an empty host before its path.
    let path = if path.starts_with("///") { &path[2..] } else { path };
    let is_host = path.starts_with("//");
    (!path.is_empty() && !is_host).then(|| HomeKind::Directory(path.into()))
}

/// The directory of a `file:` URL; `None` for other URLs.
///
/// ```
/// assert_eq!(sureq::directory_of("file:./queue"), Some("./queue".into()));
/// assert_eq!(sureq::directory_of("file://host/queue"), None);
/// ```
pub fn directory_of(url: &str) -> Option<PathBuf> {
    match kind_of(url) {
        Some(HomeKind::Directory(dir)) => Some(dir),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(url: &str, expected: Option<&str>) {
        let place = match kind_of(url) {
            Some(HomeKind::Directory(dir)) => Some(dir.to_str().unwrap().to_owned()),
            Some(HomeKind::Memory) => Some("memory".to_owned()),
            Some(HomeKind::Redis) => Some("redis".to_owned()),
            Some(HomeKind::Server) => Some("server".to_owned()),
            None => None,
        };
        assert_eq!(place.as_deref(), expected, "{url}");
    }

    #[test]
    fn passwords_are_not_shown() {
        assert_eq!(
            without_passwords("redis-cluster://me:se:cr@et@a,b?prefix=x"),
            "redis-cluster://me:***@a,b?prefix=x"
        );
        let url = "redis-sentinel://a/s?sentinel-pass=secret&prefix=x";
        assert_eq!(without_passwords(url), "redis-sentinel://a/s?sentinel-pass=***&prefix=x");
        assert_eq!(
            without_passwords("redis+unix:///s?user=me&pass=secret"),
            "redis+unix:///s?user=me&pass=***"
        );
        assert_eq!(without_passwords("sureq://me:se:cr@t@h:1"), "sureq://me:***@h:1");
        for url in ["file:dir", "sureq://h:1"] {
            assert_eq!(without_passwords(url), url);
        }
    }

    #[cfg(feature = "redis")]
    #[test]
    fn errors_show_no_passwords() {
        let error = open("redis://me:secret@127.0.0.1:1").err().map(|error| error.to_string());
        assert!(error.is_some_and(|text| !text.contains("secret") && text.contains("me:***@")));
    }

    #[test]
    fn urls_name_a_place() {
        check("mem:", Some("memory"));
        for url in
            ["redis://localhost", "rediss://localhost", "redis-cluster://a:1,b:2", "rediss-sentinel://a/s"]
        {
            check(url, Some("redis"));
        }
        check("sureq://localhost", Some("server"));
        check("file:./sureq-data", Some("./sureq-data"));
        check("file:/var/lib/sureq", Some("/var/lib/sureq"));
        check("file:///var/lib/sureq", Some("/var/lib/sureq"));
        for bad in ["", "file:", "file://host/dir", "mem", "memory:", "redis:", "sureq:", "./sureq-data"] {
            check(bad, None);
        }
    }
}
