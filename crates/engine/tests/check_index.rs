//! A check compares the index with the log: it detects a checkpoint that has the place of another task's payload,
//! although all checksums match.

mod check_support;

use std::collections::BTreeMap;

use check_support::{Files, Life, checked, disk_of, is_segment};
use sureq_core::broker::Image;
use sureq_core::codec::{self, write_number};
use sureq_core::command::{LeaseAsk, Pop};
use sureq_core::settings::{Change, Changes};
use sureq_core::task::Body as _;
use sureq_core::{Broker, Command, Event, Recorder, TaskId};
use sureq_engine::Body;
use sureq_engine::check::{Finding, QueueReport, Report, Severity};
use sureq_engine::checkpoint::{Blob, Checkpoints};
use sureq_engine::log::{LogAddress, LogOptions, Position, scan};
use sureq_engine::store::Store;
use sureq_testkit::sim_disk::SimDisk;

/// The number of tasks, which fill some segments.
const TASKS: usize = 600;

/// The number of tasks that are pushed at a time, in one frame.
const BATCH: usize = 10;

/// Segment, offset and length of a payload.
type At = (u64, u64, u64);

/// Pairs of payloads: the index gets the place of the second for the first.
type Astray<'a> = &'a [(&'a [u8], &'a [u8])];

/// A store without an index.
struct Plain {
    files: Files,
    /// The tasks, in the order of their payloads.
    ids: Vec<TaskId>,
}

fn payload(n: usize) -> Vec<u8> {
    format!("payload {n:04}").into_bytes()
}

/// A store of tasks with payloads of the same length, none of which was finished.
fn plain() -> Plain {
    let life = Life::new();
    let mut ids = Vec::new();
    for batch in (0..TASKS).step_by(BATCH) {
        let payloads: Vec<Vec<u8>> = (batch..batch + BATCH).map(payload).collect();
        let slices: Vec<&[u8]> = payloads.iter().map(Vec::as_slice).collect();
        ids.extend(life.execute(&Command::Push { queue: b"q", payloads: &slices }).ids);
    }
    Plain { files: files_of(&life), ids }
}

/// Ends a life, and returns its files without checkpoints: its log is complete.
fn files_of(life: &Life) -> Files {
    life.engine.close().expect("a sound disk");
    let mut files = life.disk.files();
    files.retain(|name, _| !name.starts_with("checkpoint"));
    files
}

/// The file and the offset of a payload.
fn find(files: &Files, payload: &[u8]) -> (String, usize) {
    let mut segments = files.iter().filter(|(name, _)| is_segment(name));
    let found = segments.find_map(|(name, bytes)| {
        Some((name.clone(), bytes.windows(payload.len()).position(|window| window == payload)?))
    });
    found.expect("it is in the log")
}

/// Builds an index as a start does, except for the wrong places.
struct Indexer<'a> {
    frame: &'a [u8],
    place: LogAddress,
    astray: Astray<'a>,
    /// The places of all payloads.
    known: &'a BTreeMap<Vec<u8>, At>,
    found: BTreeMap<Vec<u8>, At>,
    /// The number of tasks in each segment, and their bytes.
    live: BTreeMap<u64, (u64, u64)>,
}

impl Recorder for Indexer<'_> {
    type Body = Body;

    fn record(&mut self, _event: &Event<'_>) {}

    fn new_body(&mut self, _index: usize, payload: &[u8]) -> Body {
        let offset = self.place.offset + (payload.as_ptr().addr() - self.frame.as_ptr().addr()) as u64;
        let own = (self.place.segment, offset, payload.len() as u64);
        self.found.insert(payload.to_vec(), own);
        let other =
            self.astray.iter().find(|(led, _)| *led == payload).and_then(|(_, to)| self.known.get(*to));
        let at = other.copied().unwrap_or(own);
        let live = self.live.entry(at.0).or_default();
        // As the engine counts: a task takes up 48 bytes besides its payload.
        *live = (live.0 + 1, live.1 + at.2 + 48);
        body_at(at)
    }

    fn payload_hash(&self, _payload: &[u8]) -> u128 {
        0
    }

    fn release_body(&mut self, body: Body) {
        panic!("{body:?} is finished");
    }
}

/// The handle of a payload, as docs/understand/log-format.md has it in a checkpoint.
fn body_at((segment, offset, len): At) -> Body {
    let mut packed = Vec::new();
    for number in [offset << 2, segment, len] {
        write_number(number, &mut packed);
    }
    Body::unpack(None, &packed).expect("a place").0
}

/// An index, the counts of live payloads, its position, and the places of all payloads.
struct Index {
    image: Image<Body>,
    live: BTreeMap<u64, (u64, u64)>,
    end: Position,
    places: BTreeMap<Vec<u8>, At>,
}

fn index(disk: &SimDisk, astray: Astray<'_>, known: &BTreeMap<Vec<u8>, At>) -> Index {
    let uuid = Store::open(&disk.shared()).expect("a sound store").values().uuid;
    let (mut broker, mut places, mut live) = (Broker::<Body>::default(), BTreeMap::new(), BTreeMap::new());
    let scanned = scan(disk, &LogOptions::new(uuid), &mut |frame| {
        let found = std::mem::take(&mut places);
        let counted = std::mem::take(&mut live);
        let mut indexer =
            Indexer { frame: frame.body, place: frame.place, astray, known, found, live: counted };
        let mut rest = frame.body;
        while !rest.is_empty() {
            rest = codec::decode(rest, |event| broker.replay(event, &mut indexer).expect("it fits"))?.1;
        }
        (places, live) = (indexer.found, indexer.live);
        Ok(())
    });
    broker.refresh_all();
    Index { image: broker.image(), live, end: scanned.expect("a sound log").end, places }
}

/// Writes a checkpoint as the engine does, or one that refers to the blobs `shared`.
fn write_checkpoint(disk: &SimDisk, index: &Index, shared: Option<Vec<Blob>>) -> Vec<Blob> {
    let uuid = Store::open(&disk.shared()).expect("a sound store").values().uuid;
    let mut checkpoints = Checkpoints::open(disk.shared(), uuid).expect("they are sound");
    let mut pace = |_| ();
    let mut draft = checkpoints.begin(index.end, &mut pace).expect("a sound disk");
    let queues = || index.image.queues.iter().filter_map(|(no, image)| Some((no, image.as_ref()?)));
    let blobs = shared.unwrap_or_else(|| {
        let mut written = |bytes: Vec<u8>| draft.write(&bytes).expect("a sound disk");
        let parts = queues().flat_map(|(_, image)| image.parts());
        parts.map(|part| written(encoded(|out| part.encode(out)))).collect()
    });
    let mut manifest = Vec::new();
    let put_bytes = |bytes: &[u8], out: &mut Vec<u8>| {
        write_number(bytes.len() as u64, out);
        out.extend_from_slice(bytes);
    };
    put_bytes(&index.image.head, &mut manifest);
    write_number(index.live.len() as u64, &mut manifest);
    for (&segment, &(tasks, bytes)) in &index.live {
        for number in [segment, tasks, bytes] {
            write_number(number, &mut manifest);
        }
    }
    write_number(queues().count() as u64, &mut manifest);
    let mut places = blobs.iter();
    for (no, image) in queues() {
        write_number(u64::from(no.0), &mut manifest);
        put_bytes(&encoded(|out| image.head(out)), &mut manifest);
        write_number(image.parts().len() as u64, &mut manifest);
        for (part, blob) in image.parts().iter().zip(&mut places) {
            write_number(part.stamp(), &mut manifest);
            blob.encode(&mut manifest);
        }
    }
    draft.finish(&manifest, &blobs).expect("a sound disk");
    blobs
}

fn encoded(encode: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut out = Vec::new();
    encode(&mut out);
    out
}

/// The store with two checkpoints that share an index with these wrong places.
fn indexed(files: &Files, astray: Astray<'_>) -> SimDisk {
    let disk = disk_of(files);
    let known = index(&disk, &[], &BTreeMap::new()).places;
    let index = index(&disk, astray, &known);
    let blobs = write_checkpoint(&disk, &index, None);
    write_checkpoint(&disk, &index, Some(blobs));
    disk
}

fn damages(report: &Report) -> Vec<&Finding> {
    report.findings.iter().filter(|finding| finding.severity == Severity::Damage).collect()
}

#[test]
fn a_task_with_the_place_of_its_neighbours_payload_is_reported() {
    let plain = plain();
    let report = checked(&indexed(&plain.files, &[]));
    assert!(report.is_sound(), "{:#?}", report.findings);
    assert_eq!(
        (report.tasks(), report.checkpoints.iter().filter(|file| file.restores).count()),
        (TASKS as u64, 2)
    );
    assert!(report.segments.len() > 1 && report.segments.iter().any(|segment| segment.live_tasks > 100));

    for (led, to) in [(13, 14), (14, 13), (0, TASKS - 1), (TASKS - 1, TASKS - 2)] {
        let report = checked(&indexed(&plain.files, &[(&payload(led), &payload(to))]));
        let (file, offset) = find(&plain.files, &payload(to));
        let damages = damages(&report);
        let [finding] = damages[..] else { panic!("{led} to {to}: {damages:#?}") };
        assert_eq!((&finding.file, finding.offset), (&file, Some(offset as u64)), "{finding:?}");
        let (led, to) = (plain.ids[led], plain.ids[to]);
        let what = format!("the log has the payload of task {to} here, the index that of {led}");
        assert_eq!(finding.what, what);
        assert!(finding.meaning.starts_with(&format!("task {led} of queue q would be delivered")));
        assert_eq!(report.refusal, None, "a start does not notice");
    }
}

#[test]
fn tasks_with_swapped_places_are_reported_in_every_state() {
    let life = Life::new();
    let payloads: Vec<Vec<u8>> = (0..BATCH).map(payload).collect();
    let slices: Vec<&[u8]> = payloads.iter().map(Vec::as_slice).collect();
    life.execute(&Command::Config { queue: b"q", changes: Changes::List(&[Change::DeadLetter(b"grave")]) });
    let ids = life.execute(&Command::Push { queue: b"q", payloads: &slices }).ids;
    let popped: Vec<TaskId> = (0..4).flat_map(|_| pop_any(&life)).collect();
    assert_eq!(popped, ids[..4]);
    life.bury(b"q", &popped[..2]);
    life.execute(&Command::Push { queue: b"empty", payloads: &[b"", b"", b""] });
    life.execute(&Command::Push { queue: b"empty", payloads: &[b""] });
    let files = files_of(&life);
    let report = checked(&indexed(&files, &[]));
    assert!(report.is_sound(), "{:#?}", report.findings);
    let tasks =
        |name: &[u8]| report.queues.iter().find(|queue| queue.name == name).map_or(0, QueueReport::tasks);
    assert_eq!((tasks(b"q"), tasks(b"grave"), tasks(b"empty")), (8, 2, 4), "{:?}", report.queues);

    // A task in the dead-letter queue, a leased one, and a ready one.
    for led in [0, 2, 9] {
        let (one, other) = (payload(led), payload(5));
        let report = checked(&indexed(&files, &[(&one, &other), (&other, &one)]));
        let damages = damages(&report);
        let meanings: Vec<&str> = damages.iter().map(|finding| &*finding.meaning).collect();
        assert_eq!(meanings.len(), 2, "{damages:#?}");
        for id in [ids[led], ids[5]] {
            let of_task = meanings.iter().filter(|text| text.starts_with(&format!("task {id} of queue ")));
            assert_eq!(of_task.count(), 1, "{damages:#?}");
        }
    }
}

/// Pops one task with a lease of a day.
fn pop_any(life: &Life) -> Vec<TaskId> {
    let queues: [&[u8]; 1] = [b"q"];
    let lease = LeaseAsk { ms: Some(86_400_000), ..LeaseAsk::NONE };
    let pop = Pop { lease, ..Pop::plain(&queues, 1) };
    life.execute(&Command::Pop(pop)).tasks.iter().map(|task| task.id).collect()
}

#[test]
fn a_damaged_segment_is_compared_with_the_index_up_to_the_damage() {
    let plain = plain();
    let (early, late) = ((payload(3), payload(4)), (payload(93), payload(94)));
    let damaged = find(&plain.files, &payload(55));
    let is_there = |payload: &[u8]| find(&plain.files, payload).0 == damaged.0;
    assert!(
        is_there(&early.0) && is_there(&late.1) && !is_there(&payload(TASKS - 1)),
        "it is one sealed segment"
    );
    let disk = indexed(&plain.files, &[(&early.0, &early.1), (&late.0, &late.1)]);
    assert_eq!(damages(&checked(&disk)).len(), 2);
    disk.edit(&damaged.0, |bytes| bytes[damaged.1] ^= 1);
    let report = checked(&disk);
    let of_index: Vec<&Finding> =
        report.findings.iter().filter(|finding| finding.what.contains("index")).collect();
    assert_eq!(of_index.len(), 1, "{of_index:#?}");
    assert!(of_index[0].meaning.contains(&plain.ids[3].to_string()), "{of_index:#?}");
    assert!(report.findings.len() > 1, "the damage itself is reported");
}

#[test]
fn a_place_at_which_no_payload_begins_is_reported() {
    let plain = plain();
    let disk = disk_of(&plain.files);
    let mut known = index(&disk, &[], &BTreeMap::new()).places;
    let place = known[&payload(50)];
    let (file, at) = find(&plain.files, &payload(50));
    known.insert(b"nowhere".to_vec(), (place.0, place.1 + 1, place.2));
    let index = index(&disk, &[(&payload(51), b"nowhere")], &known);
    write_checkpoint(&disk, &index, None);
    let report = checked(&disk);
    let finding = report.findings.iter().find(|finding| finding.what.starts_with("no payload begins here"));
    let finding = finding.unwrap_or_else(|| panic!("{:#?}", report.findings));
    assert_eq!((&finding.file, finding.offset), (&file, Some(at as u64 + 1)));
    assert!(finding.what.contains(&plain.ids[51].to_string()), "{finding:?}");
}

/// A start uses the older checkpoint if the newer one is damaged.
#[test]
fn an_older_checkpoint_with_other_places_than_the_newer_is_reported() {
    let plain = plain();
    let disk = disk_of(&plain.files);
    let known = index(&disk, &[], &BTreeMap::new()).places;
    write_checkpoint(&disk, &index(&disk, &[(&payload(13), &payload(14))], &known), None);
    write_checkpoint(&disk, &index(&disk, &[], &known), None);
    let report = checked(&disk);
    let damages = damages(&report);
    let [finding] = damages[..] else { panic!("{damages:#?}") };
    assert_eq!(finding.file, format!("checkpoint-{:020}", 1), "{finding:?}");
    assert!(finding.what.contains("another state"), "{finding:?}");
}
