//! The replies to COMMAND and HELP, generated from the table.

use super::access::queues_of;
use super::args::{Arg, Count, Keys, Kind, Opt};
use super::request::{Caller, Describe, Request};
use super::{Row, Sub, TABLE, UsageError, find, parse};
use crate::resp::{Pieces, Writer};
use sureq_core::command::ConnId;

/// Writes the reply to COMMAND.
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

/// Writes the HELP reply of a command with subcommands.
pub fn help(w: &mut impl Pieces, name: &str) {
    let subs = find(name.as_bytes()).map_or(&[][..], |row| row.subs);
    w.array(1 + 2 * subs.len());
    w.simple(&format!("{name} <subcommand> [<arg> [value] [opt] ...]. Subcommands are:"));
    for sub in subs {
        w.simple(&sub.syntax());
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

/// The ten fields of Redis 7: name, arity, flags, first and last key, step, categories, tips, key specifications,
/// subcommands.
fn row_info(w: &mut Writer<'_>, row: &Row) {
    w.array(10);
    w.bulk(lower(row.name).as_bytes());
    w.integer(i64::from(row.arity()));
    words(w, row.flags);
    let Keys { first, last, step } = row.keys();
    for number in [first, last, step] {
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
    w.integer(i64::from(sub.arity()));
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
        // The arguments of a container command are documented with its subcommands.
        let args = if row.subs.is_empty() { row.args } else { &[] };
        fields(w, row.summary, row, args, !row.subs.is_empty());
        if !row.subs.is_empty() {
            w.bulk(b"subcommands");
            w.map(row.subs.len());
            for sub in row.subs {
                w.bulk(lower(&format!("{}|{}", row.name, sub.name)).as_bytes());
                fields(w, sub.summary, row, sub.args, false);
            }
        }
    }
}

/// Writes the header of a map with these fields. The caller writes the subcommands, if there are any, after them.
fn fields(w: &mut Writer<'_>, summary: &str, row: &Row, args: &[Arg], has_subs: bool) {
    let count = documented(args).count();
    w.map(3 + usize::from(count > 0) + usize::from(has_subs));
    for (name, value) in [("summary", summary), ("since", "0.1.0"), ("group", row.group.name())] {
        text_field(w, name, value);
    }
    if count > 0 {
        w.bulk(b"arguments");
        arguments(w, args);
    }
}

fn text_field(w: &mut Writer<'_>, name: &str, value: &str) {
    w.bulk(name.as_bytes());
    w.bulk(value.as_bytes());
}

/// The arguments as COMMAND DOCS shows them: each option is an entry of its own.
fn documented(args: &[Arg]) -> impl Iterator<Item = Documented<'_>> {
    args.iter().flat_map(|arg| {
        let options = match arg.kind {
            Kind::Options(options) => options.list,
            _ => &[],
        };
        let own = match arg.kind {
            Kind::Options(_) | Kind::Ignored => None,
            _ => Some(Documented::Arg(arg)),
        };
        own.into_iter().chain(options.iter().map(|opt| Documented::Opt(opt, true)))
    })
}

/// An entry in a list of arguments.
enum Documented<'a> {
    Arg(&'a Arg),
    /// An option, which is optional, or an alternative, which is not.
    Opt(&'a Opt, bool),
    Word(&'a str),
}

fn arguments(w: &mut Writer<'_>, args: &[Arg]) {
    w.array(documented(args).count());
    documented(args).for_each(|entry| argument(w, &entry));
}

/// One argument: its name, type, keyword and flags, and its nested arguments.
fn argument(w: &mut Writer<'_>, entry: &Documented<'_>) {
    match *entry {
        Documented::Word(word) => argument_map(w, &lower(word), "pure-token", word, &[], |_| {}, false),
        Documented::Opt(opt, is_optional) => {
            let flags: &[&str] = if is_optional { &["optional"] } else { &[] };
            let (kind, inner) = match opt.args {
                [] => ("pure-token", None),
                [Arg { kind: Kind::Word(_), .. }] | [_, _, ..] => ("block", Some(opt.args)),
                [arg] => (type_name(&arg.kind), None),
            };
            let is_multiple = matches!(opt.args, [Arg { count: Count::Many, .. }]);
            let flags = if is_multiple { &[flags, &["multiple"]].concat() } else { flags };
            let name = match opt.args {
                [arg] if opt.name.is_empty() => arg.name.to_owned(),
                _ => lower(opt.name),
            };
            let write = |w: &mut Writer<'_>| arguments(w, inner.unwrap_or_default());
            argument_map(w, &name, kind, opt.name, flags, write, inner.is_some());
        }
        Documented::Arg(arg) => {
            let flags: &[&str] = match arg.count {
                Count::One => &[],
                Count::Optional => &["optional"],
                Count::Many => &["multiple"],
                Count::Any => &["optional", "multiple"],
            };
            match arg.kind {
                Kind::OneOf(alternatives) => {
                    let write = |w: &mut Writer<'_>| {
                        w.array(alternatives.len());
                        for opt in alternatives {
                            argument(w, &Documented::Opt(opt, false));
                        }
                    };
                    argument_map(w, "selection", "oneof", "", flags, write, true);
                }
                Kind::Word(words) => {
                    let write = |w: &mut Writer<'_>| {
                        w.array(words.len());
                        for word in words {
                            argument(w, &Documented::Word(word));
                        }
                    };
                    argument_map(w, "selection", "oneof", "", flags, write, true);
                }
                Kind::Block(args) => {
                    argument_map(w, "block", "block", "", flags, |w| arguments(w, args), true);
                }
                _ => argument_map(w, arg.name, type_name(&arg.kind), "", flags, |_| {}, false),
            }
        }
    }
}

fn argument_map(
    w: &mut Writer<'_>,
    name: &str,
    kind: &str,
    token: &str,
    flags: &[&str],
    write_inner: impl FnOnce(&mut Writer<'_>),
    has_inner: bool,
) {
    let (has_token, has_flags) = (!token.is_empty(), !flags.is_empty());
    w.map(2 + usize::from(has_token) + usize::from(has_flags) + usize::from(has_inner));
    text_field(w, "name", name);
    text_field(w, "type", kind);
    if has_token {
        text_field(w, "token", token);
    }
    if has_flags {
        w.bulk(b"flags");
        w.array(flags.len());
        for flag in flags {
            w.simple(flag);
        }
    }
    if has_inner {
        w.bulk(b"arguments");
        write_inner(w);
    }
}

/// The name that Redis uses for a type of argument.
const fn type_name(kind: &Kind) -> &'static str {
    match kind {
        Kind::Key => "key",
        Kind::Pattern => "pattern",
        Kind::Number(..) | Kind::Signed(..) => "integer",
        _ => "string",
    }
}

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

/// The keys of a command. They are taken from the parsed command so that the two always agree.
fn find_keys<'a>(argv: &'a [&'a [u8]]) -> Result<Vec<&'a [u8]>, UsageError> {
    if argv.first().is_none_or(|name| find(name).is_none()) {
        return Err(UsageError::text("ERR Invalid command specified"));
    }
    let keys: Vec<&[u8]> = match parse(argv, Caller { conn: ConnId(0) })? {
        Request::Home { command, .. } => queues_of(&command).collect(),
        Request::Session(_) => Vec::new(),
    };
    if keys.is_empty() { Err(UsageError::text("ERR The command has no key arguments")) } else { Ok(keys) }
}

fn lower(name: &str) -> String {
    name.to_ascii_lowercase()
}
