//! Operators' orders: flows moved, runtimes drained, rules changed. The coordinator is
//! told, and its answers and the runtimes' progress are kept for the operator.

use super::{MOVES_KEPT, Manager};
use crate::message::{Control, Drain, Order, Refusal, kind};
use crate::rules::RuleRecords;
use holdfast_protection::Peer;
use holdfast_wire::NodeId;

/// Orders that may be under way.
const ORDERS: usize = 16;
/// Records of new rules that are sent in one turn, because each is sealed and copied.
const RULES_AT_ONCE: usize = 8;

/// A request to move flows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Move {
    /// The request's number.
    pub request: u32,
    /// The runtime whose flows move.
    pub from: Peer,
    /// The time of its beginning, ns.
    pub began_at: u64,
    /// Flows that another runtime serves now.
    pub moved: u64,
    /// Flows that no runtime would take.
    pub refused: u64,
    /// The time of its end, ns.
    pub ended_at: Option<u64>,
    /// The runtime failed before it was over.
    pub failed: bool,
}

/// An order that was passed on.
pub(super) struct Ticket {
    pub(super) number: u32,
    /// The coordinator that was asked, if one was known.
    pub(super) asked: Option<Peer>,
    /// The runtime whose flows are to move, if any are.
    pub(super) from: Option<NodeId>,
    /// The coordinator's answer, once it is there.
    pub(super) answer: Option<Result<u32, Refusal>>,
}

impl Ticket {
    /// Answers that the coordinator is away, unless there is an answer.
    pub(super) fn refuse(&mut self) {
        self.answer.get_or_insert(Err(Refusal::Away));
    }
}

/// Rules that an operator wants.
pub(super) struct Wanted {
    pub(super) records: RuleRecords,
    /// Records that this incarnation of the coordinator was sent.
    pub(super) told: usize,
}

impl Manager {
    /// A request to move flows, known from its beginning or from its runtime's report.
    pub(super) fn moving_mut(&mut self, request: u32, from: Peer) -> &mut Move {
        let at =
            self.moves.iter().position(|order| order.request == request).unwrap_or_else(|| {
                if self.moves.len() >= MOVES_KEPT {
                    self.moves.remove(0);
                }
                let began_at = self.now;
                self.moves.push(Move {
                    request,
                    from,
                    began_at,
                    moved: 0,
                    refused: 0,
                    ended_at: None,
                    failed: false,
                });
                self.moves.len() - 1
            });
        &mut self.moves[at]
    }

    /// Sets rules for flows that begin from now on, with a version after
    /// [`Manager::rules_wanted`]. A coordinator that is away is told when it is back.
    pub fn set_rules(&mut self, records: RuleRecords) {
        self.rules = Some(Wanted { records, told: 0 });
        self.tell_rules();
    }

    /// The version of the rules that an operator wanted last, or of those that are in
    /// force.
    pub fn rules_wanted(&self, in_force: u64) -> u64 {
        self.rules.as_ref().map_or(in_force, |wanted| wanted.records.version().max(in_force))
    }

    /// Sends the coordinator some of the records that it has not been sent.
    pub(super) fn tell_rules(&mut self) {
        let Some(Wanted { records, told }) = &mut self.rules else { return };
        for record in records.records().iter().skip(*told).take(RULES_AT_ONCE) {
            if self.fabric.send(NodeId::COORDINATOR, kind::CONTROL, record).is_err() {
                break;
            }
            *told += 1;
        }
    }

    /// Passes an operator's order on; [`Manager::take_answer`] gives the answer.
    pub fn order(&mut self, order: Order) -> u32 {
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        let from = if let Order::Move { from, .. } = &order { Some(*from) } else { None };
        let asked = self.coordinator();
        self.fabric.send_control(NodeId::COORDINATOR, &Control::Order { ticket, order });
        self.tickets.push(Ticket { number: ticket, asked, from, answer: None });
        if self.tickets.len() > ORDERS {
            self.tickets.remove(0);
        }
        ticket
    }

    /// The answer to an order, once it is there. An operator that asks too late gets
    /// none.
    pub fn take_answer(&mut self, ticket: u32) -> Option<Result<u32, Refusal>> {
        let Some(at) = self.tickets.iter().position(|known| known.number == ticket) else {
            return Some(Err(Refusal::Away));
        };
        let answer = self.tickets[at].answer?;
        self.tickets.remove(at);
        Some(answer)
    }

    /// An incarnation of the coordinator has ended: its open orders get no answer.
    pub fn handle_coordinator_ended(&mut self, peer: Peer) {
        self.tickets
            .iter_mut()
            .filter(|ticket| ticket.asked == Some(peer))
            .for_each(Ticket::refuse);
    }

    /// Requests to move flows so far, those of drains included.
    pub fn moves(&self) -> &[Move] {
        &self.moves
    }

    /// Drains so far, latest last.
    pub fn drains(&self) -> &[Drain] {
        &self.drains
    }
}
