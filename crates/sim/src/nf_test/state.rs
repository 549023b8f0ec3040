//! A flow's state is all that goes with it: another instance, which has the state and
//! nothing else, does with the flow's next packet what this one does.
//!
//! Packets that say that they would come out differently
//! ([`Context::is_nondeterministic`](holdfast_nf::Context::is_nondeterministic)) are left
//! out: protections never process them again.

use super::difference::After;
use super::traffic::Traffic;
use super::{Effort, build};
use crate::scenario::Inserted;
use holdfast_nf::Chain;
use holdfast_nf::bench::Bench;

pub(super) fn check(function: &Inserted, effort: Effort) -> Result<(), String> {
    // Made apart, as in two processes.
    let (here, there) = (build(function)?, build(function)?);
    let mut home = Bench::new(Chain::new(vec![here.bind()]));
    let mut away = Bench::seeded(Chain::new(vec![there.bind()]), effort.seed ^ 0xa5a5);
    let mut traffic = Traffic::new(effort.seed);
    let mut moved = 0;
    for number in 1..=effort.packets {
        let (pause, frame) = traffic.poll();
        home.wait(pause);
        away.wait(home.now.saturating_sub(away.now));
        let sent = home.send(&frame);
        let stayed = After::of(&home, sent);
        traffic.handle_sent(stayed.frame());
        let Some(passage) = stayed.passage() else { continue };
        if passage.is_opening {
            away.copies(&home, &passage.key, &passage.after);
            continue;
        }
        if stayed.is_nondeterministic() {
            continue;
        }
        away.copies(&home, &passage.key, &passage.before);
        // The packet's own stamp.
        away.now -= 1;
        let sent = away.send(&frame);
        moved += 1;
        if let Some(differing) = stayed.differs_from(&After::of(&away, sent), &*here) {
            return Err(format!(
                "packet {number} of seed {} ({}), at the flow's own instance and where the \
                 flow has just come to: {differing}. A flow's state must mean the same \
                 everywhere, and what else a packet depends on must be shared state whose \
                 reading marks the packet, or `cx.random()`",
                effort.seed,
                traffic.described(&frame)
            ));
        }
    }
    if moved == 0 {
        return Err("no packet of a flow could be tried: the function drops all of them, or \
                    each depends on shared state or chance"
            .to_owned());
    }
    Ok(())
}
