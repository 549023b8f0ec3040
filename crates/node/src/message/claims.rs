//! Claims of routes, and a switch's answers.

use super::KeyBytes;
use holdfast_nf::Standing;
use holdfast_protection::Epoch;
use holdfast_protection::flows::{ActorHeader, flag};
use holdfast_wire::{DropReason, FlowKey};
use zerocopy::byteorder::network_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// A property of its flow that a [`Claim`] may state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum ClaimFlag {
    /// The flow was to come to the claimant, and never did. Its earlier owner may claim
    /// it.
    Renounced = 1 << 7,
    /// The flow is about to come, and copies of it as it was with earlier owners are to
    /// stay. A runtime with such a copy cannot have the flow yet.
    NeedsEarlier = 1 << 6,
    /// The reply key is known to be the flow's own. The flow has had replies, or the
    /// switch has shown that it learned the key from this flow.
    Keyed = 1 << 5,
    /// The flow is half open, or unreplied.
    HalfOpen = 1 << 4,
}

/// A replica asks for its flow's route.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct Claim {
    /// Forward key.
    pub key: KeyBytes,
    /// Reply key; all zero if none is known.
    pub reply: KeyBytes,
    epoch: U32,
    flags: u8,
    reserved: u8,
    chain: U16,
    opened_at: U64,
}

impl Claim {
    /// A claim without flags.
    pub fn new(key: FlowKey, reply: FlowKey, epoch: Epoch, chain: u16) -> Claim {
        Claim {
            key: key.into(),
            reply: reply.into(),
            epoch: epoch.get().into(),
            flags: 0,
            reserved: 0,
            chain: chain.into(),
            opened_at: 0.into(),
        }
    }

    /// The claim of a flow of this chain, from the flow's header.
    pub(crate) fn of(header: &ActorHeader, chain: u16) -> Claim {
        let is_keyed = header.packets()[1] > 0 || header.flags & flag::UNCONFIRMED == 0;
        let claim = Claim::new(header.key, header.reply, header.epoch, chain);
        claim
            .with_opened_at(header.opened_at)
            .with(ClaimFlag::Keyed, is_keyed)
            .with(ClaimFlag::HalfOpen, header.standing() <= Standing::HalfOpen)
    }

    /// The claim under this epoch of the flow.
    #[must_use]
    pub(crate) fn under(self, epoch: Epoch) -> Claim {
        Claim { epoch: epoch.get().into(), ..self }
    }

    /// The claim with this flag added if `is_so`.
    #[must_use]
    pub fn with(self, flag: ClaimFlag, is_so: bool) -> Claim {
        let flags = if is_so { self.flags | flag as u8 } else { self.flags };
        Claim { flags, ..self }
    }

    /// The claim of a flow whose first packet has this stamp, ns.
    #[must_use]
    pub fn with_opened_at(self, stamp: u64) -> Claim {
        Claim { opened_at: stamp.into(), ..self }
    }

    /// The stamp of the flow's first packet, ns; 0 if it is not known. A flow keeps it
    /// when it moves, while its epoch changes.
    pub fn opened_at(&self) -> u64 {
        self.opened_at.get()
    }

    /// True if the claim has this flag.
    pub fn has(&self, flag: ClaimFlag) -> bool {
        self.flags & flag as u8 != 0
    }

    /// The epoch under which the replica has the flow.
    pub fn epoch(&self) -> Epoch {
        Epoch::new(self.epoch.get())
    }

    /// The flow's chain.
    pub fn chain(&self) -> u16 {
        self.chain.get()
    }
}

/// A switch's answer to one [`Claim`](super::Claim), in
/// [`kind::CLAIMED`](super::kind::CLAIMED).
///
/// The encoding is the new epoch (4) and the number of logged packets (4). No route has
/// epoch 0: behind epoch 0 a number names one of the other answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Grant {
    /// The route leads to the claimant.
    Given {
        /// The route's new epoch.
        epoch: Epoch,
        /// Packets of the flow that its dead owner was sent and that may have to be
        /// processed again.
        logged: u32,
    },
    /// The flow is served elsewhere under a newer epoch, or has ended, or there is no
    /// room for its route.
    Refused,
    /// The switch does not know yet: a new incarnation of it has not heard of all routes,
    /// or the runtime to which the flow was moving has not said whether it has the flow.
    /// Ask again.
    Retry,
    /// The route leads to another runtime that is dead, and a survivor may have newer
    /// state of the flow. Ask again: the answer comes when the routes of that runtime
    /// have been swept.
    AfterSweep,
}

const REFUSED: u32 = 0;
const RETRY: u32 = 1;
const AFTER_SWEEP: u32 = 2;

impl Grant {
    /// Bytes of the encoding.
    pub const LEN: usize = 8;

    /// The encoding.
    ///
    /// # Panics
    /// If an epoch is given that is 0.
    pub fn encode(self) -> [u8; Grant::LEN] {
        let (epoch, number) = match self {
            Grant::Given { epoch, logged } => {
                assert!(epoch.get() != 0, "no route has epoch 0");
                (epoch.get(), logged)
            }
            Grant::Refused => (0, REFUSED),
            Grant::Retry => (0, RETRY),
            Grant::AfterSweep => (0, AFTER_SWEEP),
        };
        (u64::from(epoch) << 32 | u64::from(number)).to_be_bytes()
    }

    /// Decodes an answer.
    ///
    /// # Errors
    /// [`DropReason::Malformed`] if there is no such answer.
    pub fn decode(bytes: [u8; Grant::LEN]) -> Result<Grant, DropReason> {
        let both = u64::from_be_bytes(bytes);
        match (Epoch::given((both >> 32) as u32), both as u32) {
            (Some(epoch), logged) => Ok(Grant::Given { epoch, logged }),
            (None, REFUSED) => Ok(Grant::Refused),
            (None, RETRY) => Ok(Grant::Retry),
            (None, AFTER_SWEEP) => Ok(Grant::AfterSweep),
            (None, _) => Err(DropReason::Malformed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A claim ends with its epoch, a byte of flags, one that is 0, the chain, and the
    /// stamp of the first packet; each flag is there alone.
    #[test]
    fn a_claim_says_what_it_was_told_to() {
        let all =
            [ClaimFlag::Renounced, ClaimFlag::NeedsEarlier, ClaimFlag::Keyed, ClaimFlag::HalfOpen];
        let claim = Claim::new(FlowKey::default(), FlowKey::default(), Epoch::new(7), 0x102);
        for flag in all {
            let flagged = claim.with(flag, true);
            assert_eq!(all.map(|other| flagged.has(other)), all.map(|other| other == flag));
            assert_eq!(flagged.with(flag, false).as_bytes(), flagged.as_bytes());
            assert_eq!(flagged.as_bytes()[80..88], [0, 0, 0, 7, flag as u8, 0, 1, 2]);
            assert_eq!(flagged.with_opened_at(9).as_bytes()[88..], 9u64.to_be_bytes());
            assert_eq!((flagged.chain(), claim.has(flag)), (0x102, false));
        }
    }

    /// Every answer is read back unchanged, also under the highest epochs; others are
    /// refused.
    #[test]
    fn answers_are_read_back() {
        let given = [(1, 0), (7, 2), (u32::MAX - 1, 0), (u32::MAX, u32::MAX)];
        let given = given.map(|(epoch, logged)| Grant::Given { epoch: Epoch::new(epoch), logged });
        for grant in [Grant::Refused, Grant::Retry, Grant::AfterSweep].into_iter().chain(given) {
            assert_eq!(Grant::decode(grant.encode()), Ok(grant));
        }
        for number in [3, u32::MAX] {
            assert_eq!(Grant::decode(u64::from(number).to_be_bytes()), Err(DropReason::Malformed));
        }
    }
}
