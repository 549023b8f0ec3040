//! `holdfast` with an additional function, `mortal`, which ends its process on packets
//! that ask for it. This program does not ship.

use holdfast_nf::{ConfigError, Context, NetworkFunction, Open, Opening, Packet, Verdict};
use schemars::JsonSchema;
use serde::Deserialize;
use std::process::ExitCode;

#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct MortalConfig {}

holdfast_nf::flow_state! {
    struct Seen {
        packets: u64,
    }
}

struct Mortal;

impl NetworkFunction for Mortal {
    const NAME: &'static str = "mortal";
    type Config = MortalConfig;
    type Flow = Seen;
    type Shared = ();

    fn new(_config: MortalConfig) -> Result<Mortal, ConfigError> {
        Ok(Mortal)
    }

    fn shared(&self) {}

    fn open(&self, _packet: &Packet, _shared: &mut (), _cx: &mut Opening<'_>) -> Open<Seen> {
        Open::Accept(Seen::default())
    }

    fn process(
        &self,
        packet: &mut Packet,
        flow: &mut Seen,
        _shared: &mut (),
        _cx: &mut Context,
    ) -> Verdict {
        flow.packets += 1;
        match packet.l4().get(8..16) {
            Some(b"<abort!>") => std::process::abort(),
            Some(b"<panic!>") => panic!("the packet says so"),
            Some(b"<hang!!>") => loop {
                rustix::event::pause();
            },
            _ => Verdict::Forward,
        }
    }
}

fn main() -> ExitCode {
    holdfast::program!().with::<Mortal>().main()
}
