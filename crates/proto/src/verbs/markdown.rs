//! Generates docs/reference/commands.md from the table.

use std::fmt::Write as _;

use super::{Group, Row, TABLE};

/// The whole text of docs/reference/commands.md.
pub fn commands_markdown() -> String {
    let mut text = String::from(
        "# The RESP commands\n\nEvery command that Redis clients can send, with its reply. Names and option words may be in \
         any case. A queue that does\nnot exist answers as an empty one. This page is generated from the table of commands in \
         `sureq-proto`.\n",
    );
    text.push_str(ERRORS);
    for group in Group::ALL {
        let rows = || TABLE.iter().filter(move |row| row.group == group);
        // Writing to a `String` does not fail.
        let _ = write!(text, "\n## {}\n\n| command | purpose |\n|---|---|\n", title(group));
        for row in rows() {
            let _ = writeln!(text, "| [`{}`](#{}) | {} |", row.name, anchor(row.name), row.summary);
        }
        rows().for_each(|row| section(&mut text, row));
    }
    text
}

const ERRORS: &str = "
An error begins with a code. It has changed nothing, unless it says so.
[Troubleshooting](../operate/troubleshooting.md) says what to do about each.

| code | meaning |
|---|---|
| `ERR`, `WRONGTYPE` | the request is invalid; retrying does not help |
| `NOTTHERE` | this home does not have the command, like `RQ.WORKER` in the keys of some other program |
| `NOAUTH`, `WRONGPASS`, `NOPERM` | not authenticated, wrong credentials, missing role |
| `QUEUEFULL`, `NOSPACE`, `OOM` | there is no room for more tasks now |
| `GONE` | this incarnation of the worker is no longer alive; `GONE replaced` if another worker was started under its name: exit instead of starting again |
| `DAMAGED` | the payload of a task cannot be read |
| `UNAVAILABLE`, `CLOSED` | the home cannot execute commands now; retry later |
| `POISONED` | the module only: an internal error left this queue in doubt. A server whose disk fails closes its connections without a reply |
| `UNKNOWN` | the reply of the home was lost: the outcome is unknown |
";

fn section(text: &mut String, row: &Row) {
    let prose =
        if row.notes.is_empty() { row.summary.to_owned() } else { format!("{} {}", row.summary, row.notes) };
    let _ = write!(text, "\n### {}\n\n```text\n{}\n```\n\n{}\n", row.name, row.syntax(), wrapped(&prose));
    let _ = write!(text, "\n{}\n", wrapped(&format!("Reply: {}", row.reply)));
    if !row.subs.is_empty() {
        text.push_str("\n| subcommand | meaning |\n|---|---|\n");
        for sub in row.subs {
            let _ = writeln!(text, "| `{}` | {} |", sub.syntax().replace('|', "\\|"), sub.summary);
        }
    }
    let _ = write!(text, "\n```text\n{}\n```\n", row.example);
}

/// Wraps the text to lines of at most 120 columns. Existing line breaks and table rows are kept.
fn wrapped(text: &str) -> String {
    let lines =
        text.lines().map(|line| if line.starts_with('|') { line.to_owned() } else { wrapped_line(line) });
    lines.collect::<Vec<_>>().join("\n")
}

fn wrapped_line(line: &str) -> String {
    let (mut text, mut width) = (String::new(), 0);
    for unit in units(line) {
        let fits = width + 1 + unit.len() <= COLUMNS;
        match (text.is_empty(), fits) {
            (true, _) => {}
            (false, true) => text.push(' '),
            (false, false) => text.push('\n'),
        }
        width = if fits && width > 0 { width + 1 + unit.len() } else { unit.len() };
        text.push_str(&unit);
    }
    text
}

/// The words of a line. A code span counts as one word, so that it is not broken.
fn units(line: &str) -> Vec<String> {
    let (mut units, mut in_code) = (Vec::<String>::new(), false);
    for word in line.split(' ') {
        match units.last_mut() {
            Some(unit) if in_code => {
                unit.push(' ');
                unit.push_str(word);
            }
            _ => units.push(word.to_owned()),
        }
        in_code ^= word.matches('`').count() % 2 == 1;
    }
    units
}

const COLUMNS: usize = 118;

const fn title(group: Group) -> &'static str {
    match group {
        Group::Queue => "Tasks",
        Group::Keys => "Queues as keys",
        Group::Connection => "The connection",
        Group::PubSub => "Notifications",
        Group::Server => "The server",
    }
}

/// The anchor of a heading, as the usual Markdown renderers generate it.
fn anchor(name: &str) -> String {
    name.to_ascii_lowercase().replace('.', "")
}
