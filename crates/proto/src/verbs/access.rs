//! Authorization: roles on patterns of queue names, and the roles that commands require.
//!
//! The role that a command requires is declared in its row of the table. The queues are taken from the parsed
//! command, so that no option and no order of words can name a queue that is not checked. A command without queues
//! requires its role on all queues.

use std::fmt::Write as _;

use super::error::{QUOTED_BYTES_MAX, UsageError, quoted};
use super::request::{By, Request, SessionCommand};
use super::{TABLE, find};
use crate::channel;
use sureq_core::broker::glob_matches;
use sureq_core::command::{Command, Worker};
use sureq_core::settings::Change;

/// A permission on queues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Look at tasks, counts and settings.
    Read,
    /// Add tasks, and cancel them.
    Produce,
    /// Pop tasks, finish and return them.
    Consume,
    /// Everything, including to remove tasks and queues, pause queues and change their settings.
    Admin,
}

impl Role {
    pub const ALL: [Self; 4] = [Self::Read, Self::Produce, Self::Consume, Self::Admin];

    /// The name in configuration files.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Produce => "produce",
            Self::Consume => "consume",
            Self::Admin => "admin",
        }
    }
}

/// The rights of one user.
///
/// ```
/// use sureq_core::command::{Command, ConnId};
/// use sureq_proto::verbs::{Caller, Rights, Role, parse};
///
/// let rights = Rights::new("mailer").with(Role::Produce, b"emails*");
/// let push = |queue: &'static [u8]| {
///     let argv = [b"RQ.PUSH", queue, b"hello"];
///     rights.check(argv[0], &parse(&argv, Caller { conn: ConnId(1) }).unwrap())
/// };
/// assert_eq!(push(b"emails:urgent"), Ok(()));
/// let no = "NOPERM user 'mailer' may not run 'rq.push' on 'invoices': that needs the role produce there";
/// assert_eq!(push(b"invoices").unwrap_err().as_str(), no);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rights {
    user: Box<str>,
    /// The queues of each role, as glob patterns.
    patterns: [Vec<Box<[u8]>>; Role::ALL.len()],
}

impl Rights {
    /// A user without any role.
    pub fn new(user: &str) -> Self {
        Self { user: user.into(), patterns: Default::default() }
    }

    /// Grants the role on all queues whose names match this pattern.
    #[must_use]
    pub fn with(mut self, role: Role, pattern: &[u8]) -> Self {
        self.patterns[role as usize].push(pattern.into());
        self
    }

    pub fn user(&self) -> &str {
        &self.user
    }

    /// Whether the user has the role on this queue.
    pub fn has(&self, role: Role, queue: &[u8]) -> bool {
        self.of(role).any(|pattern| glob_matches(pattern, queue))
    }

    /// Whether the user has the role on every queue, existing or future.
    pub fn has_everywhere(&self, role: Role) -> bool {
        self.has_for_pattern(role, b"*")
    }

    /// Whether the user has the role on every queue that this pattern matches. Whether one pattern covers another is
    /// not computed: the role must have been granted on exactly this pattern, or on `*`.
    fn has_for_pattern(&self, role: Role, wanted: &[u8]) -> bool {
        self.of(role).any(|pattern| pattern == b"*" || pattern == wanted)
    }

    fn has_somewhere(&self, role: Role) -> bool {
        self.of(role).next().is_some()
    }

    /// The patterns on which the user has the role, directly or through the role admin.
    fn of(&self, role: Role) -> impl Iterator<Item = &[u8]> {
        let own = &self.patterns[role as usize];
        let admin = if role == Role::Admin { &[][..] } else { &self.patterns[Role::Admin as usize] };
        own.iter().chain(admin).map(|pattern| &**pattern)
    }

    /// Refuses a command of which only the first words have arrived, if these are enough to refuse it.
    pub fn check_beginning<'w>(&self, mut words: impl Iterator<Item = &'w [u8]>) -> Result<(), UsageError> {
        // An unknown command is refused once it is complete, because the error quotes its arguments.
        let Some(row) = words.next().and_then(find) else { return Ok(()) };
        let Some(role) = row.role else { return Ok(()) };
        let asked = Asked { rights: self, name: row.name, role };
        match words.next() {
            Some(key) if row.keys().first == 1 => asked.on(key),
            _ => asked.somewhere(),
        }
    }

    /// Refuses a command that the user has no permission for. `name` is the first word of the command.
    pub fn check(&self, name: &[u8], request: &Request<'_>) -> Result<(), UsageError> {
        let Some(row) = find(name) else { return Ok(()) };
        let Some(role) = row.role else { return Ok(()) };
        let asked = Asked { rights: self, name: row.name, role };
        match request {
            Request::Home { command, .. } => asked.check(command),
            Request::Session(SessionCommand::Subscribe(by, names)) => {
                names.iter().try_for_each(|name| asked.listen(*by, name))
            }
            Request::Session(_) => asked.somewhere(),
        }
    }
}

/// Whether a command may be sent before authentication.
pub fn needs_no_user(name: &[u8]) -> bool {
    find(name).is_some_and(|row| row.flags.contains(&"no_auth"))
}

/// The error for a client that has not authenticated.
pub const NO_AUTH: UsageError = UsageError::text("NOAUTH Authentication required.");

/// The queues that a command names.
pub fn queues_of<'c, 'a>(command: &'c Command<'a>) -> impl Iterator<Item = &'a [u8]> + use<'c, 'a> {
    command.queue().into_iter().chain(command.queues().iter().copied())
}

/// The role that a command requires, and the user that sent it.
#[derive(Clone, Copy)]
struct Asked<'r> {
    rights: &'r Rights,
    name: &'static str,
    role: Role,
}

impl Asked<'_> {
    fn check(self, command: &Command<'_>) -> Result<(), UsageError> {
        match *command {
            Command::Queues { pattern, .. } => return self.on_pattern(pattern.unwrap_or(b"*")),
            Command::Size => return self.on_pattern(b"*"),
            // Workers are not tied to a queue, so the role on any queue is enough.
            Command::Worker(
                Worker::Start { .. } | Worker::Beat(_) | Worker::Stop(_) | Worker::Fail { .. } | Worker::List,
            ) => return self.somewhere(),
            _ => {}
        }
        let mut queues = queues_of(command).peekable();
        if queues.peek().is_none() {
            return self.on_pattern(b"*");
        }
        queues.try_for_each(|queue| self.on(queue))?;
        if let Command::Config { changes, .. } = command {
            // Naming a dead-letter queue makes tasks move there, which requires the role to add them.
            let produces = Self { role: Role::Produce, ..self };
            return changes.iter().try_for_each(|change| match change {
                Change::DeadLetter(target) if !target.is_empty() => produces.on(target),
                _ => Ok(()),
            });
        }
        Ok(())
    }

    /// A channel requires the role on its queue, a pattern on all queues that it may match.
    fn listen(self, by: By, name: &[u8]) -> Result<(), UsageError> {
        match by {
            By::Channel => channel::read(name).map_or(Ok(()), |(_, queue)| self.on(queue)),
            By::Pattern => self.on_pattern(channel::read(name).map_or(b"*", |(_, queues)| queues)),
        }
    }

    fn on(self, queue: &[u8]) -> Result<(), UsageError> {
        if self.rights.has(self.role, queue) { Ok(()) } else { Err(self.refused(Some(queue))) }
    }

    fn on_pattern(self, pattern: &[u8]) -> Result<(), UsageError> {
        if self.rights.has_for_pattern(self.role, pattern) {
            Ok(())
        } else {
            Err(self.refused(Some(pattern)))
        }
    }

    fn somewhere(self) -> Result<(), UsageError> {
        if self.rights.has_somewhere(self.role) { Ok(()) } else { Err(self.refused(None)) }
    }

    #[cold]
    fn refused(self, queue: Option<&[u8]>) -> UsageError {
        let Self { rights, name, role } = self;
        let (user, name) = (quoted(rights.user.as_bytes(), QUOTED_BYTES_MAX), name.to_ascii_lowercase());
        let role = role.name();
        UsageError::new(match queue {
            Some(queue) => {
                let queue = quoted(queue, QUOTED_BYTES_MAX);
                format!(
                    "NOPERM user '{user}' may not run '{name}' on '{queue}': that needs the role {role} there"
                )
            }
            None => {
                format!("NOPERM user '{user}' may not run '{name}': that needs the role {role} on some queue")
            }
        })
    }
}

/// The table of required roles in docs/operate/users.md.
pub fn roles_markdown() -> String {
    let mut text = String::from("| needs | commands |\n|---|---|\n");
    let mut line = |needs: &str, wanted: &dyn Fn(&super::Row) -> bool| {
        let names: Vec<String> =
            TABLE.iter().filter(|row| wanted(row)).map(|row| format!("`{}`", row.name)).collect();
        // Writing to a `String` does not fail.
        let _ = writeln!(text, "| {needs} | {} |", names.join(", "));
    };
    for role in Role::ALL {
        line(&format!("`{}`", role.name()), &|row| row.role == Some(role));
    }
    line("a user, whatever its roles", &|row| row.role.is_none() && !needs_no_user(row.name.as_bytes()));
    line("nothing", &|row| needs_no_user(row.name.as_bytes()));
    text
}

#[cfg(test)]
mod tests {
    use super::super::{Caller, Group, parse};
    use super::*;
    use sureq_core::command::ConnId;

    fn words(line: &str) -> Vec<&[u8]> {
        line.split(' ').map(str::as_bytes).collect()
    }

    fn allows(rights: &Rights, line: &str) -> bool {
        let argv = words(line);
        let request = parse(&argv, Caller { conn: ConnId(1) }).unwrap_or_else(|no| panic!("{line}: {no}"));
        rights.check(argv[0], &request).is_ok()
    }

    fn check(rights: &Rights, allowed: &[&str], refused: &[&str]) {
        for line in allowed {
            assert!(allows(rights, line), "{line} is refused");
            assert_eq!(rights.check_beginning(words(line).into_iter()), Ok(()), "{line} is refused early");
        }
        for line in refused {
            assert!(!allows(rights, line), "{line} is allowed");
        }
    }

    #[test]
    fn each_role_allows_its_commands_on_its_queues_alone() {
        let lines = |queue: &str| {
            [
                vec![format!("RQ.INFO {queue}"), format!("RQ.INSPECT {queue} 0 1"), format!("TYPE {queue}")],
                vec![
                    format!("RQ.PUSH {queue} x"),
                    format!("RQ.ADD {queue} x NAME n"),
                    format!("RQ.CANCEL {queue} PAYLOAD x"),
                ],
                vec![
                    format!("RQ.POP {queue}"),
                    format!("RQ.ACK {queue} 1-1"),
                    format!("RQ.RECOVER {queue} 1 0"),
                ],
                vec![format!("DEL {queue}"), format!("UNLINK {queue}")],
            ]
        };
        for (n, role) in Role::ALL.into_iter().enumerate() {
            let rights = Rights::new("u").with(role, b"mail*");
            for (m, lines) in lines("mails").into_iter().enumerate() {
                let may = n == m || role == Role::Admin;
                assert!(lines.iter().all(|line| allows(&rights, line) == may), "{role:?}: {lines:?}");
            }
            for line in lines("email").concat() {
                assert!(!allows(&rights, &line), "{role:?}: {line}");
            }
        }
    }

    #[test]
    fn a_command_needs_the_role_on_each_of_its_queues() {
        let rights =
            Rights::new("u").with(Role::Consume, b"a").with(Role::Consume, b"b[0-9]").with(Role::Read, b"a");
        check(
            &rights,
            &["RQ.POP a b1", "RQ.POP COUNT 2 BLOCK 5 CONN a", "EXISTS a a", "PING", "INFO", "CLIENT ID"],
            &[
                "RQ.POP a c",
                "RQ.POP c a",
                "RQ.POP COUNT 2 BLOCK 5 CONN c",
                "RQ.POP 3 b",
                "EXISTS a b1",
                "RQ.PUSH a x",
            ],
        );
    }

    #[test]
    fn the_role_read_allows_subscriptions() {
        let rights = Rights::new("u").with(Role::Read, b"a").with(Role::Read, b"b*");
        check(
            &rights,
            &[
                "SUBSCRIBE sureq:work:a sureq:done:b1",
                "SUBSCRIBE news",
                "PSUBSCRIBE sureq:cancel:b*",
                "UNSUBSCRIBE",
                "PUNSUBSCRIBE",
            ],
            &[
                "SUBSCRIBE sureq:work:c",
                "SUBSCRIBE sureq:work:a sureq:work:c",
                "PSUBSCRIBE *",
                "PSUBSCRIBE sureq:*:b*",
                "PSUBSCRIBE sureq:work:*",
                "PSUBSCRIBE sureq:work:b[0-9]",
            ],
        );
        check(&Rights::new("u").with(Role::Read, b"*"), &["PSUBSCRIBE *", "SUBSCRIBE sureq:work:x"], &[]);
        check(&Rights::new("u").with(Role::Produce, b"*"), &[], &["SUBSCRIBE sureq:work:x", "PUBSUB NUMPAT"]);
    }

    #[test]
    fn naming_a_dead_letter_queue_needs_the_right_to_add_tasks_to_it() {
        let rights = Rights::new("u").with(Role::Admin, b"a*").with(Role::Produce, b"dead");
        check(
            &rights,
            &[
                "RQ.CONFIG a",
                "RQ.CONFIG a TRIES 3 DEAD-LETTER dead",
                "RQ.CONFIG a DEAD-LETTER aa",
                "RQ.PURGE a",
            ],
            &["RQ.CONFIG a TRIES 3 DEAD-LETTER b", "RQ.CONFIG dead", "RQ.CONFIG b DEAD-LETTER a"],
        );
    }

    #[test]
    fn a_worker_needs_a_queue_to_consume() {
        let rights = Rights::new("u").with(Role::Consume, b"a");
        let lives = [
            "RQ.WORKER START w",
            "RQ.WORKER BEAT w#1",
            "RQ.WORKER STOP w#1",
            "RQ.WORKER FAIL w",
            "RQ.WORKER LIST",
        ];
        check(&rights, &lives, &["RQ.WORKER WORK w#1 b", "RQ.WORKER REST w#1 b"]);
        check(
            &rights,
            &["RQ.WORKER WORK w#1 a", "RQ.WORKER REST w#1 a", "RQ.RETURN a 1-1", "RQ.BURY a 1-1"],
            &[],
        );
        check(&Rights::new("u").with(Role::Read, b"*"), &["RQ.EXPLAIN a 1-1", "RQ.QUEUES"], &lives);
    }

    #[test]
    fn listing_queues_needs_the_role_on_exactly_that_pattern() {
        let some = Rights::new("u").with(Role::Read, b"mail*");
        let all = ["KEYS *", "SCAN 0", "SCAN 0 MATCH *", "DBSIZE"];
        check(&some, &["KEYS mail*", "SCAN 0 MATCH mail* COUNT 5"], &all);
        check(&some, &[], &["KEYS mails", "KEYS m*", "SCAN 0 MATCH [a-z]*"]);
        check(&Rights::new("u").with(Role::Admin, b"*"), &all, &[]);
        check(&Rights::new("u").with(Role::Produce, b"*"), &[], &all);
    }

    #[test]
    fn refuses_a_command_by_its_first_words() {
        let rights = Rights::new("u").with(Role::Produce, b"mail*");
        let refused =
            |line: &str| rights.check_beginning(words(line).into_iter()).map_err(|no| no.to_string());
        assert_eq!(refused("RQ.PUSH mail"), Ok(()));
        assert_eq!(refused("RQ.PUSH"), Ok(()));
        assert_eq!(refused("NONSENSE x"), Ok(()), "unknown commands are refused when complete");
        assert!(refused("rq.push other").is_err());
        assert_eq!(
            refused("RQ.POP").unwrap_err(),
            "NOPERM user 'u' may not run 'rq.pop': that needs the role consume on some queue"
        );
    }

    #[test]
    fn only_login_and_quit_are_allowed_before_authentication() {
        let open: Vec<_> = TABLE.iter().filter(|row| needs_no_user(row.name.as_bytes())).collect();
        let names: Vec<_> = open.iter().map(|row| row.name).collect();
        assert_eq!(names, ["HELLO", "AUTH", "RESET", "QUIT"]);
    }

    #[test]
    fn a_command_on_queues_needs_a_role() {
        for row in TABLE {
            // Channels belong to queues too; unsubscribing from them needs no role.
            let listens = matches!(row.name, "SUBSCRIBE" | "PSUBSCRIBE" | "PUBSUB");
            let is_of_queues = matches!(row.group, Group::Queue | Group::Keys) || listens;
            assert_eq!(row.role.is_some(), is_of_queues, "{}", row.name);
        }
    }
}
