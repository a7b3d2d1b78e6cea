//! Users as a file names them, and what becomes of them. The words of the file are this module's alone.

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
    user: Vec<Person>,
}

/// A `[[user]]` table.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Person {
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

/// Reads the file of `--users`. One that names nobody is a mistake: it would open the server to everyone.
pub(crate) fn read(path: &Path) -> Result<Vec<Person>, String> {
    let shown = path.display();
    let text = fs::read_to_string(path).map_err(|error| format!("--users: cannot read {shown}: {error}"))?;
    let file: File = toml::from_str(&text).map_err(|error| format!("--users: {shown}: {error}"))?;
    if file.user.is_empty() {
        return Err(format!("--users: {shown} has no [[user]]"));
    }
    Ok(file.user)
}

/// The users that a server knows.
pub(crate) fn users(people: &[Person]) -> Result<Users, String> {
    let list = people.iter().map(Person::user).collect::<Result<Vec<User>, String>>()?;
    Users::new(list).map_err(|error| error.to_string())
}

impl Person {
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
