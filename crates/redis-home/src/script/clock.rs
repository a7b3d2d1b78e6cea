//! Log time, which callers carry from one script to the next.
//!
//! Redis has only a wall clock, which may be set. Every script therefore answers its log time, and callers
//! extrapolate it with their monotonic clocks: each call reports bounds for log time. The script follows the wall
//! clock while that is within the bounds. If it is behind them, it was set. If it is ahead of them, it was set or the
//! call took long to arrive: the script does not execute the call, and its caller judges which of both it was. All
//! values are in microseconds: with whole milliseconds, log time would creep ahead with every call.

use std::cell::Cell;
use std::time::SystemTime;

use rustix::time::{ClockId, clock_gettime};

pub trait Clock: Send + Sync + 'static {
    /// Milliseconds since an arbitrary time; never goes back and cannot be set.
    fn monotonic_ms(&self) -> u64;

    /// The same clock in microseconds.
    fn monotonic_us(&self) -> u64 {
        self.monotonic_ms() * 1_000
    }

    /// The time that replaces Redis' wall clock; tests move time with it.
    fn wall_ms(&self) -> Option<u64> {
        None
    }

    /// The same in microseconds.
    fn wall_us(&self) -> Option<u64> {
        self.wall_ms().map(|ms| ms * 1_000)
    }
}

/// The clocks of this machine. The monotonic one includes suspended time.
#[derive(Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn monotonic_ms(&self) -> u64 {
        self.monotonic_us() / 1_000
    }

    fn monotonic_us(&self) -> u64 {
        let now = clock_gettime(ClockId::Boottime);
        now.tv_sec.unsigned_abs() * 1_000_000 + now.tv_nsec.unsigned_abs() / 1_000
    }
}

/// The wall clock of this machine.
pub(crate) fn system_ms() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// Bounds for the difference between log time and the monotonic clock of this machine.
///
/// ```text
///   monotonic clock here    sent ───────────────────────────── answered
///   in Redis                         script says log = L
///
///   L was reached before `answered`:  ahead ≥ L − answered   (the largest of these is `least`)
///   and not before `sent`:         ahead ≤ L − sent    (the smallest of these is `most`)
/// ```
///
/// Each call reports both bounds. The script follows the wall clock of Redis while that stays within them, and the
/// best guess of the caller if it is behind them. So no caller pushes log time ahead of what it knows for certain, and
/// reports matter only when the wall clock was set.
///
/// A script cannot tell a wall clock that is ahead from a call that was late. Its caller can, however long the call
/// took: if log time as the script saw it is later than it can be when the answer arrives, the clock was set. The
/// correction is a difference, which is as right if the next call is late, too.
#[derive(Debug, Default)]
pub(crate) struct LogClock {
    known: Cell<Option<Bounds>>,
    /// The wall clock of Redis was set forward by less than scripts notice; the next calls make scripts notice it.
    is_wall_ahead: Cell<bool>,
    /// When such a step was last corrected.
    corrected_us: Cell<Option<u64>>,
    /// The bounds that were rejected by that correction.
    rejected: Cell<Option<Bounds>>,
}

/// Two clocks that are not set drift apart by less than one part in this many: no kernel slews faster.
const DRIFT: u64 = 2_000;

/// The smallest difference that counts as a step of a clock.
const STEP_US: i64 = 1_000;

/// Answers to calls that were sent this soon after a correction may be older than it.
const SETTLING_US: u64 = 1_000_000;

/// The age of a correction after which log time that is still ahead is accepted: another process insists on it.
const INSISTING_US: u64 = 10_000_000;

/// The delay of a call from which on its script asks whether the clock was set.
const ON_ITS_WAY_US: u64 = 1_000_000;

/// Why a script rejected the time in the header of a call; the next attempt reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Late {
    /// How long the call and its answer took, in microseconds.
    trip_us: u64,
    /// `None` if the call only took long.
    correction: Option<Correction>,
}

/// The clock of a store was set forward: with the offset `offset_us` from it, log time is `ahead_us` too late. If
/// another call has set the offset since, the script applies the correction if log time is then within the bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Correction {
    offset_us: i64,
    ahead_us: u64,
}

/// How far log time is ahead of the monotonic clock, in microseconds.
#[derive(Clone, Copy, Debug)]
struct Bounds {
    least: i64,
    most: i64,
    /// The best guess: `least` if the clocks had not drifted apart since.
    guess: i64,
    /// When the bounds were this narrow, on the monotonic clock.
    at_us: u64,
}

/// Log time in microseconds, as a caller knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LogTimeBounds {
    pub(crate) least: u64,
    pub(crate) guess: u64,
    pub(crate) most: u64,
}

impl Bounds {
    /// The bounds from one answer. Clocks are cut off at microseconds, so bounds are rounded outwards: nothing
    /// creeps. If the call took long, the clocks may have drifted apart meanwhile.
    fn of(log_us: u64, sent_us: u64, now_us: u64) -> Self {
        let ahead = |us: u64| log_us.cast_signed() - us.cast_signed();
        let guess = ahead(now_us);
        let apart = 1 + (now_us.saturating_sub(sent_us) / DRIFT).cast_signed();
        Self { least: guess - apart, most: ahead(sent_us) + apart, guess, at_us: now_us }
    }

    /// The bounds after the clocks have had time to drift apart.
    const fn at(self, now_us: u64) -> Self {
        let apart = now_us.saturating_sub(self.at_us).div_ceil(DRIFT);
        let drifted = apart.cast_signed();
        let (least, most) = (self.least - drifted, self.most + drifted);
        Self { least, most, guess: self.guess, at_us: self.at_us + apart * DRIFT }
    }

    /// Whether both can be true, apart from a difference that is no step.
    const fn agrees_with(self, other: Self) -> bool {
        self.least <= other.most + STEP_US && other.least <= self.most + STEP_US
    }

    /// The intersection of both.
    fn and(self, other: Self) -> Self {
        let Self { least, guess, .. } = if other.least > self.least { other } else { self };
        let most = self.most.min(other.most).max(least);
        Self { least, most, guess, at_us: self.at_us }
    }
}

impl LogClock {
    /// Learns from the log time that a script answered; both times are of the monotonic clock.
    pub(crate) fn learn(&self, log_us: u64, sent_us: u64, now_us: u64) {
        let answered = Bounds::of(log_us, sent_us, now_us);
        let Some(known) = self.known.get().map(|known| known.at(now_us)) else {
            return self.known.set(Some(answered));
        };
        if answered.least <= known.most + STEP_US {
            self.is_wall_ahead.set(false);
            return self.known.set(Some(known.and(answered)));
        }
        let corrected = self.corrected_us.get().map(|at| sent_us.saturating_sub(at));
        let is_as_before = self.rejected.get().is_some_and(|before| before.at(now_us).agrees_with(answered));
        match corrected {
            Some(..SETTLING_US) if is_as_before => {}
            Some(..INSISTING_US) if is_as_before => self.known.set(Some(answered)),
            _ => {
                self.rejected.set(Some(answered));
                self.is_wall_ahead.set(true);
            }
        }
    }

    /// The same where several servers have clocks of their own: log time follows the one that is ahead.
    pub(crate) fn learn_from_one_of_many(&self, log_us: u64, sent_us: u64, now_us: u64) {
        let answered = Bounds::of(log_us, sent_us, now_us);
        let known = self.known.get().map(|known| known.at(now_us));
        let known = known.filter(|known| answered.least <= known.most);
        self.known.set(Some(known.map_or(answered, |known| known.and(answered))));
    }

    /// Log time; none before the first answer.
    pub(crate) fn now(&self, now_us: u64) -> Option<LogTimeBounds> {
        let known = self.known.get()?.at(now_us);
        let all = [known.least, known.guess, known.most];
        let [least, guess, most] = all.map(|ahead| now_us.saturating_add_signed(ahead));
        Some(LogTimeBounds { least, guess, most })
    }

    /// Judges a call that a script did not execute, since log time was later than the call reported. The script
    /// answers log time and its offset from the wall clock, without corrections.
    pub(crate) fn judge(&self, log_us: u64, offset_us: i64, sent_us: u64, now_us: u64) -> Late {
        let was_suspected = self.is_wall_ahead.take();
        let trip_us = now_us.saturating_sub(sent_us);
        let answered = Bounds::of(log_us, sent_us, now_us);
        let known = self.known.get().map(|known| known.at(now_us));
        let Some(known) = known.filter(|known| answered.least > known.most + STEP_US) else {
            return Late { trip_us, correction: None };
        };
        if was_suspected {
            self.corrected_us.set(Some(now_us));
        }
        // At least this much: a slow answer leaves log time ahead for the next one to correct, and never sets it back
        // too far.
        let ahead_us = (answered.guess - known.guess).unsigned_abs();
        Late { trip_us, correction: Some(Correction { offset_us, ahead_us }) }
    }

    /// The report of the next call, which may be the repetition of one that was late.
    pub(crate) fn header(&self, now_us: u64, late: Option<Late>) -> String {
        let Some(LogTimeBounds { least, guess, most }) = self.now(now_us) else { return String::new() };
        let on_its_way_us = match late {
            // The next one may take as long, and a little longer.
            Some(Late { trip_us, .. }) => ON_ITS_WAY_US + 2 * trip_us,
            None if self.is_wall_ahead.get() => 0,
            None => ON_ITS_WAY_US,
        };
        let bounds = format!("{least}:{guess}:{}", most + on_its_way_us);
        match late {
            Some(Late { correction: Some(Correction { offset_us, ahead_us }), .. }) => {
                format!("{bounds}:{offset_us}:{ahead_us}")
            }
            _ => bounds,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A model of how `begin` in `lua/time.lua` handles the time.
    #[derive(Default)]
    struct Script {
        clock_ms: u64,
        offset_us: i64,
    }

    impl Script {
        /// Its answer, and log time. An error if log time is later than reported: log time, and its offset.
        fn run(&mut self, wall_us: u64, header: &str) -> Result<(u64, u64), (u64, i64)> {
            let seen_us = wall_us.saturating_add_signed(self.offset_us);
            let mut line_us = seen_us;
            let header: Vec<i64> = header.split(':').filter_map(|us| us.parse().ok()).collect();
            if let [least, guess, latest, ref correction @ ..] = header[..] {
                if let [judged, ahead] = *correction {
                    let corrected_us = wall_us.saturating_add_signed(judged - ahead);
                    let is_within = line_us > latest.unsigned_abs()
                        && (least.unsigned_abs()..=latest.unsigned_abs()).contains(&corrected_us);
                    if judged == self.offset_us || is_within {
                        line_us = corrected_us;
                    }
                }
                if line_us > latest.unsigned_abs() {
                    return Err((seen_us, self.offset_us));
                }
                if line_us < least.unsigned_abs() {
                    line_us = guess.unsigned_abs();
                }
            }
            if line_us < (self.clock_ms * 1_000).saturating_sub(1_000_000) {
                line_us = self.clock_ms * 1_000;
            }
            self.offset_us = line_us.cast_signed() - wall_us.cast_signed();
            let log_us = line_us.max(self.clock_ms * 1_000);
            if log_us / 1_000 - self.clock_ms >= 50 {
                self.clock_ms = log_us / 1_000;
            }
            Ok((line_us, log_us))
        }
    }

    const START_US: u64 = 1_600_000_000_000_000;

    /// How often a call may be sent: its way may take longer each time, and the clock may be set meanwhile.
    const ATTEMPTS_MAX: usize = 5;

    /// True time, a Redis, and processes that call it, each by a monotonic clock of its own.
    struct World {
        random: fastrand::Rng,
        now_us: u64,
        script: Script,
        wall_set_by_us: i64,
        callers: [Caller; 2],
    }

    /// A process. Its clock started at another time than those of others, and runs a little fast or slow.
    struct Caller {
        clock: LogClock,
        began_us: u64,
        drift_ppm: i64,
    }

    impl Caller {
        fn monotonic_us(&self, now_us: u64) -> u64 {
            let drifted = now_us.cast_signed() / 1_000 * self.drift_ppm / 1_000;
            (self.began_us + now_us).saturating_add_signed(drifted)
        }
    }

    impl World {
        fn new(seed: u64, drift_ppm: [i64; 2]) -> Self {
            let mut random = fastrand::Rng::with_seed(seed);
            let callers = drift_ppm.map(|drift_ppm| {
                let began_us = random.u64(1_000_000..1_000_000_000);
                Caller { clock: LogClock::default(), began_us, drift_ppm }
            });
            Self { random, now_us: 0, script: Script::default(), wall_set_by_us: 0, callers }
        }

        fn pass(&mut self, us_max: u64) {
            self.now_us += self.random.u64(0..=us_max);
        }

        /// One command that takes up to `way_us` each way. Returns how far log time is ahead of true time.
        fn call(&mut self, way_us: u64) -> i64 {
            let at = self.random.usize(0..2);
            self.call_by(at, way_us)
        }

        /// This many commands, about a millisecond apart.
        fn calls(&mut self, count: usize) {
            for _ in 0..count {
                self.call(200);
                self.pass(2_000);
            }
        }

        fn call_by(&mut self, at: usize, way_us: u64) -> i64 {
            let mut late = None;
            for _ in 0..ATTEMPTS_MAX {
                let sent_us = self.callers[at].monotonic_us(self.now_us);
                let header = self.callers[at].clock.header(sent_us, late);
                self.pass(way_us);
                let true_us = START_US + self.now_us;
                let answer = self.script.run(true_us.saturating_add_signed(self.wall_set_by_us), &header);
                self.pass(way_us);
                let heard_us = self.callers[at].monotonic_us(self.now_us);
                let clock = &self.callers[at].clock;
                match answer {
                    Ok((line_us, log_us)) => {
                        clock.learn(line_us, sent_us, heard_us);
                        return log_us.cast_signed() - true_us.cast_signed();
                    }
                    Err((line_us, offset_us)) => {
                        late = Some(clock.judge(line_us, offset_us, sent_us, heard_us));
                    }
                }
            }
            panic!("a call is refused again and again");
        }

        /// One command that may be late each time it is sent.
        fn call_that_may_be_late(&mut self) -> i64 {
            let way_us = if self.random.u8(0..4) == 0 { 6_000_000 } else { 200 };
            self.call(way_us)
        }
    }

    /// Log time is within 1 ms + 0.1 % of true time, which the clock of Redis shows unless it is set.
    fn assert_near(world: &World, ahead_us: i64) {
        let most = 1_000 + world.now_us.cast_signed() / 1_000;
        assert!(ahead_us.abs() <= most, "{ahead_us} µs ahead after {} µs", world.now_us);
    }

    #[test]
    fn a_million_commands_of_two_callers_do_not_move_log_time() {
        for (seed, way_us) in [(1, 3), (2, 80), (3, 1_500), (4, 30_000)] {
            let mut world = World::new(seed, [0, 0]);
            for _ in 0..250_000 {
                let ahead_us = world.call(way_us);
                assert_eq!(ahead_us, 0, "seed {seed}");
                world.pass(300);
            }
        }
    }

    #[test]
    fn drifting_clocks_of_callers_do_not_move_log_time() {
        let mut world = World::new(5, [400, -400]);
        for n in 0..200_000 {
            let ahead_us = world.call(100);
            assert_eq!(ahead_us, 0, "command {n}");
            world.pass(if n % 1_000 == 0 { 600_000_000 } else { 300 });
        }
    }

    #[test]
    fn repeatedly_late_calls_do_not_move_log_time() {
        for seed in 0..20 {
            let mut world = World::new(seed, [400, -400]);
            for n in 0..5_000 {
                let ahead_us = world.call_that_may_be_late();
                assert_eq!(ahead_us, 0, "command {n}, seed {seed}");
                world.pass(300);
            }
        }
    }

    /// A late call must not take its lateness for a step of the clock, nor add it to one: log time is never behind, but
    /// for what clocks may have drifted apart during late calls.
    #[test]
    fn late_calls_never_set_log_time_back_too_far() {
        for seed in 0..20 {
            let mut world = World::new(seed, [0, 0]);
            world.calls(200);
            for n in 0..5_000 {
                let ahead_us = world.call_that_may_be_late();
                let most = world.wall_set_by_us + 1_000;
                assert!(
                    (-50_000..=most).contains(&ahead_us),
                    "{ahead_us} µs ahead, command {n}, seed {seed}"
                );
                if n % 100 == 99 {
                    world.wall_set_by_us += world.random.i64(10_000..3_000_000);
                }
                world.pass(2_000);
            }
        }
    }

    #[test]
    fn setting_the_wall_clock_neither_hurries_nor_delays_log_time() {
        for seed in 0..20 {
            let mut world = World::new(seed, [20, -20]);
            for n in 0..20_000 {
                let ahead_us = world.call(200);
                // How far it was set is known only as well as how long calls take.
                assert_near(&world, ahead_us.abs().saturating_sub(400 * (n / 500 + 1)));
                if n % 500 == 499 {
                    let days = 86_400_000_000;
                    world.wall_set_by_us = match n / 500 % 2 {
                        0 => world.random.i64(1_100_000..days),
                        _ => -world.random.i64(1_100_000..days),
                    };
                }
                world.pass(2_000);
            }
        }
    }

    /// Scripts cannot tell a small step forward from a call that took long, but the caller can.
    #[test]
    fn a_small_step_of_the_wall_clock_is_corrected_at_once() {
        for seed in 0..20 {
            let mut world = World::new(seed, [0, 0]);
            world.calls(200);
            world.wall_set_by_us = world.random.i64(10_000..900_000);
            world.calls(2_000);
            let ahead_us = world.call(200);
            assert!(ahead_us.abs() <= 1_000, "{ahead_us} µs ahead of true time, seed {seed}");
        }
    }

    /// Each of several steps is corrected, however soon it follows the one before.
    #[test]
    fn small_steps_of_the_wall_clock_that_follow_each_other_do_not_add_up() {
        for seed in 0..20 {
            let mut world = World::new(seed, [0, 0]);
            let mut steps = Vec::<i64>::new();
            for n in 0..20_000 {
                let ahead_us = world.call(200);
                assert!(ahead_us <= 1_001_000, "{ahead_us} µs ahead of true time, call {n}, seed {seed}");
                // Two seconds, about.
                if n % 2_000 == 1_999 {
                    let us = world.random.i64(10_000..900_000);
                    // A step of the same size looks like another process that insists on the one before.
                    if steps.iter().all(|before| (before - us).abs() > 30_000) {
                        steps.push(us);
                        world.wall_set_by_us += us;
                    }
                }
                world.pass(2_000);
            }
        }
    }

    /// A process that began after a step takes the step for time that has passed. The others give in, so that log
    /// time does not go back and forth.
    #[test]
    fn a_process_that_began_after_a_small_step_is_followed() {
        for seed in 0..20 {
            let mut world = World::new(seed, [0, 0]);
            world.calls(200);
            world.wall_set_by_us = world.random.i64(10_000..900_000);
            world.callers[1].clock = LogClock::default();
            world.call_by(1, 200);
            world.calls(10_000);
            let line = |world: &World| world.script.offset_us + world.wall_set_by_us;
            let first = line(&world);
            for _ in 0..1_000 {
                world.call(200);
                world.pass(2_000);
                assert!((line(&world) - first).abs() <= 400, "log time is set back and forth, seed {seed}");
            }
        }
    }

    /// The same after a large step, with calls that are under way at the same time: each sets the offset that the
    /// others received. All are executed soon, and log time passes as it does otherwise.
    #[test]
    fn calls_at_the_same_time_after_a_step_are_executed_soon() {
        struct UnderWay {
            at: usize,
            header: String,
            sent_us: u64,
            attempts: usize,
        }
        for seed in 0..20 {
            let mut world = World::new(seed, [100, -100]);
            world.calls(200);
            world.wall_set_by_us = world.random.i64(1_100_000..60_000_000);
            world.callers[1].clock = LogClock::default();
            let ahead_us = world.call_by(1, 200);
            assert!(
                (ahead_us - world.wall_set_by_us).abs() <= 1_000,
                "it takes the step for time that has passed"
            );
            let send = |world: &World, at: usize, attempts: usize, late: Option<Late>| {
                let sent_us = world.callers[at].monotonic_us(world.now_us);
                let header = world.callers[at].clock.header(sent_us, late);
                UnderWay { at, header, sent_us, attempts }
            };
            let (mut under_way, mut log_before_us, mut most_us) = (Vec::new(), 0, 0);
            for n in 0..40_000 {
                while under_way.len() < 20 {
                    let at = world.random.usize(0..2);
                    under_way.push(send(&world, at, 1, None));
                }
                let next = world.random.usize(0..under_way.len());
                let call = under_way.swap_remove(next);
                world.pass(500);
                let true_us = START_US + world.now_us;
                let answer =
                    world.script.run(true_us.saturating_add_signed(world.wall_set_by_us), &call.header);
                let heard_us = world.callers[call.at].monotonic_us(world.now_us);
                let clock = &world.callers[call.at].clock;
                match answer {
                    Ok((line_us, log_us)) => {
                        clock.learn(line_us, call.sent_us, heard_us);
                        // Scripts keep the clock every 50 ms.
                        assert!(
                            log_us + 50_000 >= log_before_us,
                            "log time goes back, call {n}, seed {seed}"
                        );
                        let ahead_us = log_us.cast_signed() - true_us.cast_signed();
                        most_us = most_us.max(ahead_us - world.wall_set_by_us);
                        log_before_us = log_before_us.max(log_us);
                    }
                    Err((line_us, offset_us)) => {
                        assert!(call.attempts < ATTEMPTS_MAX, "call {n} is refused, seed {seed}");
                        let late = clock.judge(line_us, offset_us, call.sent_us, heard_us);
                        under_way.push(send(&world, call.at, call.attempts + 1, Some(late)));
                    }
                }
            }
            // Nothing is early, but for what clocks may have drifted apart in ten seconds and how long calls take.
            assert!(most_us <= 60_000, "{most_us} µs ahead of the process that is followed, seed {seed}");
        }
    }

    #[test]
    fn an_answer_bounds_log_time_from_both_sides() {
        let clock = LogClock::default();
        assert_eq!((clock.now(5), clock.header(5, None)), (None, String::new()));
        clock.learn(1_000_100, 100, 150);
        assert_eq!(
            clock.now(150),
            Some(LogTimeBounds { least: 1_000_099, guess: 1_000_100, most: 1_000_151 })
        );
        clock.learn(1_000_230, 205, 240);
        assert_eq!(
            clock.now(240),
            Some(LogTimeBounds { least: 1_000_229, guess: 1_000_230, most: 1_000_242 })
        );
        clock.learn(1_000_900, 300, 2_240);
        assert_eq!(clock.header(2_240, None), "1002228:1002230:2002243");
    }

    #[test]
    fn whether_a_call_was_late_or_the_clock_was_set_is_judged_by_when_its_answer_arrives() {
        let clock = LogClock::default();
        clock.learn(1_000_100, 100, 150);
        // Its way took four seconds there and one back.
        let late = clock.judge(5_000_200, -7, 200, 5_000_200);
        assert_eq!(late, Late { trip_us: 5_000_000, correction: None });
        assert_eq!(clock.header(5_000_200, Some(late)), "5997648:6000150:17002702");
        // The clock was set two seconds forward.
        let late = clock.judge(8_000_300, -7, 5_000_200, 5_000_300);
        let correction = Correction { offset_us: -7, ahead_us: 2_000_050 };
        assert_eq!(late, Late { trip_us: 100, correction: Some(correction) });
        assert_eq!(clock.header(5_000_300, Some(late)), "5997748:6000250:7003002:-7:2000050");
    }

    #[test]
    fn log_time_follows_the_server_that_is_ahead() {
        let clock = LogClock::default();
        clock.learn_from_one_of_many(1_000_000, 10, 20);
        clock.learn_from_one_of_many(1_300_000, 30, 40);
        clock.learn_from_one_of_many(1_000_050, 50, 60);
        assert_eq!(
            clock.now(60),
            Some(LogTimeBounds { least: 1_300_018, guess: 1_300_020, most: 1_300_018 })
        );
    }
}
