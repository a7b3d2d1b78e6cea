//! Registers the module with the server: types, commands and callbacks.

use std::ffi::{CStr, CString, c_int};
use std::ptr;

use redis_module::raw;
use sureq_proto::verbs::{Row, TABLE};

use crate::callbacks::{self, VERSION};
use crate::guard::guarded;
use crate::process::{self, Start};
use crate::redis::{self, Ctx, function};

const OK: c_int = raw::REDISMODULE_OK as c_int;
const ERR: c_int = raw::REDISMODULE_ERR as c_int;

/// The version of the type methods in Redis 7.0.
const METHODS: u64 = 4;

/// The entry point of the module.
///
/// # Safety
///
/// Only the module loader of Redis calls it, with a context of its own.
#[unsafe(no_mangle)]
#[expect(unreachable_pub, reason = "Redis finds it by its name")]
pub unsafe extern "C" fn RedisModule_OnLoad(
    ctx: *mut raw::RedisModuleCtx,
    _: *mut *mut raw::RedisModuleString,
    _: c_int,
) -> c_int {
    // SAFETY: Redis passes a context that is made for loading; the name is NUL-terminated.
    if unsafe {
        raw::Export_RedisModule_Init(ctx, c"sureq".as_ptr(), 1, raw::REDISMODULE_APIVER_1.cast_signed())
    } == ERR
    {
        return ERR;
    }
    if !is_new_enough() {
        return ERR;
    }
    // SAFETY: as above.
    let ctx = unsafe { Ctx::new(ctx) };
    guarded("loading of the module", ERR, || match load(ctx) {
        Ok(()) => OK,
        Err(what) => {
            redis::log("warning", &format!("sureq: cannot load the module: the server refuses {what}"));
            ERR
        }
    })
}

/// Whether the server has all functions that are called without a check: Redis 7.0 and later.
fn is_new_enough() -> bool {
    macro_rules! has {
        ($name:ident) => {{
            // SAFETY: set by the initialisation above, and never changed.
            let function = unsafe { raw::$name };
            function.is_some()
        }};
    }
    let newest = [
        has!(RedisModule_MonotonicMicroseconds),
        has!(RedisModule_GetBlockedClientHandle),
        has!(RedisModule_GetDbIdFromIO),
        has!(RedisModule_GetDbIdFromModuleKey),
        has!(RedisModule_GetToDbIdFromOptCtx),
        has!(RedisModule_SetCommandInfo),
        has!(RedisModule_AvoidReplicaTraffic),
        has!(RedisModule_ReplyWithMap),
    ];
    newest.iter().all(|&there| there)
}

fn load(ctx: Ctx<'_>) -> Result<(), String> {
    // An opened key does not count as changed unless the module signals it.
    let options = (raw::REDISMODULE_OPTIONS_HANDLE_IO_ERRORS
        | raw::REDISMODULE_OPTION_NO_IMPLICIT_SIGNAL_MODIFIED)
        .cast_signed();
    // SAFETY: the context of the loader.
    unsafe { function!(RedisModule_SetModuleOptions)(ctx.raw(), options) };
    make_types(ctx)?;
    for row in TABLE.iter().filter(|row| row.name.starts_with("RQ.")) {
        make_command(ctx, &Native::of(row))?;
    }
    make_command(ctx, &Native::APPLY)?;
    subscribe(ctx)?;
    // SAFETY: the context of the loader.
    unsafe { function!(RedisModule_RegisterInfoFunc)(ctx.raw(), Some(callbacks::info)) };
    process::with(|process| process.start(Start::Loaded));
    Ok(())
}

/// The methods of a type, all unset.
const fn no_methods() -> raw::RedisModuleTypeMethods {
    raw::RedisModuleTypeMethods {
        version: METHODS,
        rdb_load: None,
        rdb_save: None,
        aof_rewrite: None,
        mem_usage: None,
        digest: None,
        free: None,
        aux_load: None,
        aux_save: None,
        aux_save_triggers: 0,
        free_effort: None,
        unlink: None,
        copy: None,
        defrag: None,
        mem_usage2: None,
        free_effort2: None,
        unlink2: None,
        copy2: None,
        aux_save2: None,
    }
}

fn make_types(ctx: Ctx<'_>) -> Result<(), String> {
    let queues = raw::RedisModuleTypeMethods {
        rdb_load: Some(callbacks::load_queue),
        rdb_save: Some(callbacks::save_queue),
        aof_rewrite: Some(callbacks::rewrite_queue),
        digest: Some(callbacks::digest_queue),
        free: Some(callbacks::free_queue),
        aux_load: Some(callbacks::load_marks),
        aux_save: Some(callbacks::save_marks),
        aux_save_triggers: raw::REDISMODULE_AUX_BEFORE_RDB as c_int,
        defrag: Some(callbacks::defrag_queue),
        mem_usage2: Some(callbacks::queue_memory),
        free_effort2: Some(callbacks::queue_effort),
        unlink2: Some(callbacks::unlink_queue),
        copy2: Some(callbacks::copy_queue),
        ..no_methods()
    };
    let workers = raw::RedisModuleTypeMethods {
        rdb_load: Some(callbacks::load_workers),
        rdb_save: Some(callbacks::save_workers),
        aof_rewrite: Some(callbacks::rewrite_workers),
        digest: Some(callbacks::digest_workers),
        free: Some(callbacks::free_workers),
        mem_usage2: Some(callbacks::workers_memory),
        unlink2: Some(callbacks::unlink_workers),
        ..no_methods()
    };
    redis::set_types(make_type(ctx, c"RELIABLEQ", queues)?, make_type(ctx, c"RQWORKERS", workers)?);
    Ok(())
}

fn make_type(
    ctx: Ctx<'_>,
    name: &CStr,
    mut methods: raw::RedisModuleTypeMethods,
) -> Result<*mut raw::RedisModuleType, String> {
    // SAFETY: the context of the loader; the methods are copied.
    let made =
        unsafe { function!(RedisModule_CreateDataType)(ctx.raw(), name.as_ptr(), VERSION, &raw mut methods) };
    if made.is_null() {
        Err(format!("the type {name:?}; unload any other module that has a type of this name"))
    } else {
        Ok(made)
    }
}

/// A command and its registration data.
struct Native {
    name: &'static str,
    function: raw::RedisModuleCmdFunc,
    flags: &'static str,
    /// Its ACL categories, for servers that let modules set them.
    categories: &'static str,
    summary: &'static str,
    arity: c_int,
    keys: Keys,
}

/// Which arguments of a command are keys, and how it uses them.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Keys {
    /// None at a fixed position.
    None,
    /// The first argument, which it reads or changes.
    Read,
    Add,
    Change,
    /// The last arguments, after its options.
    Last,
}

impl Native {
    const APPLY: Self = Self {
        name: "RQ.APPLY",
        function: Some(callbacks::apply),
        flags: "write no-monitor",
        categories: "write slow dangerous",
        summary: "Internal: a primary sends its decisions to replicas with it.",
        arity: 3,
        keys: Keys::Add,
    };

    /// The registration data that follow from a row of the table that all dialects share.
    fn of(row: &Row) -> Self {
        let has = |flag| row.flags.contains(&flag);
        let (flags, categories, keys) = match row.name {
            "RQ.POP" => ("write blocking getkeys-api", "write slow blocking", Keys::Last),
            "RQ.WORKER" => ("write", "write slow", Keys::None),
            "RQ.QUEUES" => ("readonly", "read slow keyspace", Keys::None),
            _ if has("denyoom") => ("write deny-oom fast", "write fast", Keys::Add),
            _ if has("write") && has("fast") => ("write fast", "write fast", Keys::Change),
            _ if has("write") => ("write", "write slow", Keys::Change),
            _ if has("fast") => ("readonly fast", "read fast", Keys::Read),
            _ => ("readonly", "read slow", Keys::Read),
        };
        let (name, summary, arity) = (row.name, row.summary, row.arity());
        Self { name, function: Some(callbacks::command), flags, categories, summary, arity, keys }
    }
}

fn make_command(ctx: Ctx<'_>, command: &Native) -> Result<(), String> {
    let refused =
        || format!("the command {}; unload any other module that has a command of this name", command.name);
    // In lower case, as Redis shows names in its own errors.
    let name = CString::new(command.name.to_ascii_lowercase()).map_err(|_| refused())?;
    let flags = CString::new(command.flags).map_err(|_| refused())?;
    let (first, last, step) =
        if matches!(command.keys, Keys::None | Keys::Last) { (0, 0, 0) } else { (1, 1, 1) };
    // SAFETY: the context of the loader, and NUL-terminated strings, which are copied.
    let made = unsafe {
        function!(RedisModule_CreateCommand)(
            ctx.raw(),
            name.as_ptr(),
            command.function,
            flags.as_ptr(),
            first,
            last,
            step,
        )
    };
    if made == ERR {
        return Err(refused());
    }
    // SAFETY: as above.
    let made = unsafe { function!(RedisModule_GetCommand)(ctx.raw(), name.as_ptr()) };
    describe(made, command).ok_or_else(refused)?;
    categorise(made, command.categories).ok_or_else(refused)
}

/// The data of COMMAND INFO and COMMAND DOCS, and the key positions for Cluster and ACLs.
fn describe(made: *mut raw::RedisModuleCommand, command: &Native) -> Option<()> {
    let summary = CString::new(command.summary).ok()?;
    let version = raw::RedisModuleCommandInfoVersion {
        version: 1,
        sizeof_historyentry: size_of::<raw::RedisModuleCommandHistoryEntry>(),
        sizeof_keyspec: size_of::<raw::RedisModuleCommandKeySpec>(),
        sizeof_arg: size_of::<raw::RedisModuleCommandArg>(),
    };
    let mut keys = [key_spec(command.keys), key_spec(Keys::None)];
    let info = raw::RedisModuleCommandInfo {
        version: &raw const version,
        summary: summary.as_ptr(),
        complexity: ptr::null(),
        since: c"0.1.0".as_ptr(),
        history: ptr::null_mut(),
        tips: ptr::null(),
        arity: command.arity,
        key_specs: if command.keys == Keys::None { ptr::null_mut() } else { keys.as_mut_ptr() },
        args: ptr::null_mut(),
    };
    // SAFETY: a command of this module; all data is copied, and the list of keys ends with an empty specification.
    let told = unsafe { function!(RedisModule_SetCommandInfo)(made, &raw const info) };
    (told == OK).then_some(())
}

fn key_spec(keys: Keys) -> raw::RedisModuleCommandKeySpec {
    use raw::{
        REDISMODULE_CMD_KEY_ACCESS as ACCESS, REDISMODULE_CMD_KEY_INCOMPLETE as INCOMPLETE,
        REDISMODULE_CMD_KEY_INSERT as INSERT, REDISMODULE_CMD_KEY_RO as RO, REDISMODULE_CMD_KEY_RW as RW,
        REDISMODULE_CMD_KEY_UPDATE as UPDATE,
    };
    let flags = match keys {
        Keys::None => 0,
        Keys::Read => RO | ACCESS,
        Keys::Add => RW | INSERT,
        Keys::Change => RW | ACCESS | UPDATE,
        Keys::Last => RW | ACCESS | UPDATE | INCOMPLETE,
    };
    // SAFETY: the type consists of numbers, null pointers and unions of them; all zeros is the empty specification.
    let mut spec: raw::RedisModuleCommandKeySpec = unsafe { std::mem::zeroed() };
    spec.flags = u64::from(flags);
    match keys {
        Keys::None => {}
        Keys::Last => {
            spec.begin_search_type = raw::RedisModuleKeySpecBeginSearchType_REDISMODULE_KSPEC_BS_UNKNOWN;
            spec.find_keys_type = raw::RedisModuleKeySpecFindKeysType_REDISMODULE_KSPEC_FK_UNKNOWN;
        }
        Keys::Read | Keys::Add | Keys::Change => {
            spec.begin_search_type = raw::RedisModuleKeySpecBeginSearchType_REDISMODULE_KSPEC_BS_INDEX;
            spec.bs.index.pos = 1;
            spec.find_keys_type = raw::RedisModuleKeySpecFindKeysType_REDISMODULE_KSPEC_FK_RANGE;
            spec.fk.range.lastkey = 0;
            spec.fk.range.keystep = 1;
            spec.fk.range.limit = 0;
        }
    }
    spec
}

fn categorise(made: *mut raw::RedisModuleCommand, categories: &str) -> Option<()> {
    // SAFETY: set by the initialisation, and never changed.
    let Some(set) = (unsafe { raw::RedisModule_SetCommandACLCategories }) else { return Some(()) };
    let categories = CString::new(categories).ok()?;
    // SAFETY: a command of this module, and a NUL-terminated string.
    let told = unsafe { set(made, categories.as_ptr()) };
    (told == OK).then_some(())
}

fn subscribe(ctx: Ctx<'_>) -> Result<(), String> {
    let events = [
        raw::REDISMODULE_EVENT_REPLICATION_ROLE_CHANGED,
        raw::REDISMODULE_EVENT_LOADING,
        raw::REDISMODULE_EVENT_CLIENT_CHANGE,
        raw::REDISMODULE_EVENT_CRON_LOOP,
        raw::REDISMODULE_EVENT_SWAPDB,
        raw::REDISMODULE_EVENT_FLUSHDB,
        raw::REDISMODULE_EVENT_FORK_CHILD,
        raw::REDISMODULE_EVENT_CONFIG,
    ];
    for id in events {
        let event = raw::RedisModuleEvent { id, dataver: 1 };
        // SAFETY: the context of the loader.
        let told = unsafe {
            function!(RedisModule_SubscribeToServerEvent)(ctx.raw(), event, Some(callbacks::server_event))
        };
        if told == ERR {
            return Err(format!("the subscription to event {id}"));
        }
    }
    // SAFETY: as above.
    let told = unsafe {
        function!(RedisModule_SubscribeToKeyspaceEvents)(
            ctx.raw(),
            raw::REDISMODULE_NOTIFY_GENERIC
                | raw::REDISMODULE_NOTIFY_EXPIRED
                | raw::REDISMODULE_NOTIFY_EVICTED,
            Some(callbacks::key_event),
        )
    };
    if told == ERR { Err("the subscription to keyspace events".to_owned()) } else { Ok(()) }
}
