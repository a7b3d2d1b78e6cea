//! Safe wrappers around the C API of Redis, without decisions.
//!
//! A [`Ctx`] and everything borrowed from it live no longer than the callback that received it. The loader sets the
//! functions and refuses a server that lacks a required one. All of them are called on Redis' main thread, except
//! [`log`].

use std::ffi::{CStr, CString, c_int, c_longlong, c_void};
use std::marker::PhantomData;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use redis_module::raw;
use sureq_proto::resp::{Pieces, harmless};

use crate::object::Object;
use crate::workers::Table;

/// Calls a function of Redis, which the loader has set. Each use explains why it is sound.
macro_rules! function {
    ($name:ident) => {
        raw::$name.expect("the loader has seen that it is there")
    };
}
pub(crate) use function;

/// The type of queues, and that of tables of workers.
static QUEUES: AtomicPtr<raw::RedisModuleType> = AtomicPtr::new(ptr::null_mut());
static WORKERS: AtomicPtr<raw::RedisModuleType> = AtomicPtr::new(ptr::null_mut());

/// Stores the types that the server created.
pub(crate) fn set_types(queues: *mut raw::RedisModuleType, workers: *mut raw::RedisModuleType) {
    QUEUES.store(queues, Ordering::Relaxed);
    WORKERS.store(workers, Ordering::Relaxed);
}

/// Writes a line to the log of the server.
pub(crate) fn log(level: &str, text: &str) {
    let text: Vec<u8> = text.bytes().map(harmless).collect();
    let (level, text) = (CString::new(level), CString::new(text));
    if let (Ok(level), Ok(text)) = (level, text) {
        // SAFETY: a null context is allowed; the format takes one string, and both are NUL-terminated.
        unsafe { function!(RedisModule_Log)(ptr::null_mut(), level.as_ptr(), c"%s".as_ptr(), text.as_ptr()) };
    }
}

/// The monotonic clock.
pub(crate) fn monotonic_us() -> u64 {
    // SAFETY: no preconditions.
    unsafe { function!(RedisModule_MonotonicMicroseconds)() }
}

/// The wall clock.
pub(crate) fn wall_ms() -> u64 {
    // SAFETY: no preconditions.
    let ms = unsafe { function!(RedisModule_Milliseconds)() };
    u64::try_from(ms).unwrap_or(0)
}

/// Whether writes are paused for a failover, in which they would be lost.
pub(crate) fn is_paused() -> bool {
    // SAFETY: no preconditions.
    unsafe { function!(RedisModule_AvoidReplicaTraffic)() != 0 }
}

/// The maximum duration of a timer.
const TIMER_MS_MAX: u64 = 600_000;

/// A string of Redis.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Str<'c>(*mut raw::RedisModuleString, PhantomData<&'c ()>);

impl<'c> Str<'c> {
    /// # Safety
    ///
    /// It is a string of Redis, and stays one for as long as `'c`.
    pub(crate) const unsafe fn new(string: *mut raw::RedisModuleString) -> Self {
        Self(string, PhantomData)
    }

    pub(crate) fn bytes(self) -> &'c [u8] {
        let mut len = 0;
        // SAFETY: a string that lives for 'c.
        let start = unsafe { function!(RedisModule_StringPtrLen)(self.0, &raw mut len) };
        // SAFETY: Redis reports this length, and the bytes do not change while the string is not written to.
        unsafe { std::slice::from_raw_parts(start.cast(), len) }
    }
}

/// An owned string.
pub(crate) struct Owned<'c>(Ctx<'c>, Str<'c>);

impl Owned<'_> {
    pub(crate) const fn as_str(&self) -> Str<'_> {
        self.1
    }
}

impl Drop for Owned<'_> {
    fn drop(&mut self) {
        // SAFETY: made by `Ctx::string`, and freed once.
        unsafe { function!(RedisModule_FreeString)(self.0.0, self.1.0) };
    }
}

/// The arguments of a command.
///
/// # Safety
///
/// Redis has passed them to the callback, whose end `'c` does not outlive.
pub(crate) unsafe fn words<'c>(argv: *mut *mut raw::RedisModuleString, count: c_int) -> &'c [Str<'c>] {
    let count = usize::try_from(count).unwrap_or(0);
    // SAFETY: `Str` has the layout of a pointer to a string, and Redis passes `count` of them.
    unsafe { std::slice::from_raw_parts(argv.cast(), count) }
}

/// Flags of a context.
#[derive(Clone, Copy)]
pub(crate) struct Flags(u32);

impl Flags {
    const fn has(self, flag: u32) -> bool {
        self.0 & flag != 0
    }

    /// Whether this server is a replica.
    pub(crate) const fn is_replica(self) -> bool {
        self.has(raw::REDISMODULE_CTX_FLAGS_SLAVE)
    }

    /// Whether this server is a cluster node.
    pub(crate) const fn is_cluster(self) -> bool {
        self.has(raw::REDISMODULE_CTX_FLAGS_CLUSTER)
    }

    /// Whether this server writes an append-only file.
    pub(crate) const fn has_log(self) -> bool {
        self.has(raw::REDISMODULE_CTX_FLAGS_AOF)
    }

    /// Whether data are being loaded.
    pub(crate) const fn is_loading(self) -> bool {
        self.has(raw::REDISMODULE_CTX_FLAGS_LOADING)
    }

    /// Whether the command came from the primary or the append-only file.
    pub(crate) const fn is_decided(self) -> bool {
        self.has(raw::REDISMODULE_CTX_FLAGS_REPLICATED | raw::REDISMODULE_CTX_FLAGS_LOADING)
    }

    /// Whether clients may not be blocked.
    pub(crate) const fn may_not_wait(self) -> bool {
        self.has(
            raw::REDISMODULE_CTX_FLAGS_LUA
                | raw::REDISMODULE_CTX_FLAGS_MULTI
                | raw::REDISMODULE_CTX_FLAGS_DENY_BLOCKING,
        )
    }

    /// Whether a script called the command.
    pub(crate) const fn is_script(self) -> bool {
        self.has(raw::REDISMODULE_CTX_FLAGS_LUA)
    }
}

/// The context of a callback.
#[derive(Clone, Copy)]
pub(crate) struct Ctx<'c>(*mut raw::RedisModuleCtx, PhantomData<&'c ()>);

impl<'c> Ctx<'c> {
    /// # Safety
    ///
    /// Redis has passed it to the callback, whose end `'c` does not outlive.
    pub(crate) const unsafe fn new(ctx: *mut raw::RedisModuleCtx) -> Self {
        Self(ctx, PhantomData)
    }

    pub(crate) const fn raw(self) -> *mut raw::RedisModuleCtx {
        self.0
    }

    pub(crate) fn flags(self) -> Flags {
        // SAFETY: a context.
        let flags = unsafe { function!(RedisModule_GetContextFlags)(self.0) };
        Flags(flags.cast_unsigned())
    }

    /// The id of the calling client.
    pub(crate) fn client(self) -> u64 {
        // SAFETY: a context.
        unsafe { function!(RedisModule_GetClientId)(self.0) }
    }

    pub(crate) fn db(self) -> i32 {
        // SAFETY: a context.
        unsafe { function!(RedisModule_GetSelectedDb)(self.0) }
    }

    pub(crate) fn select(self, db: i32) -> bool {
        // SAFETY: a context; an invalid number is an error.
        unsafe { function!(RedisModule_SelectDb)(self.0, db) == raw::REDISMODULE_OK as c_int }
    }

    pub(crate) fn string(self, bytes: &[u8]) -> Owned<'c> {
        // SAFETY: the bytes are copied.
        let string =
            unsafe { function!(RedisModule_CreateString)(self.0, bytes.as_ptr().cast(), bytes.len()) };
        // SAFETY: owned until it is dropped.
        Owned(self, unsafe { Str::new(string) })
    }

    /// Opens a key for writing.
    pub(crate) fn open(self, name: Str<'_>) -> Key<'c> {
        self.open_as(name, raw::REDISMODULE_READ | raw::REDISMODULE_WRITE)
    }

    pub(crate) fn open_to_read(self, name: Str<'_>) -> Key<'c> {
        self.open_as(name, raw::REDISMODULE_READ)
    }

    fn open_as(self, name: Str<'_>, mode: u32) -> Key<'c> {
        // SAFETY: a context and a string.
        let key = unsafe { function!(RedisModule_OpenKey)(self.0, name.0, mode.cast_signed()) };
        Key(key, PhantomData)
    }

    /// Marks a key as changed for WATCH and client-side caching.
    pub(crate) fn touch(self, key: Str<'_>) {
        // SAFETY: a context and a string.
        unsafe { function!(RedisModule_SignalModifiedKey)(self.0, key.0) };
    }

    /// Propagates a command on a key to the log and replicas.
    pub(crate) fn replicate(self, key: Str<'_>, effects: &[u8]) {
        let (name, format) = (c"RQ.APPLY".as_ptr(), c"sb".as_ptr());
        // SAFETY: the format takes a string, a buffer and its length.
        unsafe {
            function!(RedisModule_Replicate)(self.0, name, format, key.0, effects.as_ptr(), effects.len())
        };
    }

    /// Propagates the current command verbatim, and counts it as an unsaved change.
    pub(crate) fn replicate_as_is(self) {
        // SAFETY: a context of a command.
        unsafe { function!(RedisModule_ReplicateVerbatim)(self.0) };
    }

    /// Whether there are replicas, or a backlog for one that reconnects.
    pub(crate) fn has_replicas(self) -> bool {
        // SAFETY: a context and a NUL-terminated string.
        let info = unsafe { function!(RedisModule_GetServerInfo)(self.0, c"replication".as_ptr()) };
        let count = |field: &CStr| {
            let mut failed = 0;
            // SAFETY: the info requested above, and a NUL-terminated string.
            let n = unsafe {
                function!(RedisModule_ServerInfoGetFieldUnsigned)(info, field.as_ptr(), &raw mut failed)
            };
            // A missing field counts as present replicas, to be safe.
            n > 0 || failed != 0
        };
        let has = count(c"connected_slaves") || count(c"repl_backlog_active");
        // SAFETY: owned by this function, and freed once.
        unsafe { function!(RedisModule_FreeServerInfo)(self.0, info) };
        has
    }

    /// Wakes clients that are blocked on a key.
    pub(crate) fn signal(self, key: Str<'_>) {
        // SAFETY: a context and a string.
        unsafe { function!(RedisModule_SignalKeyAsReady)(self.0, key.0) };
    }

    /// Sends a keyspace event.
    pub(crate) fn notify(self, event: &CStr, key: Str<'_>) {
        self.notify_of(raw::REDISMODULE_NOTIFY_MODULE, event, key);
    }

    /// Sends the keyspace event for a removed key.
    pub(crate) fn notify_deleted(self, key: Str<'_>) {
        self.notify_of(raw::REDISMODULE_NOTIFY_GENERIC, c"del", key);
    }

    fn notify_of(self, kind: c_int, event: &CStr, key: Str<'_>) {
        // SAFETY: a context, a NUL-terminated name and a string.
        unsafe { function!(RedisModule_NotifyKeyspaceEvent)(self.0, kind, event.as_ptr(), key.0) };
    }

    /// Blocks the client on keys; it is answered when `woken` has a reply, or after the timeout. 0 means no timeout.
    pub(crate) fn wait(
        self,
        keys: &[Str<'_>],
        ms: u64,
        woken: raw::RedisModuleCmdFunc,
        over: raw::RedisModuleCmdFunc,
    ) -> Waiter {
        let timeout = c_longlong::try_from(ms).unwrap_or(c_longlong::MAX);
        let (list, count) =
            (keys.as_ptr().cast_mut().cast(), c_int::try_from(keys.len()).unwrap_or(c_int::MAX));
        // SAFETY: the keys are copied; there is no private data to be freed.
        let client = unsafe {
            function!(RedisModule_BlockClientOnKeys)(
                self.0,
                woken,
                over,
                None,
                timeout,
                list,
                count,
                ptr::null_mut(),
            )
        };
        Waiter(client)
    }

    /// The client for which `woken` or `over` is called.
    pub(crate) fn waiter(self) -> WaiterId {
        // SAFETY: a context.
        WaiterId::of(unsafe { function!(RedisModule_GetBlockedClientHandle)(self.0) })
    }

    /// Blocks the client until [`Blocked::end`] answers it, without a timeout. `gone` is called if it disconnects
    /// before; it must be ended in that case as well.
    pub(crate) fn block(self, gone: raw::RedisModuleDisconnectFunc) -> Blocked {
        // SAFETY: the context of a command whose client may be blocked; there are no callbacks and no private data.
        let client = unsafe { function!(RedisModule_BlockClient)(self.0, None, None, None, 0) };
        // SAFETY: a client that was just blocked.
        unsafe { function!(RedisModule_SetDisconnectCallback)(client, gone) };
        // SAFETY: as above. Used only on the main thread, which holds the lock of the server.
        let reply = unsafe { function!(RedisModule_GetThreadSafeContext)(client) };
        Blocked { client, reply }
    }

    /// Begins an array of a length that is set at its end.
    pub(crate) fn begin_array(self) {
        let unknown = raw::REDISMODULE_POSTPONED_LEN.into();
        // SAFETY: a context.
        unsafe { function!(RedisModule_ReplyWithArray)(self.0, unknown) };
    }

    /// Sets the number of elements written since [`Self::begin_array`].
    pub(crate) fn end_array(self, len: usize) {
        // SAFETY: a context in which an array was begun.
        unsafe { function!(RedisModule_ReplySetArrayLength)(self.0, len.cast_signed() as i64) };
    }

    /// Whether Redis is only asking for the positions of keys.
    pub(crate) fn is_about_keys(self) -> bool {
        // SAFETY: a context.
        unsafe { function!(RedisModule_IsKeysPositionRequest)(self.0) != 0 }
    }

    /// Reports an argument as a key.
    pub(crate) fn is_key(self, at: usize) {
        // SAFETY: a context that asks for keys.
        unsafe { function!(RedisModule_KeyAtPos)(self.0, c_int::try_from(at).unwrap_or(c_int::MAX)) };
    }

    /// Sets a timer. It fires early if `ms` is large, since Redis counts microseconds, in some places in 32 bits.
    pub(crate) fn call_later(self, ms: u64, function: raw::RedisModuleTimerProc) -> u64 {
        let ms = ms.min(TIMER_MS_MAX).cast_signed();
        // SAFETY: the function takes no data.
        unsafe { function!(RedisModule_CreateTimer)(self.0, ms, function, ptr::null_mut()) }
    }

    /// Cancels a timer.
    pub(crate) fn do_not_call(self, timer: u64) {
        // SAFETY: stopping a timer that has fired already is an error without further effect.
        unsafe { function!(RedisModule_StopTimer)(self.0, timer, ptr::null_mut()) };
    }

    /// A page of the keys that hold queues: the next cursor and names. `None` if the server does not answer.
    pub(crate) fn scan(self, cursor: u64, pattern: Option<&[u8]>, count: u32) -> Option<(u64, Vec<Vec<u8>>)> {
        let (cursor, count) = (cursor.to_string(), count.to_string());
        let pattern = pattern.unwrap_or(b"*");
        // SAFETY: the format takes a buffer, three NUL-terminated strings around one more buffer, and two more such
        // strings.
        let reply = unsafe {
            function!(RedisModule_Call)(
                self.0,
                c"SCAN".as_ptr(),
                c"bcbcbcc".as_ptr(),
                cursor.as_ptr(),
                cursor.len(),
                c"MATCH".as_ptr(),
                pattern.as_ptr(),
                pattern.len(),
                c"COUNT".as_ptr(),
                count.as_ptr(),
                count.len(),
                c"TYPE".as_ptr(),
                c"RELIABLEQ".as_ptr(),
            )
        };
        let reply = Reply(reply);
        let page = reply.page();
        if !reply.0.is_null() {
            // SAFETY: a reply that this function owns, whose parts are no longer borrowed.
            unsafe { function!(RedisModule_FreeCallReply)(reply.0) };
        }
        page
    }
}

/// A client whose command is executed in slices. Redis collects its reply and sends it at the end.
///
/// There is no `Drop`: the state of the process outlives the API when the server exits.
pub(crate) struct Blocked {
    client: *mut raw::RedisModuleBlockedClient,
    reply: *mut raw::RedisModuleCtx,
}

impl Blocked {
    /// The context for writing its reply.
    pub(crate) const fn reply(&self) -> Ctx<'_> {
        Ctx(self.reply, PhantomData)
    }

    /// Whether this is the handle that Redis passed.
    pub(crate) fn is(&self, client: *mut raw::RedisModuleBlockedClient) -> bool {
        ptr::eq(self.client, client)
    }

    /// Sends the collected reply, if the client is still connected.
    pub(crate) fn end(self) {
        // SAFETY: made by `Ctx::block`, and freed once; every array that was begun has been ended.
        unsafe { function!(RedisModule_FreeThreadSafeContext)(self.reply) };
        // SAFETY: a blocked client, which is not used again.
        unsafe { function!(RedisModule_UnblockClient)(self.client, ptr::null_mut()) };
    }
}

/// A client that is blocked on keys. The handle is valid until Redis has called `woken` with success, `over`, or the
/// callback of [`Self::on_leave`]; its owner must drop it then.
///
/// There is no `Drop`: Redis frees the handle of a client that is not ended here.
pub(crate) struct Waiter(*mut raw::RedisModuleBlockedClient);

impl Waiter {
    pub(crate) fn id(&self) -> WaiterId {
        WaiterId::of(self.0)
    }

    /// Sets `left` as the callback for a client that disconnects or is unblocked before its answer. Redis ends the
    /// handle in that case.
    pub(crate) fn on_leave(&self, left: raw::RedisModuleDisconnectFunc) {
        // SAFETY: a client that is blocked.
        unsafe { function!(RedisModule_SetDisconnectCallback)(self.0, left) };
    }

    /// Unblocks the client now: `over` is called before this returns, and answers it.
    pub(crate) fn end(self) {
        // SAFETY: a client that is blocked; the handle is not used again.
        unsafe { function!(RedisModule_UnblockClient)(self.0, ptr::null_mut()) };
    }
}

/// Identifies a blocked client as long as it is blocked.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct WaiterId(usize);

impl WaiterId {
    pub(crate) const MIN: Self = Self(usize::MIN);
    pub(crate) const MAX: Self = Self(usize::MAX);

    pub(crate) fn of(client: *mut raw::RedisModuleBlockedClient) -> Self {
        Self(client.addr())
    }
}

/// A reply to a command that this module calls, or a part of one.
#[derive(Clone, Copy)]
struct Reply(*mut raw::RedisModuleCallReply);

impl Reply {
    /// The reply to SCAN: the next cursor and names.
    fn page(self) -> Option<(u64, Vec<Vec<u8>>)> {
        let next = std::str::from_utf8(self.at(0)?.bytes()?).ok()?.parse().ok()?;
        let names = self.at(1)?;
        let names = (0..names.len()).filter_map(|at| Some(names.at(at)?.bytes()?.to_vec()));
        Some((next, names.collect()))
    }

    fn len(self) -> usize {
        // SAFETY: a reply.
        unsafe { function!(RedisModule_CallReplyLength)(self.0) }
    }

    fn at(self, index: usize) -> Option<Self> {
        if self.0.is_null() {
            return None;
        }
        // SAFETY: a reply; for one that is not an array, or too short, the result is null.
        let part = unsafe { function!(RedisModule_CallReplyArrayElement)(self.0, index) };
        (!part.is_null()).then_some(Self(part))
    }

    fn bytes<'r>(self) -> Option<&'r [u8]> {
        let mut len = 0;
        // SAFETY: a reply; for one that is not a string the result is null.
        let start = unsafe { function!(RedisModule_CallReplyStringPtr)(self.0, &raw mut len) };
        if start.is_null() {
            return None;
        }
        // SAFETY: Redis reports this length; the whole reply is freed after its last use.
        Some(unsafe { std::slice::from_raw_parts(start.cast(), len) })
    }
}

/// An open key.
pub(crate) struct Key<'c>(*mut raw::RedisModuleKey, PhantomData<&'c ()>);

/// The content of a key.
pub(crate) enum Value<'k> {
    Nothing,
    Queue(&'k mut Object),
    Workers(&'k mut Table),
    /// A value of another type.
    Other,
}

impl Key<'_> {
    /// The content of the key. A key is opened once at a time, so that the borrow is unique.
    pub(crate) fn value(&mut self) -> Value<'_> {
        // SAFETY: an open key, or null for a missing one.
        let kind = unsafe { function!(RedisModule_KeyType)(self.0) };
        if kind == raw::REDISMODULE_KEYTYPE_EMPTY as c_int {
            return Value::Nothing;
        }
        if kind != raw::REDISMODULE_KEYTYPE_MODULE as c_int {
            return Value::Other;
        }
        // SAFETY: an open key.
        let kind = unsafe { function!(RedisModule_ModuleTypeGetType)(self.0) };
        // SAFETY: an open key that holds a value of a module.
        let value = unsafe { function!(RedisModule_ModuleTypeGetValue)(self.0) };
        if kind == QUEUES.load(Ordering::Relaxed) {
            // SAFETY: only `set`, `load` and `copy` make values of this type, and the open key lends this one.
            return Value::Queue(unsafe { &mut *value.cast() });
        }
        if kind == WORKERS.load(Ordering::Relaxed) {
            // SAFETY: as above.
            return Value::Workers(unsafe { &mut *value.cast() });
        }
        Value::Other
    }

    /// The database of the key; `None` for a missing key that was opened for reading. Unlike [`Ctx::db`] this is
    /// right in MULTI on Valkey, which reports the database of the client even if another is selected.
    pub(crate) fn db(&self) -> Option<i32> {
        // SAFETY: an open key.
        (!self.0.is_null()).then(|| unsafe { function!(RedisModule_GetDbIdFromModuleKey)(self.0) })
    }

    /// Stores a queue.
    pub(crate) fn set_queue(&mut self, object: Box<Object>) {
        self.set(&QUEUES, Box::into_raw(object).cast());
    }

    /// Stores a table of workers.
    pub(crate) fn set_workers(&mut self, table: Box<Table>) {
        self.set(&WORKERS, Box::into_raw(table).cast());
    }

    fn set(&mut self, kind: &AtomicPtr<raw::RedisModuleType>, value: *mut c_void) {
        // SAFETY: a key that is open for writing; the value has the right type, and Redis owns it from now on.
        unsafe { function!(RedisModule_ModuleTypeSetValue)(self.0, kind.load(Ordering::Relaxed), value) };
    }

    /// Deletes the key.
    pub(crate) fn delete(&mut self) {
        // SAFETY: a key that is open for writing; no reference to its value exists.
        unsafe { function!(RedisModule_DeleteKey)(self.0) };
    }
}

impl Drop for Key<'_> {
    fn drop(&mut self) {
        if !self.0.is_null() {
            // SAFETY: the key is open, and closed once.
            unsafe { function!(RedisModule_CloseKey)(self.0) };
        }
    }
}

impl Pieces for Ctx<'_> {
    fn simple(&mut self, text: &str) {
        let text = CString::new(text).unwrap_or_default();
        // SAFETY: a context and a NUL-terminated string.
        unsafe { function!(RedisModule_ReplyWithSimpleString)(self.0, text.as_ptr()) };
    }

    fn error(&mut self, text: impl std::fmt::Display) {
        let text: Vec<u8> = text.to_string().bytes().map(harmless).collect();
        let text = CString::new(text).unwrap_or_default();
        // SAFETY: a context and a NUL-terminated string.
        unsafe { function!(RedisModule_ReplyWithError)(self.0, text.as_ptr()) };
    }

    fn integer(&mut self, n: i64) {
        // SAFETY: a context.
        unsafe { function!(RedisModule_ReplyWithLongLong)(self.0, n) };
    }

    fn bulk(&mut self, bytes: &[u8]) {
        // SAFETY: a context; the bytes are copied.
        unsafe { function!(RedisModule_ReplyWithStringBuffer)(self.0, bytes.as_ptr().cast(), bytes.len()) };
    }

    fn null(&mut self) {
        // SAFETY: a context.
        unsafe { function!(RedisModule_ReplyWithNull)(self.0) };
    }

    fn array(&mut self, len: usize) {
        // SAFETY: a context.
        unsafe { function!(RedisModule_ReplyWithArray)(self.0, len.cast_signed() as i64) };
    }

    fn map(&mut self, len: usize) {
        // SAFETY: a context.
        unsafe { function!(RedisModule_ReplyWithMap)(self.0, len.cast_signed() as i64) };
    }
}
