//! The planned end of a box, or of one of its hosts: others take over before anything
//! stops.

use super::{MILLISECOND, ManagerProcess, SPINS};
use holdfast_io::wait::SpinLimit;
use holdfast_node::message::{Member, MemberState};
use rustix::fd::BorrowedFd;

/// Time-out for adjacent routers to learn that the box ends, ns.
const LEAVE_TIMEOUT: u64 = 1_000 * MILLISECOND;
/// Time-outs for another host to take over the service, and then to learn of the end of
/// this host's runtimes, ns.
const HAND_OVER_TIMEOUT: u64 = 500 * MILLISECOND;

impl ManagerProcess {
    /// A planned shutdown: other hosts take over the ports, and routers learn of it,
    /// before the ports close.
    pub(super) fn leave(&mut self, wake: BorrowedFd<'_>) {
        self.hand_over(wake);
        // BFD sessions stay until the routers have acknowledged the shutdown, or they
        // would take the closed ports for a failure.
        self.host.take_leave(self.clock.now());
        self.turn_while(wake, LEAVE_TIMEOUT, |manager| manager.host.is_taking_leave());
    }

    /// If there are several hosts, waits until another one serves the ports. Afterwards
    /// stops the runtimes here and waits until the coordinator has recorded their end, so
    /// that no host waits for a timeout.
    fn hand_over(&mut self, wake: BorrowedFd<'_>) {
        if !self.host.hub.manager.leave() {
            return;
        }
        self.turn_while(wake, HAND_OVER_TIMEOUT, |manager| manager.host.hub.is_serving());
        if self.host.hub.is_serving() {
            return;
        }
        let runtimes =
            || self.workers.iter().map(|worker| worker.peer).filter(|peer| peer.node.is_runtime());
        runtimes().collect::<Vec<_>>().into_iter().for_each(|peer| self.stop(peer));
        self.turn_while(wake, HAND_OVER_TIMEOUT, |manager| {
            let is_alive = |member: &Member| {
                member.host == manager.number && member.state != MemberState::Failed
            };
            manager
                .host
                .hub
                .manager
                .standing()
                .is_some_and(|standing| standing.members.iter().any(is_alive))
        });
    }

    fn turn_while(
        &mut self,
        wake: BorrowedFd<'_>,
        timeout: u64,
        is_needed: impl Fn(&mut ManagerProcess) -> bool,
    ) {
        let began_at = self.clock.now();
        let mut spins = SpinLimit::new(SPINS);
        loop {
            let had_work = self.turn();
            if !is_needed(self) || self.clock.now().saturating_sub(began_at) > timeout {
                return;
            }
            if spins.is_over(had_work) {
                self.wait(wake);
            }
        }
    }
}
