//! A flow's life at one runtime: what a slot of the slab is, and how it becomes that.
//!
//! In: events, from the part that decides each of them. Out: the state that follows.
//! Never: an event that the state does not allow; it would be a fault of this program,
//! and builds with assertions (tests, and all worlds of the simulator) end there.
//!
//! Theory of operation. A flow begins here with its first packet, or it comes from
//! another runtime: as a copy, as one that is announced, or as one whose route is
//! claimed. A single runtime owns a flow, the one to which the switch's route leads.
//! Every other life ends when newer state of the owner comes (`Copy`) or when nobody
//! needs the slot any more (`End`). Each event leads to one state:
//!
//! | event | from | to |
//! |---|---|---|
//! | `Open`: the first packet came | free | opening |
//! | `Serve`: the first packet passed the whole chain | opening | owned |
//! | `Choose`: the flow is offered to another runtime | owned | leaving |
//! | `Stay`: the offer is over, and the flow is still here | leaving | owned |
//! | `Send`: the flow was sent to its new owner | leaving | departed |
//! | `Keep`: the rest of a sent flow serves as the copy | departed | copy |
//! | `Announce`: the owner is about to send the flow here | free, copy | arriving |
//! | `Arrive`: the flow came, whole | arriving | owned |
//! | `CallOff`: the flow will not come; its copy is here | arriving | copy |
//! | `Copy`: newer state of the flow's owner came | free, opening, owned, leaving, replaying, copy, claiming, arriving, departed | copy |
//! | `Claim`: the owner is dead, and this runtime asks for the route | free, leaving, copy, claiming, arriving, departed | claiming |
//! | `Grant`: the route is this runtime's | claiming | owned |
//! | `Withdraw`: the claim is over, and the copy is kept | claiming | copy |
//! | `Replay`: packets of the dead owner are processed again | owned | replaying |
//! | `Restore`: the flow is what its dead owner had made of it | replaying | owned |
//! | `End`: nobody needs the slot any more | opening, owned, leaving, replaying, copy, claiming, arriving, departed | free |
//!
//! A packet that waits does not change its flow's life: `ActorHeader::parked` counts
//! these. A flow that has ended is free here, and remembered elsewhere for a while
//! (`Tombstones` of the switch and of each lane).

/// The state of a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum Life {
    /// No flow is here.
    #[default]
    Free = 0,
    /// A flow that this runtime owns and serves.
    Owned = 1,
    /// The copy of a flow that another runtime owns.
    Copy = 2,
    /// A flow whose route this runtime has asked for, without an answer yet.
    Claiming = 3,
    /// A flow whose first packet waits in the middle of the chain. No other packet has
    /// passed yet.
    Opening = 4,
    /// A flow that its owner is about to send here. Its packets wait for it.
    Arriving = 5,
    /// A flow that was sent to another runtime, which has not said yet that it serves it.
    Departed = 6,
    /// An owned flow that is offered to another runtime: it is not chosen again, and does
    /// not expire here.
    Leaving = 7,
    /// An owned flow whose packets, as its dead owner had them, are processed again:
    /// nothing else passes, and it does not move.
    Replaying = 8,
}

/// An event in a flow's life. The module's table says from where each is allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// The first packet came.
    Open,
    /// The first packet passed the whole chain.
    Serve,
    /// The flow is offered to another runtime.
    Choose,
    /// The offer is over, and the flow is still here.
    Stay,
    /// The flow was sent to its new owner.
    Send,
    /// The rest of a sent flow serves as the copy.
    Keep,
    /// The owner is about to send the flow here.
    Announce,
    /// The flow came, whole.
    Arrive,
    /// The flow will not come. Its copy is here.
    CallOff,
    /// Newer state of the flow's owner came.
    Copy,
    /// The owner is dead, and this runtime asks for the route.
    Claim,
    /// The route is this runtime's.
    Grant,
    /// The claim is over, and the copy is kept.
    Withdraw,
    /// Packets of the dead owner are processed again.
    Replay,
    /// The flow is what its dead owner had made of it.
    Restore,
    /// The slot is not needed any more.
    End,
}

impl Life {
    /// The state with this number; an unknown one is free.
    #[inline]
    pub const fn of(number: u8) -> Life {
        match number {
            1 => Life::Owned,
            2 => Life::Copy,
            3 => Life::Claiming,
            4 => Life::Opening,
            5 => Life::Arriving,
            6 => Life::Departed,
            7 => Life::Leaving,
            8 => Life::Replaying,
            _ => Life::Free,
        }
    }

    /// This runtime owns the flow: its route leads here.
    #[inline]
    pub const fn is_owned(self) -> bool {
        matches!(self, Life::Owned | Life::Leaving | Life::Replaying)
    }

    /// The flow is this runtime's, owned or about to be opened.
    #[inline]
    pub const fn is_own(self) -> bool {
        self.is_owned() || matches!(self, Life::Opening)
    }

    /// The flow is about to be owned here, under an epoch that it has not been told yet.
    #[inline]
    pub const fn is_awaited(self) -> bool {
        matches!(self, Life::Claiming | Life::Arriving)
    }

    /// A copy of the owner's state may be here: of a flow that is about to come, too.
    #[inline]
    pub const fn may_be_copy(self) -> bool {
        matches!(self, Life::Copy | Life::Arriving)
    }
}

impl Event {
    /// The state to which the event leads.
    #[inline]
    pub const fn target(self) -> Life {
        match self {
            Event::Open => Life::Opening,
            Event::Serve | Event::Stay | Event::Arrive | Event::Grant | Event::Restore => {
                Life::Owned
            }
            Event::Choose => Life::Leaving,
            Event::Send => Life::Departed,
            Event::Announce => Life::Arriving,
            Event::Keep | Event::CallOff | Event::Copy | Event::Withdraw => Life::Copy,
            Event::Claim => Life::Claiming,
            Event::Replay => Life::Replaying,
            Event::End => Life::Free,
        }
    }

    /// The event is allowed in this state.
    #[inline]
    pub const fn is_allowed(self, from: Life) -> bool {
        match self {
            Event::Open => matches!(from, Life::Free),
            Event::Serve => matches!(from, Life::Opening),
            Event::Choose | Event::Replay => matches!(from, Life::Owned),
            Event::Stay | Event::Send => matches!(from, Life::Leaving),
            Event::Keep => matches!(from, Life::Departed),
            Event::Announce => matches!(from, Life::Free | Life::Copy),
            Event::Arrive | Event::CallOff => matches!(from, Life::Arriving),
            Event::Copy => true,
            Event::Claim => !(matches!(from, Life::Owned | Life::Replaying | Life::Opening)),
            Event::Grant | Event::Withdraw => matches!(from, Life::Claiming),
            Event::Restore => matches!(from, Life::Replaying),
            Event::End => !matches!(from, Life::Free),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVENTS: [Event; 16] = [
        Event::Open,
        Event::Serve,
        Event::Choose,
        Event::Stay,
        Event::Send,
        Event::Keep,
        Event::Announce,
        Event::Arrive,
        Event::CallOff,
        Event::Copy,
        Event::Claim,
        Event::Grant,
        Event::Withdraw,
        Event::Replay,
        Event::Restore,
        Event::End,
    ];

    /// The table in the module's head says the same as the code, for every event and
    /// state.
    #[test]
    fn the_table_is_true() {
        let rows: Vec<Vec<&str>> = include_str!("life.rs")
            .lines()
            .filter_map(|line| line.strip_prefix("//! | `"))
            .map(|line| line.trim_end_matches(" |").split(" | ").collect())
            .collect();
        assert_eq!(rows.len(), EVENTS.len());
        let name = |life: Life| format!("{life:?}").to_lowercase();
        for (row, event) in rows.iter().zip(EVENTS) {
            assert!(row[0].starts_with(&format!("{event:?}`: ")), "{row:?}");
            assert_eq!(row[2], name(event.target()), "{event:?}");
            for life in (0..9).map(Life::of) {
                let is_named = row[1].split(", ").any(|from| from == name(life));
                assert_eq!(event.is_allowed(life), is_named, "{event:?} from {life:?}");
            }
        }
    }

    #[test]
    fn a_state_is_its_number() {
        assert!((0..9).all(|number| Life::of(number) as u8 == number));
        assert!((9..=u8::MAX).all(|number| Life::of(number) == Life::Free));
    }
}
