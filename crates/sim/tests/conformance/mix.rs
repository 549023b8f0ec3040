//! The combinations that have a row, and the part of their worlds that a run plays.

use holdfast_sim::{Preset, Whom};
use std::ops::Range;

/// A combination of answers, and the number of state servers.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Mix {
    pub(crate) preset: Preset,
    /// A state server assigns the numbers.
    pub(crate) served: bool,
    /// State servers among which flows are divided that have their home there.
    pub(crate) servers: u16,
}

/// The part of all failures that this run tries: every `of`-th, beginning with number
/// `first`. With a planted fault every run tries the same ones, because the fault has to
/// be found each time.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Share {
    pub(crate) first: usize,
    pub(crate) of: usize,
}

impl Share {
    fn of_environment() -> Share {
        let text = std::env::var("HOLDFAST_SHARE").unwrap_or_else(|_| "0/3".to_owned());
        let numbers = text
            .split_once('/')
            .and_then(|(first, of)| Some((first.parse().ok()?, of.parse().ok()?)));
        match numbers {
            Some((first, of)) if first < of => Share { first, of },
            _ => panic!("HOLDFAST_SHARE is {text:?}, not K/N with K below N, like 0/3"),
        }
    }
}

pub(crate) static SHARE: std::sync::LazyLock<Share> =
    std::sync::LazyLock::new(Share::of_environment);

/// Number of state servers in the rows with several.
pub(crate) const SEVERAL: u16 = 3;

impl Mix {
    pub(crate) fn name(self) -> String {
        let servers =
            if self.servers > 1 { format!("+{}_servers", self.servers) } else { String::new() };
        format!("{}{}{servers}", self.preset.name(), if self.served { "+state_server" } else { "" })
    }

    pub(crate) fn has_server(self) -> bool {
        self.served || self.preset.is_paged()
    }

    /// This row has every n-th of the worlds. With a state server a protection treats
    /// flows as it does without, and with several servers as with one. A combination has
    /// half if two rows have its answers between them.
    pub(crate) fn thinning(self) -> usize {
        if self.served || self.servers > 1 {
            5
        } else {
            1 + usize::from(self.preset.forgets_by_count())
        }
    }

    /// This row plays every n-th of the worlds.
    pub(crate) fn every(self) -> usize {
        self.thinning() * SHARE.of
    }

    /// The same for sweeps that are equal in every run.
    pub(crate) fn always_every(self) -> usize {
        self.thinning().max(3)
    }

    /// Numbers of a range, `step` apart, that are played. A range too short for the share
    /// still gives one.
    pub(crate) fn some_of(self, range: Range<u64>, step: u64) -> impl Iterator<Item = u64> {
        let begin = (SHARE.first * self.thinning()) as u64 * step % (range.end - range.start);
        (range.start + begin..range.end).step_by(step as usize * self.every())
    }

    /// The state server that a number means.
    pub(crate) fn server(self, number: usize) -> Whom {
        Whom::StateServer(number as u16 % self.servers)
    }
}
