//! RQ.APPLY: replays decisions of the primary, or of this server before its restart. Clients must not use it.
//!
//! The bytes are untrusted. Events that do not fit the queue are an error. The queue keeps the changes before the
//! error only if it is still consistent, since the rest of the stream continues.

use sureq_core::queue::HolderNews;
use sureq_core::task::Holder;
use sureq_core::{Event, LogTime, codec};
use sureq_proto::resp::Pieces as _;

use crate::effects::Silent;
use crate::keyed::Untouched;
use crate::object::{NUMBER, Object};
use crate::process::{self, TIME_MAX};
use crate::redis::{self, Ctx, Str, Value};
use crate::saved::{self, Wrong};
use crate::tick;
use crate::workers::{self, Table};

/// Executes `RQ.APPLY key events`.
pub(crate) fn apply(mut ctx: Ctx<'_>, words: &[Str<'_>]) {
    let &[_, name, events] = words else {
        return ctx.error("ERR wrong number of arguments for 'rq.apply' command");
    };
    if !ctx.flags().is_decided() {
        return ctx.error("ERR RQ.APPLY is internal: a primary sends it to its replicas, clients cannot");
    }
    match take(ctx, name, events.bytes()) {
        Ok(()) => {
            ctx.replicate_as_is();
            ctx.simple("OK");
        }
        Err(wrong) => {
            let name = String::from_utf8_lossy(name.bytes());
            redis::log(
                "warning",
                &format!("sureq: this server may differ from its primary in '{name}': {wrong}"),
            );
            ctx.error(format_args!("ERR cannot apply: {wrong}"));
        }
    }
}

fn take(ctx: Ctx<'_>, name: Str<'_>, events: &[u8]) -> Result<(), Wrong> {
    let mut key = ctx.open(name);
    let mut fresh = None;
    let object = match key.value() {
        Value::Queue(object) => object,
        Value::Workers(table) => {
            take_workers(ctx, name, table, events)?;
            if table.is_empty() {
                key.delete();
            }
            ctx.touch(name);
            return Ok(());
        }
        Value::Nothing if workers::are_meant_by(events) => {
            let mut table = Box::new(Table::default());
            take_workers(ctx, name, &mut table, events)?;
            if !table.is_empty() {
                key.set_workers(table);
            }
            ctx.touch(name);
            return Ok(());
        }
        Value::Nothing => &mut **fresh.insert(Box::new(Object::new())),
        Value::Other => return Err(Untouched::WrongType.text().to_owned()),
    };
    let mut holders = Holders::default();
    let taken = take_events(object, events, &mut holders);
    release(ctx, name, object);
    let is_sound = taken.is_ok() && !object.queue.is_unfinished() || saved::check(object).is_ok();
    welcome(ctx, name, object, holders);
    let stays = is_sound && !object.queue.is_forgettable();
    if !stays {
        process::with(|process| process.schedule.forget(object, &(ctx.db(), name.bytes().into())));
    }
    match fresh {
        Some(object) if stays => key.set_queue(object),
        None if !stays => key.delete(),
        _ => {}
    }
    ctx.touch(name);
    if is_sound { taken } else { taken.and(Err("the queue became inconsistent and was deleted".to_owned())) }
}

/// Log time is taken from the events and not from this machine's clock, so that a promoted replica continues from
/// there.
fn take_events(object: &mut Object, mut events: &[u8], holders: &mut Holders) -> Result<(), Wrong> {
    let mut at = LogTime(0);
    while !events.is_empty() {
        let decoded = codec::decode(events, |event| {
            holders.note(event);
            take_event(object, event, &mut at)
        });
        let (taken, rest) = decoded.map_err(|malformed| malformed.to_string())?;
        taken?;
        events = rest;
    }
    object.queue.take_dying();
    object.queue.take_lapsed();
    object.queue.release_purged(&mut Silent(&mut object.usage));
    if at > LogTime(0) {
        process::with(|process| process.clock.follow(at));
    }
    Ok(())
}

fn take_event(object: &mut Object, event: &Event<'_>, at: &mut LogTime) -> Result<(), Wrong> {
    match event {
        Event::Clock(time) if time.0 <= TIME_MAX => *at = *time,
        Event::Started { .. } => apply_to(object, event, *at)?,
        _ if event.queue() == Some(NUMBER) => apply_to(object, event, *at)?,
        _ => return Err("an event of another queue, or without a time".to_owned()),
    }
    Ok(())
}

fn apply_to(object: &mut Object, event: &Event<'_>, at: LogTime) -> Result<(), Wrong> {
    let Object { queue, usage, .. } = object;
    queue.apply(event, at, &mut Silent(usage)).map_err(|inconsistent| inconsistent.to_string())
}

/// The holders that some events may have added.
#[derive(Default)]
struct Holders {
    named: Vec<Holder>,
    /// Set if any holder of the queue may be new.
    are_unknown: bool,
}

impl Holders {
    fn note(&mut self, event: &Event<'_>) {
        match event {
            Event::Popped { terms, .. } => self.named.extend(terms.holder),
            // Every copy begins with this event, so all its holders are new.
            Event::Task(_) | Event::Started { .. } => self.are_unknown = true,
            _ => {}
        }
    }
}

/// Removes the schedule's entries for holders that have no task of the queue any more.
fn release(ctx: Ctx<'_>, name: Str<'_>, object: &mut Object) {
    process::with(|process| {
        object.queue.drain_holder_news(|holder, news| {
            if news == HolderNews::HoldsNothing {
                process.schedule.unhold(holder, &(ctx.db(), name.bytes().into()));
            }
        });
    });
}

/// Records the ids and incarnations of the queue, and schedules its deadlines for the case that this server becomes
/// the primary.
fn welcome(ctx: Ctx<'_>, name: Str<'_>, object: &mut Object, mut holders: Holders) {
    if holders.are_unknown {
        holders.named.extend(object.queue.holders());
    }
    holders.named.retain(|&holder| object.queue.held_by(holder) > 0);
    process::with(|process| {
        process.marks.see(&object.queue);
        let now = process.clock.now();
        let place = || (ctx.db(), name.bytes().into());
        process.schedule.plan(object, place, now);
        for holder in holders.named {
            process.schedule.hold(holder, ctx.db(), name.bytes());
        }
        tick::arm(ctx, process, now);
    });
}

/// Applies events to a table of workers. Its expiry is scheduled too: if this server becomes the primary, workers
/// without heartbeats are declared lost.
fn take_workers(ctx: Ctx<'_>, name: Str<'_>, table: &mut Table, events: &[u8]) -> Result<(), Wrong> {
    let at = table.apply(events)?;
    process::with(|process| {
        process.marks.see_id(table.last_id());
        if at > LogTime(0) {
            process.clock.follow(at);
        }
        process.schedule.look_at(LogTime(0), ctx.db(), name.bytes());
    });
    Ok(())
}
