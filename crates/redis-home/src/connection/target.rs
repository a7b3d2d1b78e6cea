//! The target of a home, read from a URL: which servers, with which credentials, prefix and layout. `layout::keys`
//! names the keys.

use crate::layout::{Layout, LayoutOptions, Layouts, SharedLayout, WakeUp};
use redis::io::tcp::{TcpSettings, socket2::TcpKeepalive};
use redis::{
    Client, ClientTlsConfig, ConnectionAddr, ConnectionInfo, IntoConnectionInfo, ProtocolVersion, RedisError,
    TlsCertificates,
};
use std::time::Duration;
use sureq_slots::tag_of;

/// TCP keepalive: the first probe after this silence, the time between probes, and when the connection is given up.
const SILENT: Duration = Duration::from_secs(10);
const ASKED_AGAIN: Duration = Duration::from_secs(5);
const GIVEN_UP: Duration = Duration::from_secs(25);

const SENTINEL_PORT: u16 = 26_379;

/// The servers and keys of a home on Redis.
#[derive(Clone, Debug)]
pub struct Target {
    /// How to reach the servers.
    pub(crate) servers: Servers,
    pub(crate) prefix: String,
    /// Whether a reply is sent only after a replica has confirmed the change.
    pub(crate) is_replicated: bool,
    pub(crate) layout: SharedLayout,
}

/// The servers, and how to find the one to use.
#[derive(Clone, Debug)]
pub(crate) enum Servers {
    One(ConnectionInfo),
    /// Some servers of a cluster; they know the others.
    Cluster(Vec<ConnectionInfo>),
    Sentinel {
        sentinels: Vec<ConnectionInfo>,
        /// The name of the service in their configuration.
        service: String,
        /// How to reach the primary, apart from its address.
        primary: ConnectionInfo,
    },
}

/// Why a URL is invalid.
#[derive(Debug, thiserror::Error)]
pub enum BadTarget {
    /// The scheme or address is wrong.
    #[error(
        "the URL names no Redis: write redis://[user:password@]host[:port][/database], \
         redis-cluster://host:port[,host:port…], redis-sentinel://host:port[,host:port…]/service[/database], \
         or rediss… for TLS: {0}"
    )]
    Url(RedisError),
    /// An option does not exist, or not here.
    #[error(
        "there is no option {name:?}: known are layout, prefix, durability; with rediss… ca, cert and key; with \
         redis-sentinel sentinel-user and sentinel-pass{of_layouts}"
    )]
    Option {
        name: String,
        /// The options of layouts, as a continuation of the list.
        of_layouts: &'static str,
    },
    /// The value of `durability` is unknown.
    #[error("unknown durability {durability:?}: write durability=replicated, or omit it")]
    Durability { durability: String },
    #[error("there is no layout {layout:?}: known are sureq{known}")]
    Layout {
        layout: String,
        /// The other layouts, as a continuation of the list.
        known: &'static str,
    },
    /// The lease is not a number of milliseconds.
    #[error("invalid lease {lease:?}: write milliseconds, at least 1")]
    Lease { lease: String },
    /// A time is not a number of seconds.
    #[error("invalid time {name}={text}: write whole seconds{}", if *least == 0 { "" } else { ", at least 1" })]
    Seconds {
        name: String,
        text: String,
        /// The smallest valid value.
        least: u64,
    },
    /// In a cluster, a waiting pop would not notice that its queue has moved to another server.
    #[error(
        "layout {layout} does not work in a cluster, where only the server that owns a key reports its changes; \
         use one server, or sentinels"
    )]
    TrackedInCluster { layout: &'static str },
    /// The prefix has no slot tag, and the layout needs one in a cluster.
    #[error(
        "the prefix {prefix:?} has no slot tag, and in a cluster the keys of this layout must share a slot: write \
         prefix={{jobs}}: or similar, and configure other clients in the same way"
    )]
    NoTag { prefix: String },
    /// The prefix has an unclosed or empty pair of braces, so that Redis would compute slots from other bytes.
    #[error("the prefix {prefix:?} has an unclosed or empty pair of braces: write {{jobs}}: or no braces")]
    HalfTag { prefix: String },
    /// A cluster has no databases.
    #[error("a cluster has no databases: remove the path after the servers")]
    Database,
    /// The name of the service is missing.
    #[error("the URL names no service for the sentinels: write redis-sentinel://host:port/service")]
    Service,
    /// A certificate or key cannot be read.
    #[error("cannot read {path}: {source}")]
    File { path: String, source: std::io::Error },
    /// A client certificate without its key, or the other way round.
    #[error("a client certificate needs its key: write both cert=FILE and key=FILE")]
    HalfCertificate,
}

/// The options of a URL.
#[derive(Default)]
struct Written<'a> {
    layout: Option<&'a str>,
    prefix: Option<&'a str>,
    of_layout: LayoutOptions<'a>,
    is_replicated: bool,
    tls: [Option<&'a str>; 3],
    sentinel: [Option<&'a str>; 2],
    /// The options that belong to the address of a Unix socket.
    of_socket: String,
}

impl<'a> Written<'a> {
    fn read(scheme: &str, options: &'a str) -> Result<Self, BadTarget> {
        let mut all = Self::default();
        let is_tls = scheme.starts_with("rediss");
        for option in options.split('&').filter(|option| !option.is_empty()) {
            let (name, value) = option.split_once('=').unwrap_or((option, ""));
            match name {
                "prefix" => all.prefix = Some(value),
                "layout" => all.layout = Some(value),
                "durability" if value == "replicated" => all.is_replicated = true,
                "durability" => return Err(BadTarget::Durability { durability: value.to_owned() }),
                "ca" if is_tls => all.tls[0] = Some(value),
                "cert" if is_tls => all.tls[1] = Some(value),
                "key" if is_tls => all.tls[2] = Some(value),
                "sentinel-user" if scheme.ends_with("sentinel") => all.sentinel[0] = Some(value),
                "sentinel-pass" if scheme.ends_with("sentinel") => all.sentinel[1] = Some(value),
                "user" | "pass" | "db" if scheme.ends_with("unix") => all.of_socket.extend([option, "&"]),
                _ => all.of_layout.put(name, value),
            }
        }
        Ok(all)
    }

    fn certificates(&self) -> Result<Option<TlsCertificates>, BadTarget> {
        let read = |path: &str| {
            std::fs::read(path).map_err(|source| BadTarget::File { path: path.to_owned(), source })
        };
        let [ca, cert, key] = self.tls;
        let client_tls = match (cert, key) {
            (None, None) => None,
            (Some(cert), Some(key)) => {
                Some(ClientTlsConfig { client_cert: read(cert)?, client_key: read(key)? })
            }
            _ => return Err(BadTarget::HalfCertificate),
        };
        let root_cert = ca.map(read).transpose()?;
        Ok((root_cert.is_some() || client_tls.is_some()).then_some(TlsCertificates { client_tls, root_cert }))
    }
}

impl Target {
    /// Reads `redis://…?option=value&…`, with sureq's own layout alone.
    pub fn parse(url: &str) -> Result<Self, BadTarget> {
        Self::parse_with(url, &Layouts::OWN)
    }

    /// Reads `redis://…?option=value&…`, with these layouts besides sureq's own.
    pub fn parse_with(url: &str, layouts: &Layouts) -> Result<Self, BadTarget> {
        let (address, options) = url.split_once('?').unwrap_or((url, ""));
        let (scheme, rest) = address.split_once("://").unwrap_or(("", address));
        let written = Written::read(scheme, options)?;
        let layout = layouts.layout(written.layout.unwrap_or("sureq"), written.of_layout.clone())?;
        let prefix = written.prefix.unwrap_or_else(|| layout.prefix()).to_owned();
        let certificates = written.certificates()?;
        let info = |address: String| info(address, certificates.as_ref());
        let (people, rest) = rest.rsplit_once('@').map_or(("", rest), |(people, rest)| (people, rest));
        let at = if people.is_empty() { "" } else { "@" };
        let (hosts, path) = rest.split_once('/').unwrap_or((rest, ""));
        let plain = if scheme.starts_with("rediss") { "rediss" } else { "redis" };
        let servers = match scheme {
            "redis-cluster" | "rediss-cluster" => {
                if !path.is_empty() {
                    return Err(BadTarget::Database);
                }
                if layout.wake_up() == WakeUp::Watched {
                    return Err(BadTarget::TrackedInCluster { layout: layout.name() });
                }
                check_tag(&prefix, &*layout)?;
                let each = hosts.split(',').map(|host| info(format!("{plain}://{people}{at}{host}")));
                Servers::Cluster(each.collect::<Result<_, _>>()?)
            }
            "redis-sentinel" | "rediss-sentinel" => {
                let (service, database) = path.split_once('/').unwrap_or((path, ""));
                if service.is_empty() {
                    return Err(BadTarget::Service);
                }
                let each = hosts.split(',').map(|host| {
                    let asked = info(format!("{plain}://{}", with_port(host, SENTINEL_PORT)))?;
                    Ok(as_user(asked, written.sentinel))
                });
                Servers::Sentinel {
                    sentinels: each.collect::<Result<_, BadTarget>>()?,
                    service: service.to_owned(),
                    primary: info(format!("{plain}://{people}{at}primary/{database}"))?,
                }
            }
            _ => Servers::One(info(format!("{address}?{}", written.of_socket))?),
        };
        Ok(Self { servers, prefix, layout, is_replicated: written.is_replicated })
    }

    /// The address, for messages.
    pub(crate) fn address(&self) -> String {
        match &self.servers {
            Servers::One(one) => one.addr().to_string(),
            Servers::Cluster(some) => listed(some),
            Servers::Sentinel { sentinels, service, .. } => {
                format!("{service:?}, which the sentinels at {} watch", listed(sentinels))
            }
        }
    }

    pub fn layout(&self) -> &dyn Layout {
        &*self.layout
    }

    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    pub const fn is_cluster(&self) -> bool {
        matches!(self.servers, Servers::Cluster(_))
    }
}

fn listed(servers: &[ConnectionInfo]) -> String {
    servers.iter().map(|server| server.addr().to_string()).collect::<Vec<_>>().join(", ")
}

/// Checks the prefix of a cluster: its braces must be complete, and a layout whose keys share a slot needs a slot
/// tag.
fn check_tag(prefix: &str, layout: &dyn Layout) -> Result<(), BadTarget> {
    match tag_of(prefix.as_bytes()) {
        Some(_) => Ok(()),
        None if prefix.contains('{') => Err(BadTarget::HalfTag { prefix: prefix.to_owned() }),
        None if layout.spans_slots() => Ok(()),
        None => Err(BadTarget::NoTag { prefix: prefix.to_owned() }),
    }
}

fn with_port(host: &str, port: u16) -> String {
    let has_port = host.rsplit_once(':').is_some_and(|(_, port)| !port.contains(']'));
    if has_port { host.to_owned() } else { format!("{host}:{port}") }
}

fn as_user(info: ConnectionInfo, [user, password]: [Option<&str>; 2]) -> ConnectionInfo {
    let mut settings = info.redis_settings().clone();
    if let Some(user) = user {
        settings = settings.set_username(user);
    }
    if let Some(password) = password {
        settings = settings.set_password(password);
    }
    info.set_redis_settings(settings)
}

/// The connection settings for a server.
fn info(address: String, certificates: Option<&TlsCertificates>) -> Result<ConnectionInfo, BadTarget> {
    let mut info = address.into_connection_info().map_err(BadTarget::Url)?;
    if let ConnectionAddr::TcpTls { .. } = info.addr() {
        // An error means that a provider is installed already, which will do.
        let _ = rustls::crypto::ring::default_provider().install_default();
        if let Some(certificates) = certificates {
            let client = Client::build_with_tls(info, certificates.clone()).map_err(BadTarget::Url)?;
            info = client.get_connection_info().clone();
        }
    }
    let settings = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
    let keepalive = TcpKeepalive::new().with_time(SILENT).with_interval(ASKED_AGAIN).with_retries(3);
    let tcp = TcpSettings::default().set_nodelay(true).set_keepalive(keepalive).set_user_timeout(GIVEN_UP);
    Ok(info.set_redis_settings(settings).set_tcp_settings(tcp))
}

/// The same settings for another server.
pub(crate) fn elsewhere(info: &ConnectionInfo, host: &str, port: u16) -> ConnectionInfo {
    let host = host.to_owned();
    let address = match info.addr() {
        ConnectionAddr::TcpTls { insecure, tls_params, .. } => {
            ConnectionAddr::TcpTls { host, port, insecure: *insecure, tls_params: tls_params.clone() }
        }
        _ => ConnectionAddr::Tcp(host, port),
    };
    info.clone().set_addr(address)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(url: &str) -> String {
        Target::parse(url).expect_err("the URL is invalid").to_string()
    }

    #[test]
    fn urls_name_servers_and_options() {
        let target = Target::parse("redis://127.0.0.1:7000/3?prefix=jobs:&layout=sureq").unwrap();
        assert_eq!(target.prefix, "jobs:");
        assert!(Target::parse("redis://h").is_ok_and(|target| target.prefix == "sureq:"));
        assert!(matches!(Target::parse("redis://h?colour=red"), Err(BadTarget::Option { .. })));
        assert!(matches!(Target::parse("redis://h?layout=odd"), Err(BadTarget::Layout { .. })));
        assert!(matches!(Target::parse("redis://h?durability=some"), Err(BadTarget::Durability { .. })));
        assert!(Target::parse("redis://h?durability=replicated").unwrap().is_replicated);
        assert!(matches!(Target::parse("http://h"), Err(BadTarget::Url(_))));
        assert!(matches!(Target::parse("redis://h?lease=5"), Err(BadTarget::Option { .. })));
    }

    #[test]
    fn a_cluster_is_several_servers_with_the_same_user() {
        let target = Target::parse("redis-cluster://me:se%40cret@a:1,b:2,c").unwrap();
        let Servers::Cluster(servers) = &target.servers else { panic!("{target:?}") };
        assert_eq!(target.address(), "a:1, b:2, c:6379");
        for server in servers {
            assert_eq!(server.redis_settings().username(), Some("me"));
            assert_eq!(server.redis_settings().password(), Some("se@cret"));
        }
        assert!(matches!(Target::parse("redis-cluster://a/1"), Err(BadTarget::Database)));
        assert!(refused("redis-cluster://a?prefix=a{b").contains("unclosed"));
        assert!(refused("redis-cluster://a?prefix=a{}").contains("empty pair of braces"));
        assert!(Target::parse("redis-cluster://a?prefix={jobs}:").is_ok());
    }

    #[test]
    fn a_sentinel_url_names_a_service() {
        let url = "redis-sentinel://me:secret@a,b:2/mymaster/3?sentinel-pass=other";
        let Servers::Sentinel { sentinels, service, primary } = Target::parse(url).unwrap().servers else {
            panic!("{url}");
        };
        assert_eq!((listed(&sentinels), service), ("a:26379, b:2".to_owned(), "mymaster".to_owned()));
        assert_eq!(sentinels[0].redis_settings().password(), Some("other"));
        assert_eq!((primary.redis_settings().db(), primary.redis_settings().username()), (3, Some("me")));
        assert!(matches!(Target::parse("redis-sentinel://a"), Err(BadTarget::Service)));
    }

    #[test]
    fn certificates_need_tls_and_must_exist() {
        assert!(matches!(Target::parse("redis://h?ca=x"), Err(BadTarget::Option { .. })));
        assert!(matches!(Target::parse("rediss://h?ca=/nowhere/ca"), Err(BadTarget::File { .. })));
        assert!(matches!(Target::parse("rediss://h?cert=/nowhere/c"), Err(BadTarget::HalfCertificate)));
        let target = Target::parse("rediss-cluster://h:1").unwrap();
        let Servers::Cluster(servers) = target.servers else { panic!("it is a cluster") };
        let other = elsewhere(&servers[0], "i", 2);
        assert!(matches!(other.addr(), ConnectionAddr::TcpTls { host, port: 2, .. } if host == "i"));
    }
}
