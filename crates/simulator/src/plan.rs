//! What a simulation consists of: decided by the seed, made smaller by shrinking.

use tidewater_remote::database::KeptLimits;
use xxhash_rust::xxh3::xxh3_64;

use crate::besides::Besides;
use crate::random::SeededRandom;

/// How much of everything there is. The seed decides the rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Where all chance comes from.
    pub seed: u64,
    /// How many remotes.
    pub remotes: u64,
    /// How many things each remote does: editing, syncing.
    pub steps: u64,
    /// How many transactions the applications of the centre commit.
    pub centre_steps: u64,
    /// How many things happen to the servers and the centre.
    pub accidents: u64,
    /// How many of a hundred connections have a fault.
    pub faults: u64,
}

impl Plan {
    /// The plan of a seed.
    pub fn for_seed(seed: u64) -> Plan {
        let mut random = SeededRandom::new(seed ^ 0x706c_616e);
        // Most worlds are small: they are fast, and what breaks shows in them too.
        let remotes = match random.below(100) {
            0 => random.between(10, 50),
            1..=10 => random.between(5, 10),
            _ => random.between(2, 4),
        };
        Plan {
            seed,
            remotes,
            steps: random.between(4, 14),
            centre_steps: random.between(0, 14),
            accidents: random.below(8),
            faults: [0, 20, 50, 90][usize::try_from(random.below(4)).unwrap_or(0)],
        }
    }

    /// How much of their uploads the remotes keep. In some worlds most are too large to be kept.
    pub(crate) fn kept_limits(self) -> KeptLimits {
        let mut random = SeededRandom::new(self.seed ^ 0x006b_6570_7400);
        match random.below(4) {
            0 => KeptLimits {
                upload_bytes: random.between(1, 500) as usize,
                total_bytes: random.between(1, 3_000) as usize,
            },
            _ => KeptLimits::default(),
        }
    }

    /// Whether there is more than syncs: calls, events, and remotes that stay connected.
    pub(crate) fn is_live(self) -> bool {
        SeededRandom::new(self.seed ^ 0x006c_6976_6500).percent(50)
    }

    /// What there is beside the tables of every world.
    pub(crate) fn besides(self) -> Besides {
        Besides::for_world(self.seed, self.is_live())
    }

    /// How often an operator settles conflicts and refused rows; in most worlds nobody does.
    pub(crate) fn settlings(self) -> u64 {
        let mut random = SeededRandom::new(self.seed ^ 0x0073_6574_746c);
        match random.percent(33) {
            true => random.between(2, 8),
            false => 0,
        }
    }

    /// Whether a hierarchy of two levels is played when the world has ended.
    pub(crate) fn has_hierarchy(self) -> bool {
        SeededRandom::new(self.seed ^ 0x6c65_7665_6c73).percent(15)
    }

    /// Whether a market is played when all else has ended.
    pub(crate) fn has_market(self) -> bool {
        SeededRandom::new(self.seed ^ 0x6d61_726b_6574_7300).percent(20)
    }

    /// Whether a remote connects in requests of HTTP: in a third of the worlds half of them do.
    pub(crate) fn dials_in_requests(self, name: &str) -> bool {
        let mut random = SeededRandom::new(self.seed ^ 0x7265_7175_6573);
        let has_some = random.percent(35);
        let own = xxh3_64(name.as_bytes());
        has_some && SeededRandom::new(random.next() ^ own).percent(60)
    }

    /// Whether a restored centre may have forgotten more than the remotes have kept.
    pub(crate) fn has_gaps(self) -> bool {
        self.kept_limits() != KeptLimits::default()
    }

    /// Smaller plans that may fail in the same way, the smallest first.
    pub(crate) fn smaller(self) -> Vec<Plan> {
        let mut plans = Vec::new();
        let mut halve = |now: u64, least: u64, set: &dyn Fn(u64) -> Plan| {
            for candidate in [least, now / 2, now.saturating_sub(1)] {
                if candidate >= least && candidate < now {
                    plans.push(set(candidate));
                }
            }
        };
        halve(self.remotes, 1, &|remotes| Plan { remotes, ..self });
        halve(self.steps, 1, &|steps| Plan { steps, ..self });
        halve(self.centre_steps, 0, &|centre_steps| Plan {
            centre_steps,
            ..self
        });
        halve(self.accidents, 0, &|accidents| Plan { accidents, ..self });
        halve(self.faults, 0, &|faults| Plan { faults, ..self });
        plans.dedup();
        plans
    }
}
