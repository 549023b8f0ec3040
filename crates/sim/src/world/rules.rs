//! Service-chain rules that change while a world runs.

use super::hosts::Site;
use super::{MILLISECOND, World};
use crate::random::Random;
use crate::scenario::Scenario;
use holdfast_node::rules::Rule;
use holdfast_wire::nsh::{self, Flags};
use holdfast_wire::selector::Selector;
use holdfast_wire::{FlowKey, Packet};

/// Rules that give every new flow chain `chain` of its switch, which has `of_each`
/// chains.
pub(super) fn all_to(chain: u16, switches: u16, of_each: u16) -> Vec<Rule> {
    let rule =
        |switch| Rule { selector: Selector::any(), chain: switch * of_each + chain, cluster: 0 };
    (0..switches).map(rule).collect()
}

/// Rule changes: times, ns after the world's beginning, and chains. A third of the drawn
/// worlds have some while connections begin and runtimes die. Other draws do not depend
/// on them.
pub(super) fn drawn(scenario: &Scenario) -> Vec<(u64, u16)> {
    if scenario.quiet || !scenario.seed.is_multiple_of(3) {
        return Vec::new();
    }
    let mut random = Random::new(scenario.seed ^ 0x7275_6c65);
    let count = random.range(1, 5);
    let mut changes: Vec<(u64, u16)> = (1..=count)
        .map(|number| (random.range(100, 2500) * MILLISECOND, (number % 2) as u16))
        .collect();
    changes.sort_unstable();
    changes
}

impl World {
    pub(super) fn change_rules(&mut self, chain: u16) {
        self.say(format_args!("new flows take chain {chain}"));
        self.set_rules(all_to(chain, self.plan.switches, self.of_each()));
    }

    /// Looks at a frame that a host sends to a runtime. If its own switch sends a
    /// client's packet there, the packet's chain is checked.
    pub(super) fn check_chain(&mut self, at: Site, mut packet: Packet) -> Packet {
        // Packets that a host passes on for another may have been under way for long.
        let is_own =
            |source| self.hosts[at].hub.serving().any(|switch| switch.me().mac() == source);
        if self.chains > 1
            && nsh::decapsulate(&mut packet)
                .is_some_and(|outer| outer.index == nsh::index::TO_RUNTIME && is_own(outer.source))
            && packet.meta.flags & Flags::OAM == 0
            && packet.parse().is_ok()
            && let Some(key) = FlowKey::noted(&packet)
        {
            let is_theirs = |ends: (crate::frames::End, crate::frames::End, u8)| {
                crate::frames::key(ends.0, ends.1, ends.2) == key
            };
            let client = self
                .clients
                .iter()
                .find(|client| is_theirs(client.ends()))
                .map(|client| client.id());
            let begun_anew =
                |id: &u32| self.loss.as_ref().is_some_and(|loss| loss.begun_anew.contains(id));
            if let Some(id) = client.filter(|id| !begun_anew(id)) {
                self.checkers.check_chain(id, packet.meta.chain);
            }
        }
        packet
    }
}
