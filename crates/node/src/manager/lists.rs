//! Lists of flows: which runtime has the next piece of a list.
//!
//! A list goes through the runtimes in the order of their nodes, and through each of them
//! from slot to slot. The manager keeps only the pieces under way: the asker brings the
//! [`ListCursor`] where the last piece ended. If a runtime has ended, the list continues
//! with its next incarnation, or the next runtime.
//!
//! In: questions, records, ends. Out: questions to runtimes, pieces. Never: a look at the
//! flows in them.

use super::Manager;
use crate::message::{Control, FlowPage, FlowsHead, ListCursor};
use holdfast_protection::Peer;
use holdfast_wire::{DropReason, NodeId};
use zerocopy::FromBytes;

/// Pieces that may be under way. The oldest is dropped first: its asker may be gone.
const MOST: usize = 128;

/// A piece that was asked for.
struct Piece {
    request: u32,
    /// The runtime that was asked; `None` once the piece is complete.
    asked: Option<Peer>,
    /// The runtimes after this one are still to be asked.
    after: Option<NodeId>,
    page: FlowPage,
}

/// See the module.
#[derive(Default)]
pub(super) struct Lists {
    open: Vec<Piece>,
    last: u32,
}

impl Lists {
    /// Takes a record of a runtime's answer: see
    /// [`kind::FLOWS`](crate::message::kind::FLOWS).
    ///
    /// # Errors
    /// [`DropReason::Malformed`] if it is none.
    pub(super) fn handle_record(&mut self, from: Peer, body: &[u8]) -> Result<(), DropReason> {
        let (head, flows) = FlowsHead::read_from_prefix(body).map_err(|_| DropReason::Malformed)?;
        let is_meant =
            |piece: &&mut Piece| piece.request == head.request.get() && piece.asked == Some(from);
        let Some(piece) = self.open.iter_mut().find(is_meant) else { return Ok(()) };
        piece.page.bytes.extend_from_slice(flows);
        if head.is_last != 0 {
            piece.asked = None;
            piece.page.next = head.next().map(|(lane, slot)| ListCursor { peer: from, lane, slot });
        }
        Ok(())
    }

    /// The runtime answers no more: its flows are missing in the list, or twice in it if
    /// others have recovered them.
    pub(super) fn handle_ended(&mut self, peer: Peer) {
        self.open
            .iter_mut()
            .filter(|piece| piece.asked == Some(peer))
            .for_each(|piece| piece.asked = None);
    }
}

impl Manager {
    /// The runtime that has the next flows of a list: the one with the lowest node of
    /// those that are meant.
    fn next_listed(&self, is_meant: impl Fn(NodeId) -> bool) -> Option<Peer> {
        let serves = |peer: &Peer| {
            is_meant(peer.node) && self.reports.iter().any(|(reporter, _)| reporter == peer)
        };
        self.present.iter().copied().filter(serves).min_by_key(|peer| peer.node)
    }

    /// Asks for at most `limit` flows of a list, from its beginning or from a place on,
    /// or for those that the selector matches. [`Manager::take_flows`] returns them.
    pub fn request_flows(&mut self, limit: u32, selector: &str, at: Option<ListCursor>) -> u32 {
        self.lists.last = self.lists.last.wrapping_add(1);
        let request = self.lists.last;
        let asked = self.next_listed(|node| at.is_none_or(|place| node >= place.peer.node));
        if let Some(peer) = asked {
            let (lane, slot) = at
                .filter(|place| place.peer == peer)
                .map_or((0, 0), |place| (place.lane, place.slot));
            let question =
                Control::ListFlows { request, limit, selector: selector.to_owned(), lane, slot };
            self.fabric.send_control(peer.node, &question);
        }
        let after = asked.map(|peer| peer.node);
        self.lists.open.push(Piece { request, asked, after, page: FlowPage::default() });
        if self.lists.open.len() > MOST {
            self.lists.open.remove(0);
        }
        request
    }

    /// The answer to a request, once it is whole.
    pub fn take_flows(&mut self, request: u32) -> Option<FlowPage> {
        let at = self
            .lists
            .open
            .iter()
            .position(|piece| piece.request == request && piece.asked.is_none())?;
        let Piece { after, mut page, .. } = self.lists.open.swap_remove(at);
        if page.next.is_none() {
            let next = after.and_then(|node| self.next_listed(|next| next > node));
            page.next = next.map(|peer| ListCursor { peer, lane: 0, slot: 0 });
        }
        Some(page)
    }
}
