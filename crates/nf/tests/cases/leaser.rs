// Included by programs of `accepted` and `refused`: a function that leases a port for
// each flow.

use holdfast_nf::{ConfigError, Context, Lease, Leased, NetworkFunction, Open, Opening, Packet, Pool, Verdict};

pub enum Ports {}
pub enum Others {}

holdfast_nf::shared_state! {
    pub struct Shared {
        pub ports: Pool<Ports>,
    }
}

/// A function whose flows hold a lease of the pool that `$held` names. `$state` is the
/// flow's state, made of the granted `$port`; `$then` handles each packet.
macro_rules! leaser {
    ($held:ident, |$port:pat_param| $state:expr, |$flow:ident, $shared:ident, $cx:ident| $then:block) => {
        holdfast_nf::flow_state! {
            pub struct Mapping {
                pub port: Leased<$held>,
            }
        }

        pub struct Leaser;

        impl NetworkFunction for Leaser {
            const NAME: &'static str = "leaser";
            type Config = ();
            type Flow = Mapping;
            type Shared = Shared;

            fn new((): ()) -> Result<Self, ConfigError> {
                Ok(Leaser)
            }

            fn shared(&self) -> Shared {
                Shared { ports: Pool::new(256) }
            }

            fn open(&self, _packet: &Packet, shared: &mut Shared, cx: &mut Opening<'_>) -> Open<Mapping> {
                match shared.ports.lease(cx) {
                    Lease::Granted($port) => Open::Accept($state),
                    _ => Open::Wait,
                }
            }

            fn process(&self, _: &mut Packet, $flow: &mut Mapping, $shared: &mut Shared, $cx: &mut Context) -> Verdict {
                $then
                Verdict::Forward
            }
        }

        fn main() {}
    };
}
