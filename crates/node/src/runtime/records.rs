//! Messages of the switch, the coordinator, the manager and other runtimes.

use super::migration::{Migrations, Parts};
use super::resync::Resync;
use super::switch_peer::SwitchPeer;
use super::{Lane, Runtime};
use crate::message::{Control, Ended, Member, MemberState, is_later_view, kind, numbered};
use crate::prefetch;
use holdfast_protection::{Commit, Detour, Epoch, NodeIndex, Peer, kind as protection_kind};
use holdfast_wire::{DropReason, FlowKey, NodeId, Packet, PacketPool};
use zerocopy::FromBytes;

impl Runtime {
    /// Sends the protection's records.
    pub(super) fn carry_out_records(&mut self, at: usize) {
        let lane = &mut self.lanes[at];
        for (record, body) in lane.outbox.records() {
            // Another incarnation, whose numbers begin anew, may have replaced the peer
            // in this turn.
            if self.fabric.peer(record.to.node) != Some(record.to) {
                continue;
            }
            // The outbox knew how much room the channel had. If a change is missing in
            // spite of that, the next one is refused, and the flow's whole state is sent.
            let _ = self.fabric.send(record.to.node, record.kind, body);
        }
        lane.outbox.clear_records();
        if let Some(stamp) = lane.outbox.cleared.take() {
            let mut body = [0; 10];
            body[..2].copy_from_slice(&lane.index.to_be_bytes());
            body[2..].copy_from_slice(&stamp.to_be_bytes());
            // If the channel is full, the next round sends the stamp.
            let _ = self.fabric.send(self.shared.sides[lane.side].switch, kind::CLEAR, &body);
        }
    }

    pub(super) fn handle_records(&mut self, pool: &mut dyn PacketPool) {
        let inbox = core::mem::take(&mut self.fabric.inbox);
        for peer in &inbox.restarted {
            self.listings.forget(peer.node);
            self.rankings.forget(peer.node);
            // Claims on their way are lost: the switch has a new incarnation, which will
            // say so, or a frame had named a false one.
            if let Some(at) = self.shared.sides.iter().position(|side| side.switch == peer.node) {
                self.recoveries.ask_again(at);
            }
            if let Some(served) = &mut self.served {
                served.handle_restart(*peer);
            }
            // If the manager served a switch too, its new incarnation has none of the
            // packets that were logged.
            if let Some(host) = peer.node.host() {
                self.log_lost(|side| side.host == host, pool);
            }
        }
        for (at, (record, body)) in inbox.records().enumerate() {
            if at % prefetch::AHEAD == 0 {
                let of = |lanes: &[Lane], chain: u16| {
                    Some(usize::from(chain)).filter(|at| *at < lanes.len())
                };
                prefetch::look(&mut self.lanes, of, inbox.records_from(at));
            }
            let result = match record.kind {
                1..=protection_kind::LAST => {
                    self.handle_protection(record.from, record.kind, body, pool)
                }
                kind::CONTROL => {
                    Control::decode(body).map(|message| self.handle_control(record.from, message))
                }
                kind::NUMBERED if record.from.node == NodeId::COORDINATOR => numbered(body)
                    .map(|(number, message)| self.handle_order(record.from, number, message)),
                kind::CLAIMED => {
                    self.recoveries.handle_claimed(record.from.node, body, &mut self.lanes)
                }
                kind::UNLOGGED => match <[u8; 4]>::try_from(body) {
                    Ok(epoch) => {
                        let epoch = Epoch::new(u32::from_be_bytes(epoch));
                        let mut lanes = self.lanes.iter_mut();
                        let of_switch = lanes.find(|lane| {
                            self.shared.sides[lane.side].switch == record.from.node
                                && lane.replays.has(epoch)
                        });
                        of_switch
                            .into_iter()
                            .for_each(|lane| lane.end_replay(epoch, &mut self.shared, pool));
                        Ok(())
                    }
                    Err(_) => Err(DropReason::Malformed),
                },
                kind::ENDED => self.handle_ended(record.from.node, body, pool),
                kind::TELL => self.handle_tell(record.from.node, body, pool),
                kind::PREPARE..=kind::CANCEL | kind::MOVED => {
                    let (migrations, mut parts) = self.migration();
                    migrations.handle_record(record.from, record.kind, body, &mut parts)
                }
                kind::STATE_WELCOME | kind::STATE | kind::STATE_OVER => {
                    self.hear_server(record.from, record.kind, body)
                }
                _ => Err(DropReason::Malformed),
            };
            if let Err(reason) = result {
                self.shared.drops.count(reason);
            }
        }
        self.fabric.inbox = inbox;
        self.fabric.inbox.clear();
    }

    /// Ends flows for which the switch has no routes any more.
    fn handle_ended(
        &mut self,
        switch: NodeId,
        body: &[u8],
        pool: &mut dyn PacketPool,
    ) -> Result<(), DropReason> {
        let ended = <[Ended]>::ref_from_bytes(body).map_err(|_| DropReason::Malformed)?;
        for lane in &mut self.lanes {
            if self.shared.sides[lane.side].switch != switch {
                continue;
            }
            for flow in ended {
                lane.end_unrouted(
                    &FlowKey::from(flow.key),
                    Epoch::new(flow.epoch.get()),
                    &mut self.shared,
                    pool,
                );
            }
        }
        Ok(())
    }

    /// A new incarnation of a switch asks for its routes.
    fn handle_tell(
        &mut self,
        switch: NodeId,
        body: &[u8],
        pool: &mut dyn PacketPool,
    ) -> Result<(), DropReason> {
        let &[incarnation] = body else { return Err(DropReason::Malformed) };
        let mut sides = self.shared.sides.iter();
        let Some(at) = sides.position(|side| side.switch == switch) else {
            // No chain belongs to that switch.
            return Err(DropReason::Malformed);
        };
        // Packets that the previous incarnation logged are lost, also if it was on
        // another host.
        self.log_lost(|side| side.switch == switch, pool);
        let (migrations, mut parts) = self.migration();
        let departed = migrations.handle_new_switch(at, &mut parts);
        self.recoveries.ask_again(at);
        let side = &mut self.shared.sides[at];
        side.heard = Some(incarnation);
        side.incarnation = Some(incarnation);
        let to = (switch, at, incarnation);
        side.resync = Some(Resync::new(self.config.me, to, side.newest_epoch, side.now, departed));
        Ok(())
    }

    /// Handles the loss of a switch's packet log. The coordinator is to hear soon that
    /// this runtime knows of it.
    pub(super) fn log_lost(
        &mut self,
        is_its: impl Fn(&SwitchPeer) -> bool,
        pool: &mut dyn PacketPool,
    ) {
        self.next_report = 0;
        for lane in &mut self.lanes {
            if is_its(&self.shared.sides[lane.side]) {
                lane.end_replays(&mut self.shared, pool);
                lane.settle_replays(&mut self.recoveries);
                if let Some(logged) = lane.protection.logged_mut() {
                    logged.log_lost(&mut lane.flows);
                }
            }
        }
    }

    fn migration(&mut self) -> (&mut Migrations, Parts<'_>) {
        let Runtime { migrations, lanes, shared, fabric, recoveries, .. } = self;
        (migrations, Parts { lanes, shared, fabric, recoveries })
    }

    /// Handles a mark, which comes behind all packets that were sent to this runtime
    /// before: by the switch on an old route, or by an owner's hand-over.
    pub(super) fn handle_mark(&mut self, mark: &Packet, source: holdfast_wire::header::Mac) {
        if let Some(switch) = NodeId::of_mac(&source).filter(|node| node.switch_number().is_some())
        {
            self.migrations.handle_mark(switch, mark.meta.commit, &self.lanes, &self.shared);
            return;
        }
        if let Some(from) = self.sender(&source)
            && let Some(lane) = self.lanes.get_mut(mark.meta.chain as usize)
        {
            lane.protection.handle_mark(from, Commit::new(mark.meta.commit));
        }
    }

    /// The runtimes that may have replicas of flows here: those on other hosts, because a
    /// host dies as a whole, or those on this host if there is no other.
    fn replicas(&self, members: &[Member]) -> Vec<Peer> {
        let me = self.config.me;
        let here = members.iter().find(|member| member.peer() == me).map(|member| member.host);
        let running = || {
            members
                .iter()
                .filter(|member| member.node != me.node && member.state == MemberState::Running)
        };
        let elsewhere: Vec<Peer> =
            running().filter(|member| Some(member.host) != here).map(Member::peer).collect();
        if elsewhere.is_empty() { running().map(Member::peer).collect() } else { elsewhere }
    }

    /// Tells the protections the cost of releasing packets at another runtime: they leave
    /// the box at the host of their chain's switch.
    fn tell_detours(&mut self) {
        let Some(here) = self.my_host else { return };
        let is_one_host = self.hosts.iter().all(|(_, host)| *host == here);
        for lane in &mut self.lanes {
            let serving = self.shared.sides[lane.side].host;
            let detour = |host: u16| match host {
                host if host == here || host == serving => Detour::None,
                _ if here == serving => Detour::ThereAndBack,
                _ => Detour::Longer,
            };
            let detours: Vec<(Peer, Detour)> =
                self.hosts.iter().map(|(peer, host)| (*peer, detour(*host))).collect();
            lane.protection.set_detours(&detours);
            // A host dies as a whole, so a log on the runtime's own host does not help.
            if let Some(logged) = lane.protection.logged_mut() {
                logged.set_place(&mut lane.flows, self.config.me, is_one_host || serving != here);
            }
        }
    }

    fn handle_protection(
        &mut self,
        from: Peer,
        record: u8,
        body: &[u8],
        pool: &mut dyn PacketPool,
    ) -> Result<(), DropReason> {
        let (chain, body) = body.split_first_chunk::<2>().ok_or(DropReason::Malformed)?;
        let lane =
            self.lanes.get_mut(u16::from_be_bytes(*chain) as usize).ok_or(DropReason::Malformed)?;
        let result =
            lane.protection.handle_record(&mut lane.flows, from, record, body, &mut lane.outbox);
        lane.demote(&mut self.shared, pool);
        result
    }

    pub(super) fn handle_control(&mut self, from: Peer, message: Control) {
        match message {
            Control::Account { handled } if from.node == NodeId::COORDINATOR => {
                self.account(handled)
            }
            // A manager's new incarnation knows of no earlier report.
            Control::Account { .. } if from.node.host().is_some() => self.next_report = 0,
            Control::Settled { handled } if from.node == NodeId::COORDINATOR => {
                self.requests.settle(handled)
            }
            Control::Managers { serving, peers } if from.node == NodeId::COORDINATOR => {
                for side in &mut self.shared.sides {
                    let number = side.switch.switch_number().map(usize::from);
                    side.host =
                        number.and_then(|number| serving.get(number).copied()).unwrap_or(side.host);
                }
                self.tell_detours();
                self.listeners.truncate(1);
                for peer in peers.into_iter().filter(|peer| peer.node.host().is_some()) {
                    // Another host's manager does not know which incarnations live here,
                    // and could not tell that it has begun anew.
                    self.fabric.set_peer(peer);
                    self.listeners.push(peer.node);
                }
                self.next_report = 0;
            }
            Control::View { version, members } if is_later_view(self.view, version) => {
                self.view = version;
                let me = self.config.me;
                let has_failed = |peer: Peer| {
                    let mut of_node = members.iter().filter(|member| member.node == peer.node);
                    of_node.any(|member| {
                        let is_past = member.incarnation > peer.incarnation;
                        is_past || member.peer() == peer && member.state == MemberState::Failed
                    })
                };
                self.fenced |= has_failed(me);
                // The coordinator decides the order in which runtimes ask for the dead
                // one's flows: first those with copies as they should be.
                let own = members.iter().find(|member| member.peer() == me);
                let is_leaving = own.is_some_and(|own| own.state == MemberState::Leaving);
                let is_here = |member: &&Member| own.is_some_and(|own| own.host == member.host);
                let serves = |member: &&Member| member.state.serves();
                let is_alone = !members.iter().filter(serves).any(|member| !is_here(&member));
                let is_asked_later = |dead: Peer| {
                    let lived_here =
                        members.iter().filter(is_here).any(|member| member.node == dead.node);
                    has_failed(dead) && (is_leaving || lived_here && !is_alone)
                };
                self.migrations.arrivals.give_back(
                    is_asked_later,
                    &mut self.lanes,
                    &mut self.recoveries,
                );
                self.members.clear();
                let others = members.iter().filter(|member| member.node != me.node);
                self.members.extend(
                    others.filter(|member| member.state.serves()).map(|member| member.peer()),
                );
                self.member_at.renew(self.members.iter().map(|peer| peer.node));
                for peer in &self.members {
                    self.fabric.set_peer(*peer);
                }
                for lane in self.lanes.iter_mut().filter(|lane| !lane.plan.is_paged()) {
                    lane.outbox.set_peers(
                        self.members.iter().map(|peer| (*peer, self.fabric.room(*peer))),
                    );
                }
                self.my_host = members
                    .iter()
                    .find(|member| member.peer() == me)
                    .map(|member| member.host)
                    .or(self.my_host);
                self.hosts = members.iter().map(|member| (member.peer(), member.host)).collect();
                self.tell_detours();
                let replicas = self.replicas(&members);
                // A peer on this host counts as leaving while there are other hosts: its
                // earlier copies stay until they are replaced.
                let kept = NodeIndex::of(replicas.iter().map(|peer| peer.node));
                let leaving: Vec<Peer> = self
                    .members
                    .iter()
                    .copied()
                    .filter(|peer| kept.get(peer.node).is_none())
                    .collect();
                for lane in self.lanes.iter_mut().filter(|lane| !lane.plan.is_paged()) {
                    lane.protection.set_peers(
                        &mut lane.flows,
                        &replicas,
                        &leaving,
                        &mut lane.outbox,
                    );
                }
            }
            Control::Recover { node, incarnation } => {
                let dead = Peer { node, incarnation };
                self.fabric.remove_peer(dead);
                if self.recoveries.begin(dead, self.config.me, &mut self.lanes) {
                    let (migrations, mut parts) = self.migration();
                    migrations.handle_dead(dead, &mut parts);
                }
            }
            Control::Migrate { request, targets, limit, selector } => {
                let targets = targets
                    .into_iter()
                    .map(|(node, incarnation)| Peer { node, incarnation })
                    .collect();
                self.migrations.order(
                    request,
                    targets,
                    limit,
                    &selector,
                    &mut self.fabric,
                    &self.listeners,
                );
            }
            Control::Grant { pool, blocks } => {
                self.with_pool(pool, |pool| {
                    blocks.iter().for_each(|(block, used)| pool.backend().grant_block(*block, used))
                });
            }
            Control::Deny { pool } => self.with_pool(pool, |pool| pool.backend().deny()),
            Control::Returned { pool, numbers } => self.with_pool(pool, |pool| {
                for number in &numbers {
                    pool.backend().returned(*number);
                }
            }),
            Control::Taken { pool, numbers } => self.with_pool(pool, |pool| {
                for number in &numbers {
                    pool.backend().taken(*number);
                }
            }),
            Control::SpareBlocks { pool } => self.with_pool(pool, |pool| pool.backend().spare()),
            Control::ListFlows { request, limit, selector, lane, slot } => {
                self.listings.ask(from.node, request, limit, &selector, (lane, slot));
            }
            Control::RankFlows { request } => self.rankings.ask(from.node, request),
            _ => {}
        }
    }
}
