//! The server and the credentials that a URL names.

use std::fmt;

/// The port of a URL without one.
const PORT: u16 = 7379;

/// A server, and the credentials for it.
#[derive(Clone, PartialEq, Eq)]
pub struct Target {
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) login: Option<Login>,
}

/// The credentials of a client.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Login {
    pub(crate) user: Vec<u8>,
    pub(crate) password: Vec<u8>,
}

/// Why a `sureq://` URL is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadTarget {
    #[error("the host is missing: write sureq://[user:password@]host[:port]")]
    NoHost,
    /// The port is not a number from 1 to 65535.
    #[error("the port must be a number from 1 to 65535")]
    Port,
    /// There is a path behind the port.
    #[error("a server URL has no path: remove everything behind the port")]
    Path,
    /// There are options behind the port.
    #[error("a server URL has no options: remove everything behind the port")]
    Options,
    /// There is a user without a password.
    #[error("a user needs a password: write sureq://user:password@host")]
    NoPassword,
    /// A `%` is not followed by two hexadecimal digits.
    #[error("a % must be followed by two hexadecimal digits: write %25 for the character %")]
    Escape,
}

impl Target {
    pub const SCHEME: &str = "sureq://";

    /// Parses `sureq://[user:password@]host[:port]`.
    pub fn parse(url: &str) -> Result<Self, BadTarget> {
        let rest = url.strip_prefix(Self::SCHEME).ok_or(BadTarget::NoHost)?;
        let (authority, behind) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
        match behind {
            "" | "/" => {}
            path if path.starts_with('/') && !path.contains('?') => return Err(BadTarget::Path),
            _ => return Err(BadTarget::Options),
        }
        let (login, address) = match authority.rsplit_once('@') {
            Some((login, address)) => (Some(login_of(login)?), address),
            None => (None, authority),
        };
        let (host, port) = split_address(address)?;
        let port = match port {
            None => PORT,
            Some(port) => port.parse().ok().filter(|&port| port > 0).ok_or(BadTarget::Port)?,
        };
        let host = String::from_utf8(unescape(host)?).map_err(|_| BadTarget::NoHost)?;
        if host.is_empty() { Err(BadTarget::NoHost) } else { Ok(Self { host, port, login }) }
    }
}

/// `host:port`
impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { host, port, .. } = self;
        if host.contains(':') { write!(f, "[{host}]:{port}") } else { write!(f, "{host}:{port}") }
    }
}

/// Leaves out the credentials, so that they never reach a log.
impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Target({self})")
    }
}

fn login_of(text: &str) -> Result<Login, BadTarget> {
    let (user, password) = text.split_once(':').ok_or(BadTarget::NoPassword)?;
    let user = if user.is_empty() { "default" } else { user };
    Ok(Login { user: unescape(user)?, password: unescape(password)? })
}

/// Splits host and port. An IPv6 address is in brackets.
fn split_address(address: &str) -> Result<(&str, Option<&str>), BadTarget> {
    if let Some(rest) = address.strip_prefix('[') {
        let (host, behind) = rest.split_once(']').ok_or(BadTarget::NoHost)?;
        return match behind.strip_prefix(':') {
            Some(port) => Ok((host, Some(port))),
            None if behind.is_empty() => Ok((host, None)),
            None => Err(BadTarget::Port),
        };
    }
    Ok(match address.split_once(':') {
        Some((host, port)) => (host, Some(port)),
        None => (address, None),
    })
}

fn unescape(text: &str) -> Result<Vec<u8>, BadTarget> {
    let (mut bytes, mut rest) = (Vec::new(), text.as_bytes());
    while let Some((&first, behind)) = rest.split_first() {
        if first != b'%' {
            bytes.push(first);
            rest = behind;
            continue;
        }
        let (digits, behind) = behind.split_at_checked(2).ok_or(BadTarget::Escape)?;
        let value = |c: u8| char::from(c).to_digit(16).ok_or(BadTarget::Escape);
        bytes.push((value(digits[0])? << 4 | value(digits[1])?) as u8);
        rest = behind;
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(url: &str, address: &str, login: Option<(&str, &str)>) {
        let target = Target::parse(url).unwrap();
        assert_eq!(target.to_string(), address, "{url}");
        let login = login.map(|(user, password)| Login { user: user.into(), password: password.into() });
        assert!(target.login == login, "{url}");
    }

    #[test]
    fn parses_host_port_and_credentials() {
        check("sureq://localhost", "localhost:7379", None);
        check("sureq://127.0.0.1:80/", "127.0.0.1:80", None);
        check("sureq://[::1]", "[::1]:7379", None);
        check("sureq://[::1]:80", "[::1]:80", None);
        check("sureq://me:secret@h:1", "h:1", Some(("me", "secret")));
        check("sureq://:secret@h", "h:7379", Some(("default", "secret")));
        check("sureq://a%40b:p%3a%25@h", "h:7379", Some(("a@b", "p:%")));
        check("sureq://a:b@c@h", "h:7379", Some(("a", "b@c")));
    }

    #[test]
    fn names_the_error_of_an_invalid_url() {
        for (url, bad) in [
            ("sureq://", BadTarget::NoHost),
            ("sureq://:80", BadTarget::NoHost),
            ("sureq://[::1", BadTarget::NoHost),
            ("sureq://h:0", BadTarget::Port),
            ("sureq://h:65536", BadTarget::Port),
            ("sureq://::1", BadTarget::Port),
            ("sureq://[::1]80", BadTarget::Port),
            ("sureq://h/3", BadTarget::Path),
            ("sureq://h?tls=1", BadTarget::Options),
            ("sureq://h/?tls=1", BadTarget::Options),
            ("sureq://me@h", BadTarget::NoPassword),
            ("sureq://a:%4@h", BadTarget::Escape),
            ("sureq://a:%zz@h", BadTarget::Escape),
        ] {
            assert_eq!(Target::parse(url), Err(bad), "{url}");
        }
    }

    #[test]
    fn passwords_are_not_shown() {
        assert!(!format!("{:?}", Target::parse("sureq://me:secret@h:1")).contains("secret"));
    }
}
