//! Arguments of the operations in `lua` by name.
//!
//! Scripts get positional arguments, which cost Redis least. Rust writes them by name with [`Call::field`], and the
//! script reads them by name from the table that the generated header returns: both follow [`OPERATIONS`].

use std::fmt::Write as _;

use crate::script::call::{Call, OPERATIONS};

/// The number of arguments before those of the operation: its name, the prefix, and the header of a session.
const HEAD: usize = 5;

/// The index of an argument in [`Call::args`].
pub(crate) const fn argument(op: &str, name: &str) -> usize {
    let names = arguments(op);
    let mut at = 0;
    while at < names.len() {
        if is_same(names[at], name) {
            return at;
        }
        at += 1;
    }
    panic!("the operation has no such argument")
}

const fn arguments(op: &str) -> &'static [&'static str] {
    let mut at = 0;
    while at < OPERATIONS.len() {
        if is_same(OPERATIONS[at].0, op) {
            return OPERATIONS[at].1;
        }
        at += 1;
    }
    panic!("there is no such operation")
}

const fn is_same(a: &str, b: &str) -> bool {
    let (a, b) = (a.as_bytes(), b.as_bytes());
    if a.len() != b.len() {
        return false;
    }
    let mut at = 0;
    while at < a.len() {
        if a[at] != b[at] {
            return false;
        }
        at += 1;
    }
    true
}

impl Call {
    /// Adds the next argument of an operation in `lua`, which has this name.
    pub(crate) fn field(self, name: &str, value: impl Into<Vec<u8>>) -> Self {
        debug_assert_eq!(arguments(self.op).get(self.args.len()), Some(&name), "{}", self.op);
        self.arg(value)
    }
}

/// The Lua table of functions that name the arguments of each operation. `rest` is where the list of an operation
/// begins.
pub(crate) fn header() -> String {
    let mut lua = String::from("local ARGUMENTS = {\n");
    for (op, names) in OPERATIONS {
        let _ = write!(lua, "['{op}'] = function(g) return {{ ");
        for (at, name) in names.iter().enumerate() {
            let place = HEAD + at + 1;
            let _ = if name.ends_with("...") {
                write!(lua, "rest = {place}, ")
            } else {
                write!(lua, "{name} = g[{place}], ")
            };
        }
        lua.push_str("} end,\n");
    }
    lua.push_str("}\n");
    lua
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_header_names_arguments_in_their_order() {
        let header = header();
        assert!(header.contains("['push'] = function(g) return { queue = g[6], rest = 7, } end,\n"));
        assert!(header.contains("['exists'] = function(g) return { rest = 6, } end,\n"));
        assert_eq!((argument("pop", "room"), argument("pop", "first")), (9, 10));
    }
}
