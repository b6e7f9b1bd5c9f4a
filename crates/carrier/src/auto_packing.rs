//! When packing pays: where the line is slower than the processor.
//!
//! Has no clock. It is told how long packing took, what the line has taken, and when the line
//! made us wait; between two such moments the line was full, which is what tells its speed. It
//! begins by packing, goes raw where writes never wait or nothing gets smaller, and looks again
//! now and then, the less often, the longer it has been right.

use std::time::Duration;

/// So much goes over the line before we judge whether it makes us wait: more than the buffers of
/// a slow line hold.
const LOOK_BYTES: u64 = 1 << 20;

/// So much is packed before we judge whether it gets smaller.
const RATIO_BYTES: u64 = 256 << 10;

/// So much was packed before a write that waits tells something: it may wait for what went raw.
const SETTLED_BYTES: u64 = 256 << 10;

/// What is packed has to be at most this part of what it was.
const WORTH: f64 = 0.9;

/// How much goes raw before we look again: at first, and at most.
const FIRST_REST_BYTES: u64 = 4 << 20;
const LONGEST_REST_BYTES: u64 = 64 << 20;

/// How long what we know about the line is worth something.
const KNOWN_BYTES: u64 = 64 << 20;

/// Over fewer bytes no line is measured: the system's buffers count for too much.
const MEASURE_BYTES: u64 = 256 << 10;

/// Who says nothing for so long did not keep the line full.
const PAUSE: Duration = Duration::from_millis(20);

/// See the module.
#[derive(Debug)]
pub(crate) struct AutoPacking {
    /// What we do now, and since when.
    packs: bool,
    phase: TrialPhase,
    /// How long we go raw the next time.
    rest: u64,
    /// Nothing got smaller: how fast the line is does not matter.
    is_dense: bool,
    /// Bytes in a second: what we pack, and what the line takes.
    speed: Option<f64>,
    line: Option<f64>,
    /// How many bytes ago the line was measured.
    line_age: u64,
    full: Option<FullMoment>,
    last: Option<(Duration, LastWrite)>,
}

#[derive(Debug, Default)]
struct TrialPhase {
    raw: u64,
    packed: u64,
    took: Duration,
    waited: bool,
}

/// The line was full then, and has taken so much since.
#[derive(Debug)]
struct FullMoment {
    at: Duration,
    since: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LastWrite {
    Wrote,
    Waited,
}

impl Default for AutoPacking {
    fn default() -> AutoPacking {
        AutoPacking {
            packs: true,
            phase: TrialPhase::default(),
            rest: FIRST_REST_BYTES,
            is_dense: false,
            speed: None,
            line: None,
            line_age: 0,
            full: None,
            last: None,
        }
    }
}

impl AutoPacking {
    /// Whether the next block should be packed.
    pub(crate) fn packs(&self) -> bool {
        self.packs
    }

    /// A block was packed to so many bytes, in so much time.
    pub(crate) fn note_packed(&mut self, raw: usize, packed: usize, took: Duration) {
        let phase = &mut self.phase;
        phase.raw += raw as u64;
        phase.packed += packed as u64;
        phase.took += took;
        self.line_age += raw as u64;
        let (raw, packed, waited) = (phase.raw, phase.packed, phase.waited);
        if raw >= RATIO_BYTES && packed as f64 > raw as f64 * WORTH {
            self.is_dense = true;
            return self.go_raw();
        }
        if packed < LOOK_BYTES {
            return;
        }
        // A clock may be coarser than that.
        let took = phase.took.max(Duration::from_micros(1));
        self.speed = Some(raw as f64 / took.as_secs_f64());
        if self.line_age > KNOWN_BYTES {
            self.line = None;
        }
        match waited || self.line_is_slower() {
            true => {
                self.rest = FIRST_REST_BYTES;
                self.phase = TrialPhase::default();
            }
            false => {
                self.is_dense = false;
                self.go_raw();
            }
        }
    }

    /// A block went as it was, as we said.
    pub(crate) fn note_raw(&mut self, raw: usize) {
        self.phase.raw += raw as u64;
        self.line_age += raw as u64;
        let is_measured = self.line.is_some() && !self.is_dense;
        if self.phase.raw >= self.rest || (is_measured && self.line_is_slower()) {
            self.packs = true;
            self.rest = (self.rest * 2).min(LONGEST_REST_BYTES);
            self.phase = TrialPhase::default();
        }
    }

    fn go_raw(&mut self) {
        self.packs = false;
        self.phase = TrialPhase::default();
        // A line that we packed for need not have been full.
        self.line = None;
        self.full = None;
    }

    /// The line has taken so many bytes.
    pub(crate) fn note_write(&mut self, bytes: usize, now: Duration) {
        if let Some((last, LastWrite::Wrote)) = self.last
            && now.saturating_sub(last) > PAUSE
        {
            self.full = None;
        }
        if let Some(full) = &mut self.full {
            full.since += bytes as u64;
        }
        self.last = Some((now, LastWrite::Wrote));
    }

    /// The line takes nothing more for the moment: it is full.
    pub(crate) fn note_full(&mut self, now: Duration) {
        self.last = Some((now, LastWrite::Waited));
        if self.packs {
            self.phase.waited |= self.phase.packed >= SETTLED_BYTES;
            return;
        }
        match &mut self.full {
            Some(full) if full.since < MEASURE_BYTES => {}
            Some(full) => {
                let took = now.saturating_sub(full.at).max(Duration::from_micros(1));
                self.line = Some(full.since as f64 / took.as_secs_f64());
                self.line_age = 0;
                *full = FullMoment { at: now, since: 0 };
            }
            full => *full = Some(FullMoment { at: now, since: 0 }),
        }
    }

    /// Whether less goes through the line than we can pack.
    fn line_is_slower(&self) -> bool {
        matches!((self.line, self.speed), (Some(line), Some(speed)) if line < speed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: usize = 128 << 10;
    const MIB: f64 = (1 << 20) as f64;

    /// A line with a buffer, a processor that packs, and what they have done.
    struct Bench {
        auto: AutoPacking,
        now: f64,
        line: f64,
        speed: f64,
        ratio: f64,
        buffered: f64,
        raw: u64,
        packed: u64,
        /// How often it changed its mind.
        changes: u32,
    }

    impl Bench {
        fn new(line: f64, speed: f64, ratio: f64) -> Bench {
            Bench {
                auto: AutoPacking::default(),
                now: 0.0,
                line: line * MIB,
                speed: speed * MIB,
                ratio,
                buffered: 0.0,
                raw: 0,
                packed: 0,
                changes: 0,
            }
        }

        fn passes(&mut self, seconds: f64) {
            self.now += seconds;
            self.buffered = (self.buffered - seconds * self.line).max(0.0);
        }

        fn clock(&self) -> Duration {
            Duration::from_secs_f64(self.now)
        }

        /// Sends so much as fast as it goes.
        fn send(&mut self, mib: usize) -> &mut Bench {
            const BUFFER: f64 = 0.25 * MIB;
            for _ in 0..mib * 8 {
                let packs = self.auto.packs();
                let bytes = match packs {
                    true => {
                        let took = BLOCK as f64 / self.speed;
                        self.passes(took);
                        let packed = BLOCK as f64 * self.ratio;
                        let took = Duration::from_secs_f64(took);
                        self.auto.note_packed(BLOCK, packed as usize, took);
                        self.packed += BLOCK as u64;
                        packed
                    }
                    false => {
                        self.passes(BLOCK as f64 / (4_000.0 * MIB));
                        self.auto.note_raw(BLOCK);
                        self.raw += BLOCK as u64;
                        BLOCK as f64
                    }
                };
                self.changes += u32::from(packs != self.auto.packs());
                if self.buffered + bytes > BUFFER {
                    let first = BUFFER - self.buffered;
                    self.auto.note_write(first as usize, self.clock());
                    self.auto.note_full(self.clock());
                    self.buffered = BUFFER;
                    self.passes((bytes - first) / self.line);
                    self.buffered = BUFFER;
                    self.auto.note_write((bytes - first) as usize, self.clock());
                } else {
                    self.buffered += bytes;
                    self.auto.note_write(bytes as usize, self.clock());
                }
            }
            self
        }

        fn packed_part(&self) -> f64 {
            self.packed as f64 / (self.packed + self.raw) as f64
        }
    }

    #[test]
    fn a_line_that_is_slower_than_the_processor_is_packed_for_from_the_first_byte_to_the_last() {
        for line in [0.01, 1.0, 30.0] {
            let mut bench = Bench::new(line, 300.0, 0.25);
            assert_eq!(bench.send(64).raw, 0, "{line}");
        }
    }

    #[test]
    fn a_line_that_never_waits_gets_bytes_as_they_are_but_for_a_look_now_and_then() {
        let mut bench = Bench::new(100_000.0, 300.0, 0.25);
        bench.send(5);
        assert!(!bench.auto.packs(), "it learns within a MiB on the line");
        bench.send(1_000);
        assert!(bench.packed_part() < 0.1, "{}", bench.packed_part());
        assert!(bench.packed > 8 << 20, "it looks again");
    }

    #[test]
    fn a_fast_line_that_makes_raw_writes_wait_is_not_packed_for() {
        // Ten gigabits a second.
        let mut bench = Bench::new(1_200.0, 300.0, 0.25);
        bench.send(1_000);
        assert!(bench.packed_part() < 0.1, "{}", bench.packed_part());
    }

    #[test]
    fn a_line_between_raw_and_packed_speed_is_packed_for_without_turning_round_and_round() {
        // Packed, 75 MiB of its 200 go over it in a second: no write waits.
        let mut bench = Bench::new(200.0, 300.0, 0.25);
        bench.send(1_000);
        assert!(bench.packed_part() > 0.9, "{}", bench.packed_part());
        assert!(bench.changes < 64, "{}", bench.changes);
    }

    #[test]
    fn what_gets_no_smaller_is_left_as_it_is_and_looked_at_again() {
        let mut bench = Bench::new(1.0, 300.0, 0.99);
        bench.send(300);
        assert!(bench.packed_part() < 0.02, "{}", bench.packed_part());
        bench.ratio = 0.2;
        bench.send(200);
        let before = bench.raw;
        bench.send(100);
        assert_eq!(bench.raw, before, "it has noticed");
    }

    #[test]
    fn a_line_that_becomes_slow_is_noticed_while_bytes_go_raw() {
        let mut bench = Bench::new(100_000.0, 300.0, 0.25);
        bench.send(100);
        assert!(!bench.auto.packs());
        bench.line = MIB;
        bench.send(4);
        let before = bench.raw;
        bench.send(50);
        assert_eq!(bench.raw, before);
    }

    #[test]
    fn a_pause_is_not_taken_for_a_slow_line() {
        let mut auto = AutoPacking::default();
        let second = Duration::from_secs(1);
        auto.note_packed(4 << 20, 1 << 20, Duration::from_millis(10));
        assert!(!auto.packs());
        auto.note_full(second);
        auto.note_write(1 << 20, second);
        // Nobody had anything to say for an hour.
        auto.note_write(1 << 20, 3_600 * second);
        auto.note_full(3_600 * second);
        auto.note_raw(1);
        assert!(!auto.packs());
    }
}
