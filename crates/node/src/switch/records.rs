//! Messages to a switch: claims and ends of flows, moves, replays, suspects, and the
//! coordinator's messages.

use super::Switch;
use super::suspects::Judgement;
use crate::message::{Control, Member, is_later_view, kind};
use holdfast_protection::{Epoch, Peer};
use holdfast_wire::fault::{Fault, is_planted};
use holdfast_wire::nsh::{self, Flags, Outer, index};
use holdfast_wire::{DropReason, NodeId, Packet, PacketPool};
use zerocopy::FromBytes;

impl Switch {
    /// Acts on the messages that have arrived.
    pub fn handle_records(
        &mut self,
        now: u64,
        out: &mut Vec<(Peer, Packet)>,
        pool: &mut dyn PacketPool,
    ) {
        let inbox = core::mem::take(&mut self.fabric.inbox);
        let mut changed = false;
        if inbox.restarted.iter().any(|peer| peer.node == NodeId::COORDINATOR) {
            // A new incarnation of the coordinator knows of this switch only what it is
            // told.
            self.say_rules();
            self.claims
                .lost
                .iter()
                .filter(|lost| lost.is_over)
                .for_each(|lost| lost.tell(&mut self.fabric));
        }
        for (record, body) in inbox.records() {
            let result = match record.kind {
                kind::CLAIM => {
                    changed = true;
                    self.handle_claims(record.from, body, now)
                }
                kind::ENDED => self.handle_ended(record.from, body),
                kind::MOVE => self.handle_move(record.from, body, out, pool),
                kind::MARK => match <[u8; 4]>::try_from(body) {
                    Ok(number) => {
                        self.mark(record.from, u32::from_be_bytes(number), out, pool);
                        Ok(())
                    }
                    Err(_) => Err(DropReason::Malformed),
                },
                kind::SETTLED => self.handle_settled(record.from, body),
                kind::CLEAR => self.handle_clear(record.from, body),
                kind::REPLAY => self
                    .handle_replay(record.from, body, out, pool)
                    .map(|is_change| changed |= is_change),
                kind::SUSPECT => self.handle_suspects(record.from, body, now),
                kind::FULL if body.is_empty() => {
                    self.targets.set_full(record.from, now);
                    Ok(())
                }
                kind::ROUTES => {
                    changed = true;
                    self.handle_routes(record.from, body, now)
                }
                // Only the coordinator decides which runtimes serve which chains, and by
                // which rules.
                kind::CONTROL if record.from.node == NodeId::COORDINATOR => {
                    match Control::rules_part(body) {
                        Some(part) => {
                            self.keep_rules(part, body);
                            Ok(())
                        }
                        None => Control::decode(body)
                            .and_then(|message| self.handle_control(message, now))
                            .map(|is_change| changed |= is_change),
                    }
                }
                _ => Err(DropReason::Malformed),
            };
            if let Err(reason) = result {
                self.drops.count(reason);
            }
        }
        self.fabric.inbox = inbox;
        self.fabric.inbox.clear();
        match self.read_rules() {
            Ok(are_newer) => changed |= are_newer,
            Err(reason) => self.drops.count(reason),
        }
        self.coming.free();
        if changed {
            self.retry_held(now, out, pool);
        }
    }

    /// Keeps a part of new rules, to be read in a later turn.
    fn keep_rules(&mut self, part: u16, record: &[u8]) {
        // Before the introduction the part is dropped: the coordinator repeats all of
        // them later.
        if self.is_introduced() {
            self.coming.keep(part, record);
        }
    }

    /// Reads a part of new rules, if one has come. Reading a record's rules takes some
    /// tens of microseconds, and packets wait meanwhile, so each turn reads one record.
    /// True if the rules have changed.
    fn read_rules(&mut self) -> Result<bool, DropReason> {
        let Some(record) = self.coming.poll_record() else { return Ok(false) };
        let Control::Rules { version, part, parts, rules } = Control::decode(&record)? else {
            return Ok(false);
        };
        let Some(rules) = self.coming.take(version, part, parts, rules)? else { return Ok(false) };
        let is_newer = rules.version() > self.rules.version();
        let old = if is_newer { core::mem::replace(&mut self.rules, rules) } else { rules };
        self.coming.retire(old);
        if is_newer && is_planted(Fault::Reclassifies) {
            let rules = &self.rules;
            self.routes.visit(|route| {
                route.chain = rules.find(&route.key, 0).map_or(0, |rule| rule.chain)
            });
        }
        self.say_rules();
        Ok(is_newer)
    }

    /// Handles a message of the coordinator. True if packets that wait may go on.
    fn handle_control(&mut self, message: Control, now: u64) -> Result<bool, DropReason> {
        if !self.is_introduced() && !matches!(message, Control::Recovering { .. }) {
            // The coordinator repeats its messages later.
            return Ok(false);
        }
        Ok(match message {
            Control::View { version, members } if is_later_view(self.view, version) => {
                self.view = version;
                self.set_members(&members, now);
                self.ask_members();
                self.know_members();
                true
            }
            Control::Recovering { dead, epoch } => {
                dead.iter().for_each(|dead| self.given_up(*dead, now));
                if let Some(rebuild) = &mut self.rebuild {
                    rebuild.add_recovering(dead, Epoch::given(epoch));
                }
                self.go_on_rebuilding();
                true
            }
            Control::Sweep { node, incarnation, is_over } => {
                let dead = Peer { node, incarnation };
                self.sweep(dead);
                self.swept(dead, is_over);
                if is_over {
                    self.logs.forget(dead);
                    self.claims.settle_lost(dead, &mut self.fabric);
                }
                true
            }
            _ => false,
        })
    }

    /// Tells the coordinator which rules are in force.
    fn say_rules(&mut self) {
        self.fabric.send_control(
            NodeId::COORDINATOR,
            &Control::RulesInForce { version: self.rules.version() },
        );
    }

    fn set_members(&mut self, members: &[Member], now: u64) {
        self.has_hosts = members.iter().any(|member| member.host != members[0].host);
        let old = self.targets.renew(members);
        for target in &old {
            if !self.is_alive(target.peer) {
                self.given_up(target.peer, now);
            }
        }
        for member in members {
            self.fabric.set_peer(member.peer());
        }
    }

    fn given_up(&mut self, dead: Peer, now: u64) {
        self.claims.given_up(dead, now);
        self.logs.close(dead);
    }

    /// Handles stamps of suspects: packets on which a runtime's functions panicked, or
    /// (from a manager) that a process had in flight when it ended.
    fn handle_suspects(&mut self, from: Peer, body: &[u8], now: u64) -> Result<(), DropReason> {
        let (stamps, []) = body.as_chunks::<8>() else { return Err(DropReason::Malformed) };
        for stamp in stamps {
            self.handle_suspect(u64::from_be_bytes(*stamp), from.node.host().is_some(), now);
        }
        Ok(())
    }

    /// Counts a packet of this switch that a runtime had in flight when it ended
    /// (`is_dead`), or on which its functions panicked. The second time the packet is set
    /// aside. If a process has ended, its flow is closed too, because no runtime has it
    /// any more.
    pub fn handle_suspect(&mut self, stamp: u64, is_dead: bool, now: u64) {
        let Some(key) = self.suspects.note(stamp).map(|aside| aside.key) else { return };
        self.drops.count(DropReason::Quarantined);
        if !is_dead {
            // After a panic the flow is as it was before the packet, and lives.
            return;
        }
        self.suspects.close(key, now);
        let hash = self.routes.hash(&key);
        if let Some(found) = self.routes.find(&key, hash).filter(|found| !found.is_reply) {
            self.end_route(found.slot);
        }
    }

    /// Marks a packet that is about to be sent to the flow's new owner, if a process
    /// ended with it in flight. If several did, the packet is sent without content.
    fn mark_suspect(&mut self, epoch: Epoch, packet: &mut Packet) {
        match self.suspects.judge(packet.meta.stamp) {
            Judgement::Innocent => return,
            Judgement::Suspect => {
                if let Some(route) = self.logs.route(epoch).and_then(|route| self.routes.get(route))
                {
                    self.suspects.keep(packet, route.key);
                }
            }
            Judgement::Guilty => {
                let meta = packet.meta;
                packet.clear();
                packet.meta = meta;
            }
        }
        packet.meta.flags |= Flags::SUSPECT;
    }

    /// A runtime says up to which stamp no packet that it was sent for a chain is needed.
    fn handle_clear(&mut self, from: Peer, body: &[u8]) -> Result<(), DropReason> {
        let Some((chain, stamp)) = body.split_first_chunk::<2>() else {
            return Err(DropReason::Malformed);
        };
        let stamp = <[u8; 8]>::try_from(stamp).map_err(|_| DropReason::Malformed)?;
        self.logs.clear(from, u16::from_be_bytes(*chain), u64::from_be_bytes(stamp));
        Ok(())
    }

    /// Answers the new owner of a flow that asks for packets of the dead owner, or says
    /// that it has them all. True if packets that wait may go on.
    fn handle_replay(
        &mut self,
        from: Peer,
        body: &[u8],
        out: &mut Vec<(Peer, Packet)>,
        pool: &mut dyn PacketPool,
    ) -> Result<bool, DropReason> {
        let ask =
            crate::message::Replay::read_from_bytes(body).map_err(|_| DropReason::Malformed)?;
        let (epoch, first, count) = (Epoch::new(ask.epoch.get()), ask.first.get(), ask.count.get());
        if count == 0 {
            return Ok(self.logs.end(from, epoch));
        }
        if !self.logs.knows(from, epoch) {
            // If the channel is full, the owner asks again and is answered then.
            let _ = self.fabric.send(from.node, kind::UNLOGGED, &epoch.to_be_bytes());
            return Ok(false);
        }
        for number in first..first.saturating_add(count.min(crate::message::Replay::MOST)) {
            // Without a buffer the owner asks again for missing packets.
            let Some(mut packet) = pool.take() else { break };
            if !self.logs.copy(from, epoch, number, &mut packet) {
                pool.put(packet);
                break;
            }
            packet.meta.flags = Flags::REPLAY;
            self.mark_suspect(epoch, &mut packet);
            // The number of the packet among the flow's logged ones.
            (packet.meta.commit, packet.meta.epoch) = (epoch.get(), number as u16);
            let outer = Outer {
                destination: from.mac(),
                source: self.config.me.mac(),
                index: index::TO_RUNTIME,
            };
            match nsh::encapsulate(&mut packet, outer) {
                true => out.push((from, packet)),
                false => pool.put(packet),
            }
        }
        Ok(false)
    }
}
