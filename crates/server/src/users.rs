//! The configured users: names, secrets and rights. No secret is kept in plain text: only the argon2id hash of a
//! password and the SHA-256 of a token are kept.

use std::fmt;
use std::sync::Arc;

use argon2::password_hash::phc::PasswordHash;
use argon2::password_hash::{PasswordHasher as _, PasswordVerifier as _};
use argon2::{Argon2, Params};
use sha2::{Digest as _, Sha256};
use subtle::{Choice, ConstantTimeEq as _};
use sureq_core::limits::{CREDENTIAL_BYTES_MAX, PASSWORD_MEMORY_BYTES_MAX};
use sureq_proto::verbs::{Credentials, Rights};

/// The user that a client means if it gives no name.
pub const DEFAULT_USER: &str = "default";

/// The prefix of a token's hash in a configuration file.
const TOKEN_PREFIX: &str = "sha256:";

/// The maximum number of passes over memory in the check of a password.
const PASSES_MAX: u32 = 16;

/// The reason why a user cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("user {name:?}: {why}")]
pub struct UserError {
    name: String,
    why: String,
}

pub struct User {
    rights: Rights,
    password: Option<Password>,
    tokens: Vec<TokenHash>,
}

/// The hash of a password, with all parameters that are needed to check one against it.
#[derive(Clone, Debug, PartialEq)]
struct Password(PasswordHash);

/// The hash of a token. A token is 256 random bits, so unlike a password it cannot be guessed from its hash. A fast
/// hash function is sufficient.
type TokenHash = [u8; 32];

impl User {
    /// A user with these rights, and the hashes of its password and its tokens as `sureq user` prints them. At least
    /// one of them is required.
    pub fn new(rights: Rights, password: Option<&str>, tokens: &[String]) -> Result<Self, UserError> {
        let wrong = |why: String| UserError { name: rights.user().to_owned(), why };
        if rights.user().is_empty() || rights.user().len() > CREDENTIAL_BYTES_MAX {
            return Err(wrong(format!("a name has 1 to {CREDENTIAL_BYTES_MAX} bytes")));
        }
        if password.is_none() && tokens.is_empty() {
            return Err(wrong("has neither a password nor a token; add one of them".to_owned()));
        }
        let password = password.map(Password::read).transpose().map_err(wrong)?;
        let tokens = tokens.iter().map(|text| read_token_hash(text)).collect::<Result<_, _>>();
        let tokens = tokens.map_err(wrong)?;
        Ok(Self { rights, password, tokens })
    }

    pub const fn rights(&self) -> &Rights {
        &self.rights
    }

    pub fn name(&self) -> &str {
        self.rights.user()
    }

    fn has_token(&self, hash: &TokenHash) -> bool {
        // Compare with all tokens, and all bytes of each, so that the time does not reveal how close a guess came.
        let found = self.tokens.iter().fold(Choice::from(0), |found, token| found | token.ct_eq(hash));
        found.into()
    }
}

impl fmt::Debug for User {
    /// Hashes are secret too and are not printed.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("User").field("rights", &self.rights).finish_non_exhaustive()
    }
}

/// All users of a server. If there are none, every client has all rights.
#[derive(Debug, Default)]
pub struct Users {
    list: Vec<Arc<User>>,
    /// Passwords for users that do not exist are checked against this dummy, so that the check takes equally long.
    nobody: Option<Password>,
}

impl Users {
    /// The names of the users must differ.
    pub fn new(list: Vec<User>) -> Result<Self, UserError> {
        for (n, user) in list.iter().enumerate() {
            if list[..n].iter().any(|other| other.name() == user.name()) {
                return Err(UserError {
                    name: user.name().to_owned(),
                    why: "is configured twice; remove one of them".to_owned(),
                });
            }
        }
        // The cost of a check depends on the parameters of the hash, which most likely are the same for all users.
        let nobody =
            list.iter().find_map(|user| user.password.clone()).or_else(|| Password::of_nobody().ok());
        Ok(Self { list: list.into_iter().map(Arc::new).collect(), nobody })
    }

    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    pub fn find(&self, name: &[u8]) -> Option<&Arc<User>> {
        self.list.iter().find(|user| user.name().as_bytes() == name)
    }

    /// The user with this token. If the client gives no name, all users are searched.
    pub(crate) fn by_token(&self, claim: &Claim) -> Option<&Arc<User>> {
        let hash = hash_token(&claim.secret);
        let is_meant = |user: &User| [DEFAULT_USER, user.name()].map(str::as_bytes).contains(&claim.name());
        self.list.iter().find(|user| is_meant(user) & user.has_token(&hash))
    }

    /// The user with this name and password. This takes tens of milliseconds and megabytes, also for a user that does
    /// not exist or has no password.
    pub(crate) fn by_password(&self, claim: &Claim) -> Option<Arc<User>> {
        let user = self.find(claim.name()).filter(|user| user.password.is_some());
        let password = user.and_then(|user| user.password.as_ref()).or(self.nobody.as_ref())?;
        let is_right = password.is(&claim.secret);
        user.filter(|_| is_right).cloned()
    }
}

/// The credentials of a login, kept while they are checked.
pub(crate) struct Claim {
    name: Box<[u8]>,
    secret: Box<[u8]>,
}

impl Claim {
    /// These credentials, or `None` if they are longer than those of any user.
    pub(crate) fn new(said: &Credentials<'_>) -> Option<Self> {
        let name = said.user.unwrap_or(DEFAULT_USER.as_bytes());
        let fits = name.len() <= CREDENTIAL_BYTES_MAX && said.password.len() <= CREDENTIAL_BYTES_MAX;
        fits.then(|| Self { name: name.into(), secret: said.password.into() })
    }

    pub(crate) const fn name(&self) -> &[u8] {
        &self.name
    }
}

impl Password {
    fn read(text: &str) -> Result<Self, String> {
        let hash = PasswordHash::new(text)
            .map_err(|error| format!("password is not a hash as `sureq user hash` prints it: {error}"))?;
        if hash.algorithm.as_str() != "argon2id" || hash.salt.is_none() || hash.hash.is_none() {
            return Err("password is not an argon2id hash with salt and output".to_owned());
        }
        let params =
            Params::try_from(&hash).map_err(|error| format!("unusable parameters of password: {error}"))?;
        let is_cheap =
            (params.m_cost() as usize) << 10 <= PASSWORD_MEMORY_BYTES_MAX && params.t_cost() <= PASSES_MAX;
        if !is_cheap {
            return Err(format!(
                "checking password would take {} KiB of memory and {} passes: at most {} and {PASSES_MAX} are allowed",
                params.m_cost(),
                params.t_cost(),
                PASSWORD_MEMORY_BYTES_MAX >> 10
            ));
        }
        Ok(Self(hash))
    }

    /// The dummy hash, which no known password matches and which costs as much to check as others do. It is a
    /// constant, because calculating a hash would leave every server with the megabytes of memory that this takes.
    fn of_nobody() -> Result<Self, String> {
        let (memory, passes, lanes) =
            (Params::DEFAULT_M_COST, Params::DEFAULT_T_COST, Params::DEFAULT_P_COST);
        let (salt, output) = ("A".repeat(22), "A".repeat(43));
        Self::read(&format!("$argon2id$v=19$m={memory},t={passes},p={lanes}${salt}${output}"))
    }

    fn is(&self, password: &[u8]) -> bool {
        Argon2::default().verify_password(password, &self.0).is_ok()
    }
}

/// The argon2id hash of a password, as a configuration holds it. `None` if the system has no random numbers for the
/// salt.
pub fn hash_password(password: &[u8]) -> Option<String> {
    let hash: PasswordHash = Argon2::default().hash_password(password).ok()?;
    Some(hash.to_string())
}

/// A new token. `None` if the system has no random numbers for it.
pub fn new_token() -> Option<String> {
    let mut bits = [0; 32];
    getrandom::fill(&mut bits).ok()?;
    Some(format!("sureq-{}", hex(&bits)))
}

fn hex(bytes: &[u8]) -> String {
    let digit = |n: u8| char::from_digit(n.into(), 16).expect("a half of a byte is one digit");
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
}

/// The hash of a token, as a configuration holds it.
pub fn token_line(token: &[u8]) -> String {
    format!("{TOKEN_PREFIX}{}", hex(&hash_token(token)))
}

fn hash_token(token: &[u8]) -> TokenHash {
    Sha256::digest(token).into()
}

fn read_token_hash(text: &str) -> Result<TokenHash, String> {
    let wrong = || {
        format!("tokens: {text:?} is not a line as `sureq user token` prints it: sha256: and 64 hex digits")
    };
    let digits =
        text.strip_prefix(TOKEN_PREFIX).filter(|hex| hex.len() == 64 && hex.is_ascii()).ok_or_else(wrong)?;
    let mut hash = TokenHash::default();
    for (byte, at) in hash.iter_mut().zip((0..64).step_by(2)) {
        *byte = u8::from_str_radix(&digits[at..at + 2], 16).map_err(|_| wrong())?;
    }
    Ok(hash)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};
    use sureq_proto::verbs::Role;

    /// Parameters that are cheap enough for tests; the secret is `open sesame`.
    fn cheap(secret: &str) -> String {
        let params = Params::new(8, 1, 1, None).expect("the least there is");
        let argon2 = Argon2::new(argon2::Algorithm::Argon2id, argon2::Version::V0x13, params);
        let hash: PasswordHash = argon2.hash_password(secret.as_bytes()).expect("it can be hashed");
        hash.to_string()
    }

    fn user(name: &str, password: Option<&str>, tokens: &[&str]) -> User {
        let tokens: Vec<String> = tokens.iter().map(|token| token_line(token.as_bytes())).collect();
        let rights = Rights::new(name).with(Role::Read, b"*");
        User::new(rights, password.map(cheap).as_deref(), &tokens).expect("it can be used")
    }

    fn users() -> Users {
        Users::new(vec![
            user("ann", Some("open sesame"), &["ann's token"]),
            user("bob", None, &["first", "second"]),
            user("default", Some("plain"), &[]),
        ])
        .expect("they can be used")
    }

    fn who(users: &Users, name: Option<&str>, secret: &str) -> Option<String> {
        let said = Credentials { user: name.map(str::as_bytes), password: secret.as_bytes() };
        let claim = Claim::new(&said)?;
        let user = users.by_token(&claim).cloned().or_else(|| users.by_password(&claim))?;
        Some(user.name().to_owned())
    }

    #[test]
    fn a_user_is_known_by_its_password_or_token() {
        let users = users();
        for (name, secret, expect) in [
            (Some("ann"), "open sesame", Some("ann")),
            (Some("ann"), "ann's token", Some("ann")),
            (Some("ann"), "open", None),
            (Some("ann"), "", None),
            (Some("ann"), "first", None),
            (Some("bob"), "first", Some("bob")),
            (Some("bob"), "second", Some("bob")),
            (Some("bob"), "open sesame", None),
            (Some("nobody"), "open sesame", None),
            (Some("nobody"), "first", None),
            (Some(""), "first", None),
            (None, "plain", Some("default")),
            (Some("default"), "plain", Some("default")),
            (None, "second", Some("bob")),
            (None, "open sesame", None),
        ] {
            assert_eq!(who(&users, name, secret).as_deref(), expect, "{name:?} {secret:?}");
        }
        let long = "x".repeat(CREDENTIAL_BYTES_MAX + 1);
        assert_eq!((who(&users, Some(&long), "x"), who(&users, Some("ann"), &long)), (None, None));
    }

    /// The minimum of some measurements: interference by other programs can only add to them.
    fn time_of(users: &Users, name: &str) -> Duration {
        let said = Credentials { user: Some(name.as_bytes()), password: b"wrong" };
        let claim = Claim::new(&said).expect("it is short");
        let measure = || {
            let began = Instant::now();
            assert!(users.by_password(&claim).is_none());
            began.elapsed()
        };
        (0..5).map(|_| measure()).min().expect("there are five")
    }

    #[test]
    fn checks_take_as_long_for_users_that_do_not_exist() {
        let hash = hash_password(b"open sesame").expect("it can be hashed");
        let ann = User::new(Rights::new("ann"), Some(&hash), &[]).expect("it can be used");
        let bob = || user("bob", None, &["first"]);
        let users = Users::new(vec![bob(), ann]).expect("they can be used");
        let without = Users::new(vec![bob()]).expect("they can be used");
        let known = time_of(&users, "ann");
        for (users, name) in
            [(&users, "bob"), (&users, "nobody"), (&users, ""), (&without, "bob"), (&without, "ann")]
        {
            let other = time_of(users, name);
            assert!(other > known / 4 && other < known * 4, "{name}: {other:?}, and not {known:?}");
        }
    }

    #[test]
    fn no_password_matches_the_dummy_hash() {
        assert!(Password::of_nobody().is_ok_and(|password| !password.is(b"")));
        let users = Users::new(vec![user("bob", None, &["first"])]).expect("they can be used");
        assert_eq!((who(&users, Some("bob"), ""), who(&users, Some("x"), "")), (None, None));
    }

    #[test]
    fn refuses_unusable_users_by_name() {
        let make = |name: &str, password: Option<&str>, tokens: &[&str]| {
            let tokens: Vec<String> = tokens.iter().map(|&token| token.to_owned()).collect();
            User::new(Rights::new(name), password, &tokens).map(drop).map_err(|error| error.to_string())
        };
        let salt_and_hash = "$AAAAAAAAAAAAAAAAAAAAAA$AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";
        let id = |params: &str| format!("$argon2id$v=19${params}{salt_and_hash}");
        assert_eq!(make("x", Some(&id("m=19456,t=2,p=1")), &[]), Ok(()));
        for (name, password, tokens, why) in [
            ("x", None, &[][..], "user \"x\": has neither a password nor a token"),
            ("", Some("x".to_owned()), &[], "a name has 1 to"),
            ("x", Some("secret".to_owned()), &[], "password is not a hash"),
            ("x", Some(id("m=19456,t=2,p=1").replace("2id", "2i")), &[], "password is not an argon2id hash"),
            ("x", Some("$argon2id$v=19$m=19456,t=2,p=1".to_owned()), &[], "with salt and output"),
            ("x", Some(id("m=4194304,t=2,p=1")), &[], "4194304 KiB of memory"),
            ("x", Some(id("m=19456,t=1000,p=1")), &[], "1000 passes"),
            ("x", Some(id("m=1,t=2,p=1")), &[], "unusable parameters of password"),
            ("x", None, &["secret"], "tokens: \"secret\" is not a line"),
            ("x", None, &["sha256:12"], "tokens: \"sha256:12\" is not a line"),
        ] {
            let said = make(name, password.as_deref(), tokens).expect_err(why);
            assert!(said.contains(why), "{said} says nothing of {why}");
        }
        let twice = Users::new(vec![user("ann", None, &["a"]), user("ann", None, &["b"])]);
        assert_eq!(
            twice.map(drop).map_err(|error| error.to_string()),
            Err("user \"ann\": is configured twice; remove one of them".to_owned())
        );
    }
}
