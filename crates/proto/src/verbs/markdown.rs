//! docs/reference/commands.md, from the table.

use std::fmt::Write as _;

use super::{Group, Row, TABLE};

/// The whole text of docs/reference/commands.md.
pub fn commands_markdown() -> String {
    let mut text = String::from(
        "# The RESP commands\n\nAny Redis client can send these. Names and option words may be in any case. A queue that \
         does not exist answers as an\nempty one. This file is made from the table of commands in `sureq-proto`.\n",
    );
    text.push_str(ERRORS);
    for group in Group::ALL {
        let rows = || TABLE.iter().filter(move |row| row.group == group);
        // Writing to a `String` does not fail.
        let _ = write!(text, "\n## {}\n\n| command | |\n|---|---|\n", title(group));
        for row in rows() {
            let _ = writeln!(text, "| [`{}`](#{}) | {} |", row.name, anchor(row.name), row.summary);
        }
        rows().for_each(|row| section(&mut text, row));
    }
    text
}

const ERRORS: &str = "
An error begins with a code, and has changed nothing, unless it says so:

| code | |
|---|---|
| `ERR`, `WRONGTYPE` | it cannot be done, and asking again does not help |
| `NOTTHERE` | the home has no such thing, like `RQ.WORKER` in the keys of some other program |
| `NOAUTH`, `WRONGPASS`, `NOPERM` | who asks is not known, or may not |
| `QUEUEFULL`, `NOSPACE`, `OOM` | there is no room for more tasks now |
| `GONE` | this incarnation of the worker is no longer alive; `GONE replaced` if another worker of its name was started: starting anew would only end that one |
| `DAMAGED` | the payload of a task cannot be read |
| `UNAVAILABLE`, `CLOSED`, `POISONED` | the home cannot be asked now; it may be asked again |
| `UNKNOWN` | the home was asked, and its answer is lost: it may have been done or not |
";

fn section(text: &mut String, row: &Row) {
    let _ = write!(text, "\n### {}\n\n```text\n{}\n```\n\n{}\n", row.name, row.syntax, row.summary);
    if !row.notes.is_empty() {
        let _ = writeln!(text, "{}", row.notes);
    }
    let _ = write!(text, "\nReply: {}\n", row.reply);
    if !row.subs.is_empty() {
        text.push_str("\n| subcommand | |\n|---|---|\n");
        for sub in row.subs {
            let _ = writeln!(text, "| `{}` | {} |", sub.syntax.replace('|', "\\|"), sub.summary);
        }
    }
    let _ = write!(text, "\n```text\n{}\n```\n", row.example);
}

const fn title(group: Group) -> &'static str {
    match group {
        Group::Queue => "Tasks",
        Group::Keys => "Queues as keys",
        Group::Connection => "The connection",
        Group::PubSub => "Notifications",
        Group::Server => "The server",
    }
}

/// As the usual Markdown renderers name a heading.
fn anchor(name: &str) -> String {
    name.to_ascii_lowercase().replace('.', "")
}
