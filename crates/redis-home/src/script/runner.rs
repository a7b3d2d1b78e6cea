//! How the script is loaded and called: as a function of a library, or with EVALSHA if the server has no functions.

use std::hash::Hasher as _;

use redis::aio::MultiplexedConnection;
use redis::{Cmd, RedisError, cmd};
use sureq_core::fnv::Fnv;

use crate::layout::Layout;

/// The operations that need memory.
const ADDING: [&str; 2] = ["push", "add"];

/// How a server runs the script.
#[derive(Clone, Debug, Default)]
pub(crate) enum Runner {
    /// Nothing is loaded yet.
    #[default]
    None,
    /// A function of this name. Each release has its own name, so that two releases can share a Redis.
    Function(String),
    /// The script with this checksum, if the server has no functions or this user may load none.
    Script(String),
}

impl Runner {
    /// Loads the script of a layout.
    pub(crate) async fn load(
        layout: &dyn Layout,
        connection: &mut MultiplexedConnection,
    ) -> Result<Self, RedisError> {
        let source = layout.script();
        // It only has to distinguish releases.
        let mut hasher = Fnv::default();
        hasher.write(source.as_bytes());
        let name = format!("sureq_{:016x}", hasher.finish());
        // Operations that add nothing still run when the memory is full: they make room.
        let free = format!("{{function_name='{name}_free', callback=run, flags={{'allow-oom'}}}}");
        let library = format!(
            "#!lua name={name}\n{source}redis.register_function('{name}', run)\nredis.register_function{free}\n"
        );
        let loaded: Result<String, RedisError> =
            cmd("FUNCTION").arg("LOAD").arg(library).query_async(connection).await;
        match loaded {
            Ok(_) => return Ok(Self::Function(name)),
            Err(error) if error.to_string().contains("already exists") => return Ok(Self::Function(name)),
            Err(error) if error.is_connection_dropped() || error.is_io_error() => return Err(error),
            Err(_) => {}
        }
        let script = format!("{source}return run(KEYS, ARGV)\n");
        Ok(Self::Script(cmd("SCRIPT").arg("LOAD").arg(script).query_async(connection).await?))
    }

    /// The command that starts a call.
    pub(crate) fn command(&self, op: &str) -> Cmd {
        let (mut evaluate, mut call) = (cmd("EVALSHA"), cmd("FCALL"));
        match self {
            Self::Function(name) if ADDING.contains(&op) => call.arg(name).clone(),
            Self::Function(name) => call.arg(format!("{name}_free")).clone(),
            Self::Script(sha) => evaluate.arg(sha).clone(),
            Self::None => evaluate.arg("").clone(),
        }
    }
}
