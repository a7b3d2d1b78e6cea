//! What COMMAND and HELP answer, from the table.

use super::request::{Caller, Describe, Request};
use super::{Row, Sub, TABLE, UsageError, find, parse};
use crate::resp::{Pieces, Writer};
use sureq_core::command::{Command, ConnId};

/// Answers COMMAND.
pub fn describe(w: &mut Writer<'_>, what: Describe<'_>) {
    match what {
        Describe::Count => w.count(TABLE.len() as u64),
        Describe::List => {
            w.array(TABLE.len());
            for row in TABLE {
                w.bulk(lower(row.name).as_bytes());
            }
        }
        Describe::Info(names) => info(w, names),
        Describe::Docs(names) => docs(w, names),
        Describe::Keys(argv) => keys(w, argv),
    }
}

/// Answers HELP of a command that has subcommands.
pub fn help(w: &mut impl Pieces, name: &str) {
    let subs = find(name.as_bytes()).map_or(&[][..], |row| row.subs);
    w.array(1 + 2 * subs.len());
    w.simple(&format!("{name} <subcommand> [<arg> [value] [opt] ...]. Subcommands are:"));
    for sub in subs {
        w.simple(sub.syntax);
        w.simple(&format!("    {}", sub.summary));
    }
}

fn info(w: &mut Writer<'_>, names: &[&[u8]]) {
    if names.is_empty() {
        w.array(TABLE.len());
        for row in TABLE {
            row_info(w, row);
        }
        return;
    }
    w.array(names.len());
    for name in names {
        match find(name) {
            Some(row) => row_info(w, row),
            None => w.null_array(),
        }
    }
}

/// Redis 7's ten fields: name, arity, flags, first and last key, step, categories, tips, key specifications,
/// subcommands.
fn row_info(w: &mut Writer<'_>, row: &Row) {
    w.array(10);
    w.bulk(lower(row.name).as_bytes());
    w.integer(i64::from(row.arity));
    words(w, row.flags);
    for number in [row.keys.first, row.keys.last, row.keys.step] {
        w.integer(i64::from(number));
    }
    words(w, &categories(row));
    w.array(0);
    w.array(0);
    w.array(row.subs.len());
    row.subs.iter().for_each(|sub| sub_info(w, row, sub));
}

fn sub_info(w: &mut Writer<'_>, row: &Row, sub: &Sub) {
    w.array(10);
    w.bulk(lower(&format!("{}|{}", row.name, sub.name)).as_bytes());
    w.integer(i64::from(sub.arity));
    words(w, row.flags);
    (0..3).for_each(|_| w.integer(0));
    w.set(0);
    (0..3).for_each(|_| w.array(0));
}

fn words(w: &mut Writer<'_>, words: &[&str]) {
    w.set(words.len());
    for word in words {
        w.simple(word);
    }
}

fn categories(row: &Row) -> Vec<&'static str> {
    let named = [
        ("write", "@write"),
        ("readonly", "@read"),
        ("pubsub", "@pubsub"),
        ("blocking", "@blocking"),
        ("fast", "@fast"),
        ("no_auth", "@connection"),
    ];
    let mut categories: Vec<_> =
        named.iter().filter(|(flag, _)| row.flags.contains(flag)).map(|(_, category)| *category).collect();
    if !row.flags.contains(&"fast") {
        categories.push("@slow");
    }
    categories
}

fn docs(w: &mut Writer<'_>, names: &[&[u8]]) {
    let rows: Vec<&Row> = if names.is_empty() {
        TABLE.iter().collect()
    } else {
        names.iter().filter_map(|name| find(name)).collect()
    };
    w.map(rows.len());
    for row in rows {
        w.bulk(lower(row.name).as_bytes());
        w.map(if row.subs.is_empty() { 3 } else { 4 });
        fields(w, row.summary, row.group.name());
        if !row.subs.is_empty() {
            w.bulk(b"subcommands");
            w.map(row.subs.len());
            for sub in row.subs {
                w.bulk(lower(&format!("{}|{}", row.name, sub.name)).as_bytes());
                w.map(3);
                fields(w, sub.summary, row.group.name());
            }
        }
    }
}

fn fields(w: &mut Writer<'_>, summary: &str, group: &str) {
    for (name, value) in [("summary", summary), ("since", "0.1.0"), ("group", group)] {
        w.bulk(name.as_bytes());
        w.bulk(value.as_bytes());
    }
}

/// COMMAND GETKEYS.
fn keys(w: &mut Writer<'_>, argv: &[&[u8]]) {
    match find_keys(argv) {
        Ok(keys) => {
            w.array(keys.len());
            for key in keys {
                w.bulk(key);
            }
        }
        Err(no) => w.error(no),
    }
}

/// The keys of a command as it parses it, so that the two never differ.
fn find_keys<'a>(argv: &'a [&'a [u8]]) -> Result<Vec<&'a [u8]>, UsageError> {
    if argv.first().is_none_or(|name| find(name).is_none()) {
        return Err(UsageError::text("ERR Invalid command specified"));
    }
    let keys = match parse(argv, Caller { conn: ConnId(0) })? {
        Request::Home { command, .. } => match command {
            Command::Pop(pop) => pop.queues.to_vec(),
            Command::Drop { queues } | Command::Exists { queues } => queues.to_vec(),
            command => command.queue().into_iter().collect(),
        },
        Request::Session(_) => Vec::new(),
    };
    if keys.is_empty() { Err(UsageError::text("ERR The command has no key arguments")) } else { Ok(keys) }
}

fn lower(name: &str) -> String {
    name.to_ascii_lowercase()
}
