//! What a switch answers to claims of routes.

use holdfast_wire::DropReason;

/// A switch's answer to one [`Claim`](super::Claim), in [`kind::CLAIMED`](super::kind::CLAIMED).
///
/// Encoded it is the new epoch (4) and the number of logged packets (4). No route has epoch 0: behind
/// that epoch a number says which of the other answers it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Grant {
    /// The route leads to the claimant.
    Given {
        /// Its new epoch, not 0.
        epoch: u32,
        /// Packets of the flow that its dead owner was sent and that may have to be processed again.
        logged: u32,
    },
    /// The flow is served elsewhere under a newer epoch, or has ended, or there is no room for its route.
    Refused,
    /// The switch does not know yet: a new life of it has not heard of all routes, or the runtime to
    /// which the flow was moving has not said whether it has the flow. Ask again.
    Retry,
    /// The route leads to another runtime that is dead, and somebody may have newer state of the flow.
    /// Ask again: the answer comes when the routes of that runtime have been swept.
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
                assert!(epoch != 0, "no route has epoch 0");
                (epoch, logged)
            }
            Grant::Refused => (0, REFUSED),
            Grant::Retry => (0, RETRY),
            Grant::AfterSweep => (0, AFTER_SWEEP),
        };
        (u64::from(epoch) << 32 | u64::from(number)).to_be_bytes()
    }

    /// Reads it back.
    ///
    /// # Errors
    /// [`DropReason::Malformed`] if there is no such answer.
    pub fn decode(bytes: [u8; Grant::LEN]) -> Result<Grant, DropReason> {
        let both = u64::from_be_bytes(bytes);
        match ((both >> 32) as u32, both as u32) {
            (0, REFUSED) => Ok(Grant::Refused),
            (0, RETRY) => Ok(Grant::Retry),
            (0, AFTER_SWEEP) => Ok(Grant::AfterSweep),
            (0, _) => Err(DropReason::Malformed),
            (epoch, logged) => Ok(Grant::Given { epoch, logged }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every answer is read back as what it was, also under the highest epochs; others are refused.
    #[test]
    fn answers_are_read_back() {
        let given = [(1, 0), (7, 2), (u32::MAX - 1, 0), (u32::MAX, u32::MAX)];
        let given = given.map(|(epoch, logged)| Grant::Given { epoch, logged });
        for grant in [Grant::Refused, Grant::Retry, Grant::AfterSweep].into_iter().chain(given) {
            assert_eq!(Grant::decode(grant.encode()), Ok(grant));
        }
        for number in [3, u32::MAX] {
            assert_eq!(Grant::decode(u64::from(number).to_be_bytes()), Err(DropReason::Malformed));
        }
    }
}
