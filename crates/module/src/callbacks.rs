//! The callbacks that Redis calls. Each converts pointers to safe types and catches panics.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;

use redis_module::raw;
use sureq_core::command::ConnId;
use sureq_core::task::{Cause, Holder};
use sureq_core::{LogTime, TaskId};
use sureq_proto::resp::Pieces as _;

use crate::apply;
use crate::commands;
use crate::followers;
use crate::guard::guarded;
use crate::object::Object;
use crate::pop::{Answered, Popper};
use crate::process::{self, INCARNATION_MAX, Start, TIME_MAX};
use crate::redis::{self, Ctx, Str, Value, WaiterId, function, words};
use crate::saved::{self, Wrong};
use crate::schedule::{Departed, depart};
use crate::tick;
use crate::waiting;
use crate::workers::{self, Table};

const OK: c_int = raw::REDISMODULE_OK as c_int;
const ERR: c_int = raw::REDISMODULE_ERR as c_int;

/// Executes a command of a client.
pub(crate) extern "C" fn command(
    ctx: *mut raw::RedisModuleCtx,
    argv: *mut *mut raw::RedisModuleString,
    count: c_int,
) -> c_int {
    // SAFETY: Redis passes them for the time of this call.
    let (mut ctx, words) = unsafe { (Ctx::new(ctx), words(argv, count)) };
    if ctx.is_about_keys() {
        return guarded("keys", OK, || {
            commands::tell_keys(ctx, words);
            OK
        });
    }
    let ran = guarded("command", None, || Some(commands::execute(ctx, words, Popper::Asking)));
    if ran.is_none() {
        ctx.error("ERR an internal error: see the log of the server");
    }
    OK
}

/// Executes RQ.APPLY.
pub(crate) extern "C" fn apply(
    ctx: *mut raw::RedisModuleCtx,
    argv: *mut *mut raw::RedisModuleString,
    count: c_int,
) -> c_int {
    // SAFETY: Redis passes them for the time of this call.
    let (mut ctx, words) = unsafe { (Ctx::new(ctx), words(argv, count)) };
    let applied = guarded("apply", false, || {
        apply::apply(ctx, words);
        true
    });
    if !applied {
        ctx.error("ERR an internal error: see the log of the server");
    }
    OK
}

/// Called when a key that a client waits for may have tasks.
pub(crate) extern "C" fn woken(
    ctx: *mut raw::RedisModuleCtx,
    argv: *mut *mut raw::RedisModuleString,
    count: c_int,
) -> c_int {
    // SAFETY: Redis passes them for the time of this call.
    let (mut ctx, words) = unsafe { (Ctx::new(ctx), words(argv, count)) };
    match guarded("woken", None, || Some(commands::execute(ctx, words, Popper::Woken))) {
        Some(Answered::NotYet) => return ERR,
        Some(Answered::Yes) => {}
        None => ctx.error("ERR an internal error: see the log of the server"),
    }
    waiting::end(ctx.waiter());
    OK
}

/// Called when the wait of a client ends, because of its timeout or because its worker has ended. In the latter case
/// it is called during a step, which has the process borrowed.
pub(crate) extern "C" fn over(
    ctx: *mut raw::RedisModuleCtx,
    _: *mut *mut raw::RedisModuleString,
    _: c_int,
) -> c_int {
    // SAFETY: Redis passes it for the time of this call.
    let mut ctx = unsafe { Ctx::new(ctx) };
    waiting::end(ctx.waiter());
    guarded("over", (), || match waiting::take_refusal() {
        Some(refusal) => ctx.error(format_args!("{} {refusal}", refusal.code())),
        None => ctx.null(),
    });
    OK
}

/// Called when a client that waits for a worker disconnected or was unblocked.
pub(crate) extern "C" fn left(_: *mut raw::RedisModuleCtx, client: *mut raw::RedisModuleBlockedClient) {
    waiting::end(WaiterId::of(client));
}

/// Called when a client disconnects while its command is executed in slices.
pub(crate) extern "C" fn gone(_: *mut raw::RedisModuleCtx, client: *mut raw::RedisModuleBlockedClient) {
    guarded("gone", (), || process::try_with(|process| process.jobs.lose(client)));
}

/// Called when the timer fires.
pub(crate) extern "C" fn alarm(ctx: *mut raw::RedisModuleCtx, _: *mut c_void) {
    // SAFETY: Redis passes it for the time of this call.
    let ctx = unsafe { Ctx::new(ctx) };
    guarded("alarm", (), || tick::ring(ctx));
}

/// Called for a keyspace event. Those of this module's own commands need no action.
pub(crate) extern "C" fn key_event(
    ctx: *mut raw::RedisModuleCtx,
    _: c_int,
    event: *const c_char,
    key: *mut raw::RedisModuleString,
) -> c_int {
    // SAFETY: Redis passes them for the time of this call; the name is ended.
    let (ctx, event, key) = unsafe { (Ctx::new(ctx), CStr::from_ptr(event), Str::new(key)) };
    guarded("key event", (), || match event.to_bytes() {
        b"copy_to" => process::with(|process| {
            // Redis sends this event in the database of the original. The queue's deadlines and holders are recorded
            // when the key is checked.
            if let Some((db, name)) = process.arriving.take() {
                process.schedule.look_at(LogTime(0), db, &name);
                tick::arm(ctx, process, process.clock.now());
            }
        }),
        b"rename_to" | b"move_to" | b"restore" => process::with(|process| {
            let mut open = ctx.open_to_read(key);
            let db = open.db().unwrap_or_else(|| ctx.db());
            match open.value() {
                Value::Queue(object) => process.welcome(object, db, key.bytes()),
                Value::Workers(table) => table.settle(),
                Value::Nothing | Value::Other => {}
            }
            process.schedule.look_at(LogTime(0), db, workers::KEY);
            tick::arm(ctx, process, process.clock.now());
        }),
        b"del" | b"expired" | b"evicted" | b"rename_from" | b"move_from" if key.bytes() == workers::KEY => {
            // End its workers now instead of waiting for the next command. A step does so itself when it ends.
            process::try_with(|process| tick::arm(ctx, process, process.clock.now()));
        }
        _ => {}
    });
    OK
}

/// Called for a server event.
pub(crate) extern "C" fn server_event(
    ctx: *mut raw::RedisModuleCtx,
    event: raw::RedisModuleEvent,
    part: u64,
    data: *mut c_void,
) {
    // SAFETY: Redis passes it for the time of this call.
    let ctx = unsafe { Ctx::new(ctx) };
    guarded("server event", (), || match (event.id, part) {
        (raw::REDISMODULE_EVENT_LOADING, raw::REDISMODULE_SUBEVENT_LOADING_ENDED)
            if !ctx.flags().is_replica() =>
        {
            begin(ctx, Start::Loaded);
        }
        (raw::REDISMODULE_EVENT_REPLICATION_ROLE_CHANGED, role) => {
            // The replicas of its former primary may become replicas of this server.
            followers::see();
            if role == raw::REDISMODULE_EVENT_REPLROLECHANGED_NOW_MASTER {
                begin(ctx, Start::Promoted);
            } else {
                process::with(process::Process::step_down);
            }
        }
        (raw::REDISMODULE_EVENT_FORK_CHILD | raw::REDISMODULE_EVENT_CONFIG, _) => followers::look(ctx),
        (raw::REDISMODULE_EVENT_CLIENT_CHANGE, raw::REDISMODULE_SUBEVENT_CLIENT_CHANGE_DISCONNECTED) => {
            // SAFETY: this event comes with the information about the client.
            let id = unsafe { (*data.cast::<raw::RedisModuleClientInfo>()).id };
            process::with(|process| {
                // On a replica, the holders are connections of the primary, whose ids mean nothing here.
                let holder = Holder::Conn(ConnId(id));
                if !ctx.flags().is_replica() && process.schedule.end(holder, Cause::Free) {
                    tick::arm(ctx, process, process.clock.now());
                }
            });
        }
        (raw::REDISMODULE_EVENT_CRON_LOOP, _) => {
            followers::look_once(ctx);
            process::with(|process| tick::look_at_clock(ctx, process));
        }
        (raw::REDISMODULE_EVENT_FLUSHDB, part) => {
            // SAFETY: this event comes with the number of the database, or -1.
            let db = unsafe { (*data.cast::<raw::RedisModuleFlushInfo>()).dbnum };
            let db = (db >= 0).then_some(db);
            if part == raw::REDISMODULE_SUBEVENT_FLUSHDB_END {
                process::with(|process| {
                    process.schedule.flush(db);
                    waiting::suspect_all();
                    tick::arm(ctx, process, process.clock.now());
                });
            } else if let Some(db) = db {
                begin_flush(ctx, db);
            }
        }
        (raw::REDISMODULE_EVENT_SWAPDB, _) => {
            // SAFETY: this event comes with the two numbers.
            let swapped = unsafe { *data.cast::<raw::RedisModuleSwapDbInfo>() };
            process::with(|process| {
                process.schedule.see_departed();
                process.schedule.swap(swapped.dbnum_first, swapped.dbnum_second);
                process.jobs.swap(swapped.dbnum_first, swapped.dbnum_second);
                // Waiting clients stay in their database, which has other workers now.
                waiting::suspect_all();
                tick::arm(ctx, process, process.clock.now());
            });
        }
        _ => {}
    });
}

/// Called before a database is flushed: its workers may hold tasks of queues that were moved to another database.
fn begin_flush(ctx: Ctx<'_>, db: i32) {
    let before = ctx.db();
    if decides() && ctx.select(db) {
        let gone = workers::all(ctx);
        process::with(|process| process.schedule.end_workers(&gone));
        ctx.select(before);
    }
}

/// Whether this server is a primary, and so makes decisions.
fn decides() -> bool {
    // SAFETY: without a context the flags are those of the server.
    let flags = unsafe { Ctx::new(ptr::null_mut()) }.flags();
    !flags.is_replica() && !flags.is_loading()
}

fn begin(ctx: Ctx<'_>, why: Start) {
    process::with(|process| {
        process.start(why);
        tick::rearm(ctx, process);
    });
}

/// The strings of a snapshot, up to an empty one. They also end at a read error of Redis.
struct Strings(*mut raw::RedisModuleIO);

impl Strings {
    /// Passes the next string to `take`; `None` at the end.
    fn next<T>(&self, take: impl FnOnce(&[u8]) -> Result<T, Wrong>) -> Result<Option<T>, Wrong> {
        let mut len = 0;
        // SAFETY: the stream of this call.
        let start = unsafe { function!(RedisModule_LoadStringBuffer)(self.0, &raw mut len) };
        if start.is_null() || self.has_failed() {
            return Err("it ends too early".to_owned());
        }
        // SAFETY: Redis reports this length, and the memory belongs to the caller.
        let bytes = unsafe { std::slice::from_raw_parts(start.cast::<u8>(), len) };
        let taken = if bytes.is_empty() { Ok(None) } else { take(bytes).map(Some) };
        // SAFETY: owned by this function, and freed once.
        unsafe { function!(RedisModule_Free)(start.cast()) };
        taken
    }

    fn number(&self) -> Result<u64, Wrong> {
        // SAFETY: the stream of this call.
        let number = unsafe { function!(RedisModule_LoadUnsigned)(self.0) };
        if self.has_failed() { Err("it ends too early".to_owned()) } else { Ok(number) }
    }

    fn has_failed(&self) -> bool {
        // SAFETY: the stream of this call.
        unsafe { function!(RedisModule_IsIOError)(self.0) != 0 }
    }

    fn save(&self, bytes: &[u8]) {
        // SAFETY: the stream of this call.
        unsafe { function!(RedisModule_SaveStringBuffer)(self.0, bytes.as_ptr().cast(), bytes.len()) };
    }

    fn save_number(&self, number: u64) {
        // SAFETY: the stream of this call.
        unsafe { function!(RedisModule_SaveUnsigned)(self.0, number) };
    }

    /// The key that is being loaded, if Redis knows it.
    fn place(&self) -> Option<(i32, &[u8])> {
        // SAFETY: the stream of this call.
        let name = unsafe { function!(RedisModule_GetKeyNameFromIO)(self.0) };
        // SAFETY: as above.
        let db = unsafe { function!(RedisModule_GetDbIdFromIO)(self.0) };
        // SAFETY: a string that lives as long as the stream.
        (!name.is_null()).then(|| (db, unsafe { Str::new(name.cast_mut()) }.bytes()))
    }

    /// Logs an error in the data.
    fn complain(&self, wrong: &str) {
        let name =
            self.place().map_or_else(String::new, |(_, name)| String::from_utf8_lossy(name).into_owned());
        redis::log("warning", &format!("sureq: cannot load '{name}': {wrong}"));
    }
}

/// Whether this server is loading its own data or that of its primary.
fn is_trusted() -> bool {
    // SAFETY: without a context the flags are those of the server.
    unsafe { Ctx::new(ptr::null_mut()) }.flags().is_loading()
}

/// Loads a queue from a snapshot.
pub(crate) extern "C" fn load_queue(io: *mut raw::RedisModuleIO, version: c_int) -> *mut c_void {
    let io = Strings(io);
    let loaded = guarded("load", Err("an internal error".to_owned()), || read_queue(&io, version));
    match loaded {
        Ok(object) => Box::into_raw(object).cast(),
        Err(wrong) => {
            guarded("complaint", (), || io.complain(&wrong));
            ptr::null_mut()
        }
    }
}

/// The version of the snapshot format.
pub(crate) const VERSION: c_int = 1;

fn read_queue(io: &Strings, version: c_int) -> Result<Box<Object>, Wrong> {
    if version != VERSION {
        return Err(format!("it was saved in version {version}, and this release knows {VERSION}"));
    }
    let mut object = Box::new(Object::new());
    while io.next(|piece| saved::take_in(&mut object, piece))?.is_some() {}
    let is_trusted = is_trusted();
    if !is_trusted {
        saved::check(&object)?;
    }
    object.is_foreign = !is_trusted;
    // For a restored key Redis sends an event once the key is in place; it may have expired before.
    if let Some((db, name)) = io.place().filter(|_| is_trusted) {
        process::with(|process| process.welcome(&mut object, db, name));
    }
    Ok(object)
}

pub(crate) extern "C" fn save_queue(io: *mut raw::RedisModuleIO, value: *mut c_void) {
    // SAFETY: Redis passes a value of this type, and no other reference to it exists meanwhile.
    let object = unsafe { &*value.cast::<Object>() };
    let io = Strings(io);
    guarded("save", (), || {
        saved::pieces(object, |piece| io.save(piece));
        io.save(&[]);
    });
}

pub(crate) extern "C" fn rewrite_queue(
    io: *mut raw::RedisModuleIO,
    key: *mut raw::RedisModuleString,
    value: *mut c_void,
) {
    // SAFETY: Redis passes a value of this type, and no other reference to it exists meanwhile.
    let object = unsafe { &*value.cast::<Object>() };
    guarded("rewrite", (), || saved::pieces(object, |piece| emit(io, key, piece)));
}

fn emit(io: *mut raw::RedisModuleIO, key: *mut raw::RedisModuleString, events: &[u8]) {
    let (name, format) = (c"RQ.APPLY".as_ptr(), c"sb".as_ptr());
    // SAFETY: the format takes a string, a buffer and its length.
    unsafe { function!(RedisModule_EmitAOF)(io, name, format, key, events.as_ptr(), events.len()) };
}

pub(crate) extern "C" fn free_queue(value: *mut c_void) {
    // SAFETY: Redis passes back a value that one of these callbacks, or `Key::set_queue`, has made.
    let object = unsafe { Box::from_raw(value.cast::<Object>()) };
    guarded("free", (), || drop(object));
}

pub(crate) extern "C" fn queue_memory(
    _: *mut raw::RedisModuleKeyOptCtx,
    value: *const c_void,
    _: usize,
) -> usize {
    // SAFETY: Redis passes a value of this type.
    let object = unsafe { &*value.cast::<Object>() };
    guarded("memory", 0, || object.memory())
}

/// An estimate of the number of memory blocks to free.
pub(crate) extern "C" fn queue_effort(_: *mut raw::RedisModuleKeyOptCtx, value: *const c_void) -> usize {
    /// The typical number of tasks in a run.
    const RUN: usize = 100;
    /// If purged tasks are not released yet, there are many; a few would have been released at once.
    const PURGED: usize = 1_000;
    // SAFETY: Redis passes a value of this type.
    let object = unsafe { &*value.cast::<Object>() };
    guarded("effort", 1, || {
        let packed = object.queue.packed();
        let purged = if object.queue.has_purged() { PURGED } else { 0 };
        1 + purged + packed / RUN + (object.queue.len() as usize).saturating_sub(packed)
    })
}

/// Called when a queue leaves its key: it is deleted, replaced, or moved to another key (another event follows).
pub(crate) extern "C" fn unlink_queue(ctx: *mut raw::RedisModuleKeyOptCtx, value: *const c_void) {
    // SAFETY: Redis passes a value of this type.
    let object = unsafe { &*value.cast::<Object>() };
    // SAFETY: the context of this call; the string lives as long as it does.
    let name = unsafe { Str::new(function!(RedisModule_GetKeyNameFromOptCtx)(ctx).cast_mut()) };
    // SAFETY: as above.
    let db = unsafe { function!(RedisModule_GetDbIdFromOptCtx)(ctx) };
    guarded("unlink", (), || {
        if object.queue.is_forgettable() {
            // Removed from the schedule when it became empty.
            return;
        }
        let holders = object.queue.holders().collect();
        depart(Departed::Queue { place: (db, name.bytes().into()), planned: object.planned, holders });
        process::try_with(|process| process.schedule.see_departed());
    });
}

/// Called when a table of workers leaves its key.
pub(crate) extern "C" fn unlink_workers(ctx: *mut raw::RedisModuleKeyOptCtx, value: *const c_void) {
    // SAFETY: Redis passes a value of this type.
    let table = unsafe { &*value.cast::<Table>() };
    // SAFETY: the context of this call; the string lives as long as it does.
    let name = unsafe { Str::new(function!(RedisModule_GetKeyNameFromOptCtx)(ctx).cast_mut()) };
    // SAFETY: as above.
    let db = unsafe { function!(RedisModule_GetDbIdFromOptCtx)(ctx) };
    if name.bytes() != workers::KEY {
        return;
    }
    guarded("unlink", (), || {
        let ended = if decides() { table.incarnations().collect() } else { Vec::new() };
        let place = (db, name.bytes().into());
        depart(Departed::Workers { place, planned: table.planned(), ended });
        process::try_with(|process| process.schedule.see_departed());
    });
}

/// Copies a queue. Redis sends an event when the copy is in place.
pub(crate) extern "C" fn copy_queue(
    ctx: *mut raw::RedisModuleKeyOptCtx,
    value: *const c_void,
) -> *mut c_void {
    // SAFETY: Redis passes a value of this type.
    let object = unsafe { &*value.cast::<Object>() };
    // SAFETY: the context of this call; the string lives as long as it does.
    let name = unsafe { Str::new(function!(RedisModule_GetToKeyNameFromOptCtx)(ctx).cast_mut()) };
    // SAFETY: as above.
    let db = unsafe { function!(RedisModule_GetToDbIdFromOptCtx)(ctx) };
    let copied = guarded("copy", None, || {
        process::with(|process| process.arriving = Some((db, name.bytes().into())));
        Some(Box::new(object.copied()))
    });
    copied.map_or(ptr::null_mut(), |copy| Box::into_raw(copy).cast())
}

pub(crate) extern "C" fn digest_queue(digest: *mut raw::RedisModuleDigest, value: *mut c_void) {
    // SAFETY: Redis passes a value of this type.
    let object = unsafe { &*value.cast::<Object>() };
    add_digest(digest, || object.digest());
}

fn add_digest(digest: *mut raw::RedisModuleDigest, of: impl FnOnce() -> u64) {
    let bytes = guarded("digest", 0, of).to_le_bytes();
    // SAFETY: the digest of this call; the bytes are copied.
    unsafe { function!(RedisModule_DigestAddStringBuffer)(digest, bytes.as_ptr().cast(), bytes.len()) };
    // SAFETY: as above.
    unsafe { function!(RedisModule_DigestEndSequence)(digest) };
}

/// Defragments memory: moves the object, which has no pointers into itself, to another block.
pub(crate) extern "C" fn defrag_queue(
    ctx: *mut raw::RedisModuleDefragCtx,
    _: *mut raw::RedisModuleString,
    value: *mut *mut c_void,
) -> c_int {
    // SAFETY: Redis passes the place of the pointer to the value, which is a block of its allocator.
    let moved = unsafe { function!(RedisModule_DefragAlloc)(ctx, *value) };
    if !moved.is_null() {
        // SAFETY: as above; the old block is freed.
        unsafe { *value = moved };
    }
    0
}

pub(crate) extern "C" fn load_workers(io: *mut raw::RedisModuleIO, version: c_int) -> *mut c_void {
    let io = Strings(io);
    let loaded = guarded("load", Err("an internal error".to_owned()), || read_workers(&io, version));
    match loaded {
        Ok(table) => Box::into_raw(table).cast(),
        Err(wrong) => {
            guarded("complaint", (), || io.complain(&wrong));
            ptr::null_mut()
        }
    }
}

fn read_workers(io: &Strings, version: c_int) -> Result<Box<Table>, Wrong> {
    if version != VERSION {
        return Err(format!("it was saved in version {version}, and this release knows {VERSION}"));
    }
    let mut table = Box::new(Table::default());
    io.next(|events| table.apply(events))?;
    process::with(|process| {
        process.marks.see_id(table.last_id());
        if let Some((db, name)) = io.place() {
            process.schedule.look_at(LogTime(0), db, name);
        }
    });
    Ok(table)
}

pub(crate) extern "C" fn save_workers(io: *mut raw::RedisModuleIO, value: *mut c_void) {
    // SAFETY: Redis passes a value of this type, and no other reference to it exists meanwhile.
    let table = unsafe { &*value.cast::<Table>() };
    guarded("save", (), || Strings(io).save(&table.export()));
}

pub(crate) extern "C" fn rewrite_workers(
    io: *mut raw::RedisModuleIO,
    key: *mut raw::RedisModuleString,
    value: *mut c_void,
) {
    // SAFETY: Redis passes a value of this type, and no other reference to it exists meanwhile.
    let table = unsafe { &*value.cast::<Table>() };
    guarded("rewrite", (), || emit(io, key, &table.export()));
}

pub(crate) extern "C" fn free_workers(value: *mut c_void) {
    // SAFETY: Redis passes back a value that one of these callbacks, or `Key::set_workers`, has made.
    let table = unsafe { Box::from_raw(value.cast::<Table>()) };
    guarded("free", (), || drop(table));
}

pub(crate) extern "C" fn workers_memory(
    _: *mut raw::RedisModuleKeyOptCtx,
    value: *const c_void,
    _: usize,
) -> usize {
    // SAFETY: Redis passes a value of this type.
    let table = unsafe { &*value.cast::<Table>() };
    guarded("memory", 0, || table.memory())
}

pub(crate) extern "C" fn digest_workers(digest: *mut raw::RedisModuleDigest, value: *mut c_void) {
    // SAFETY: Redis passes a value of this type.
    let table = unsafe { &*value.cast::<Table>() };
    add_digest(digest, || table.digest());
}

/// Writes the INFO section.
pub(crate) extern "C" fn info(ctx: *mut raw::RedisModuleInfoCtx, is_crash: c_int) {
    if is_crash != 0 {
        // A crash report can be written at any point, so nothing may be borrowed or allocated.
        return;
    }
    guarded("info", (), || {
        let fields = process::with(|process| {
            let (planned, overdue) = process.schedule.counts(process.clock.now().log);
            let held = process.schedule.held_count() as u64;
            [
                (c"incarnation", process.marks.incarnation),
                (c"planned", planned as u64),
                (c"overdue", (overdue + waiting::suspects()) as u64),
                (c"held", held),
                (c"under_way", process.jobs.len() as u64),
                (c"slices", process.slices),
                (c"worker_pops", waiting::count() as u64),
            ]
        });
        // SAFETY: the context of this call.
        unsafe { function!(RedisModule_InfoAddSection)(ctx, ptr::null()) };
        for (name, value) in fields {
            // SAFETY: as above; the name is ended.
            unsafe { function!(RedisModule_InfoAddFieldULongLong)(ctx, name.as_ptr(), value) };
        }
    });
}

/// The auxiliary data of a snapshot: the marks and the time.
pub(crate) extern "C" fn save_marks(io: *mut raw::RedisModuleIO, _: c_int) {
    let io = Strings(io);
    guarded("save marks", (), || {
        process::with(|process| {
            io.save_number(process.marks.last_id.raw());
            io.save_number(process.marks.last_incarnation);
            io.save_number(process.clock.now().log.0);
        });
    });
}

pub(crate) extern "C" fn load_marks(io: *mut raw::RedisModuleIO, _: c_int, _: c_int) -> c_int {
    let io = Strings(io);
    let loaded = guarded("load marks", Err("an internal error".to_owned()), || {
        let (id, incarnation, time) = (io.number()?, io.number()?, io.number()?);
        process::with(|process| {
            process.marks.see_id(TaskId::at_or_below(id).unwrap_or(TaskId::NONE));
            let seen = process.marks.last_incarnation;
            process.marks.last_incarnation = seen.max(incarnation.min(INCARNATION_MAX));
            process.clock.follow(LogTime(time.min(TIME_MAX)));
        });
        Ok(())
    });
    match loaded {
        Ok(()) => OK,
        Err(wrong) => {
            guarded("complaint", (), || io.complain(&wrong));
            ERR
        }
    }
}
