// no method named `give_back` found for struct `holdfast_nf::Pool<P>` in the current scope
use holdfast_nf::{ConfigError, Context, Lease, Leased, NetworkFunction, Open, Opening, Packet, Pool, Verdict};

pub enum Ports {}

holdfast_nf::flow_state! {
    pub struct Mapping {
        pub port: Leased<Ports>,
    }
}

holdfast_nf::shared_state! {
    pub struct Shared {
        pub ports: Pool<Ports>,
    }
}

pub struct Refused;

impl NetworkFunction for Refused {
    const NAME: &'static str = "nat";
    type Config = ();
    type Flow = Mapping;
    type Shared = Shared;

    fn new((): ()) -> Result<Self, ConfigError> {
        Ok(Refused)
    }

    fn shared(&self) -> Shared {
        Shared { ports: Pool::new(256) }
    }

    fn open(&self, _packet: &Packet, shared: &mut Shared, cx: &mut Opening<'_>) -> Open<Mapping> {
        match shared.ports.lease(cx) {
            Lease::Granted(port) => Open::Accept(Mapping { port }),
            _ => Open::Wait,
        }
    }

    fn process(&self, _packet: &mut Packet, flow: &mut Mapping, shared: &mut Shared, cx: &mut Context) -> Verdict {
        let _ = cx.now();
        shared.ports.give_back(core::mem::take(&mut flow.port));
        Verdict::Forward
    }
}

fn main() {}
