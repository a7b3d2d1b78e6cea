//! The TOML file of `--users`, and the `[[user]]` tables of the settings file.

use std::fs;
use std::path::Path;

use serde::Deserialize;
use sureq_server::users::{User, Users};
use sureq_server::{Rights, Role};

/// The file of `--users`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    user: Vec<UserEntry>,
}

/// A `[[user]]` table.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct UserEntry {
    name: String,
    password: Option<String>,
    #[serde(default)]
    tokens: Vec<String>,
    #[serde(default)]
    allow: Allow,
}

/// The queues of each role, as patterns.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Allow {
    read: Vec<String>,
    produce: Vec<String>,
    consume: Vec<String>,
    admin: Vec<String>,
}

/// Reads the file of `--users`. A file without users is an error: it would open the server to everyone.
pub(crate) fn read(file: &Path) -> Result<Vec<UserEntry>, String> {
    let path = file.display();
    let text = fs::read_to_string(file).map_err(|error| format!("--users: cannot read {path}: {error}"))?;
    let file: File = toml::from_str(&text).map_err(|error| format!("--users: {path}: {error}"))?;
    if file.user.is_empty() {
        return Err(format!("--users: {path} has no [[user]]"));
    }
    Ok(file.user)
}

/// Builds the users of a server; an entry with an invalid name, hash or pattern is an error.
pub(crate) fn users(entries: &[UserEntry]) -> Result<Users, String> {
    let list = entries.iter().map(UserEntry::user).collect::<Result<Vec<User>, String>>()?;
    Users::new(list).map_err(|error| error.to_string())
}

impl UserEntry {
    fn user(&self) -> Result<User, String> {
        let Allow { read, produce, consume, admin } = &self.allow;
        let mut rights = Rights::new(&self.name);
        for (role, patterns) in
            [(Role::Read, read), (Role::Produce, produce), (Role::Consume, consume), (Role::Admin, admin)]
        {
            for pattern in patterns {
                rights = rights.with(role, pattern.as_bytes());
            }
        }
        User::new(rights, self.password.as_deref(), &self.tokens).map_err(|error| error.to_string())
    }
}
