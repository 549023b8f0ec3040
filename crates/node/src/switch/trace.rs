//! Steps of the packets that an operator traces, as far as the switch sees them.

use super::Switch;
use crate::message::TraceStep;
use holdfast_wire::nsh::Flags;
use holdfast_wire::{FlowKey, Packet};

/// The direction of a traced packet's step. The value orders the steps with one stamp.
#[derive(Clone, Copy)]
pub(super) enum Stage {
    In = 0,
    Out = 2,
}

impl Switch {
    fn step(&self, packet: &Packet, stage: Stage, text: String) -> TraceStep {
        let (stamp, node, stage) = (packet.meta.stamp, self.config.me.node, stage as u8);
        TraceStep { stamp, node, stage, ingress: None, rule: None, text }
    }

    #[cold]
    pub(super) fn trace(&mut self, packet: &Packet, stage: Stage, text: String) {
        self.traces.push(self.step(packet, stage, text));
    }

    /// Begins to trace a packet if the selector matches. True if so.
    pub(super) fn start_trace(&mut self, key: &FlowKey, packet: &mut Packet) -> bool {
        let Some((_, left)) =
            self.trace.as_mut().filter(|(selector, _)| selector.matches(key, packet.meta.ingress))
        else {
            return false;
        };
        *left -= 1;
        if *left == 0 {
            self.trace = None;
        }
        packet.meta.flags |= Flags::TRACE;
        let text = format!("{} bytes: {key}", packet.len());
        let ingress = Some(packet.meta.ingress);
        self.traces.push(TraceStep { ingress, ..self.step(packet, Stage::In, text) });
        true
    }

    /// Adds the step of a packet that opens a flow, with the rule that matches.
    #[cold]
    pub(super) fn trace_rule(&mut self, key: &FlowKey, packet: &Packet) {
        let rule = self.rules.find(key, packet.meta.ingress).cloned();
        let text = if rule.is_some() { "a flow begins" } else { "no service-chain rule means it" };
        self.traces.push(TraceStep { rule, ..self.step(packet, Stage::In, text.to_owned()) });
    }
}
