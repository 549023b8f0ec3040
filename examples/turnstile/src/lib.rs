//! `turnstile`: lets so many flows in at a time, over all runtimes, and so many of one
//! client. Others are told that they are refused, and may try again.

use holdfast_nf::{
    ConfigError, Context, Counters, DropReason, Lease, Leased, NetworkFunction, Open, Opening,
    Packet, Pool, Table, Verdict,
};
use schemars::JsonSchema;
use serde::Deserialize;

/// The function's configuration.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TurnstileConfig {
    /// Flows at a time. Runtimes get them in blocks of 256, from a state server one by
    /// one.
    pub places: u32,
    /// Flows at a time of one client in a runtime.
    #[serde(default = "any_number")]
    pub per_client: u32,
}

fn any_number() -> u32 {
    u32::MAX
}

/// The name of the pool.
#[derive(Debug)]
pub enum Places {}

holdfast_nf::flow_state! {
    /// State of one flow.
    pub struct Visit {
        /// The client's address.
        pub client: [u8; 16],
        /// Packets so far, in both directions.
        pub packets: u64,
        /// The flow's place.
        pub place: Leased<Places>,
        /// Unused: state has no padding.
        pub spare: u32,
    }
}

holdfast_nf::shared_state! {
    /// State that all flows share.
    pub struct Hall {
        /// A number for every place.
        places: Pool<Places>,
        /// Flows of each client.
        clients: Table<[u8; 16], u32>,
        /// Counts of flows and packets, in `holdfast status`.
        counts: Counters,
    }
}

/// Names of the counters, in the order of the constants below.
const COUNTS: [&str; 4] = ["entered", "full", "client_full", "packets"];
const ENTERED: usize = 0;
const FULL: usize = 1;
const CLIENT_FULL: usize = 2;
const PACKETS: usize = 3;

/// Clients that a runtime knows at a time.
const CLIENTS: usize = 65_536;

/// The function; see the module.
#[derive(Debug)]
pub struct Turnstile {
    config: TurnstileConfig,
}

impl NetworkFunction for Turnstile {
    const NAME: &'static str = "turnstile";
    type Config = TurnstileConfig;
    type Flow = Visit;
    type Shared = Hall;

    fn new(config: TurnstileConfig) -> Result<Turnstile, ConfigError> {
        if config.places == 0 {
            return Err(ConfigError::at("places", "nobody would enter: give at least 1"));
        }
        Ok(Turnstile { config })
    }

    fn shared(&self) -> Hall {
        Hall {
            places: Pool::new(self.config.places),
            clients: Table::new(CLIENTS),
            counts: Counters::new(COUNTS),
        }
    }

    fn open(&self, _packet: &Packet, shared: &mut Hall, cx: &mut Opening<'_>) -> Open<Visit> {
        let client = cx.key().source;
        if shared.clients.get(&client, cx).unwrap_or(0) >= self.config.per_client {
            shared.counts.add(CLIENT_FULL, 1);
            return Open::Reject(DropReason::QuotaExceeded);
        }
        let place = match shared.places.lease(cx) {
            Lease::Granted(place) => place,
            Lease::Wait => return Open::Wait,
            Lease::Exhausted => {
                shared.counts.add(FULL, 1);
                return Open::Reject(DropReason::FunctionDenied);
            }
        };
        if !shared.clients.update(client, 0, |flows| *flows += 1) {
            shared.counts.add(FULL, 1);
            return Open::Reject(DropReason::FunctionDenied);
        }
        shared.counts.add(ENTERED, 1);
        Open::Accept(Visit { client, place, ..Visit::default() })
    }

    fn process(
        &self,
        _packet: &mut Packet,
        flow: &mut Visit,
        shared: &mut Hall,
        _cx: &mut Context,
    ) -> Verdict {
        flow.packets += 1;
        shared.counts.add(PACKETS, 1);
        Verdict::Forward
    }

    fn expire(&self, flow: &Visit, shared: &mut Hall) {
        // The place goes back by itself. The count of clients is this runtime's own:
        // flows that come from another one, or go there, make it differ for as long as
        // they live.
        shared.clients.update_or_remove(&flow.client, |flows| {
            *flows = flows.saturating_sub(1);
            *flows > 0
        });
    }

    fn explain(&self, _packet: &Packet, flow: Option<&Visit>) -> String {
        match flow.and_then(|flow| Some((flow.place.number()?, flow.packets))) {
            Some((place, packets)) => format!("place {place}, packet {packets}"),
            None => String::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_nf::bench::{Bench, frames};
    use holdfast_nf::{Bound, Chain};

    fn bench(places: u32, per_client: u32) -> Bench {
        let turnstile = Bound::<Turnstile>::new(TurnstileConfig { places, per_client });
        Bench::new(Chain::new(vec![Box::new(turnstile.expect("a right configuration"))]))
    }

    /// A datagram from a port of a client, to a server.
    fn datagram(client: u8, port: u16) -> Vec<u8> {
        frames::udp(([10, 0, 0, client], port), ([203, 0, 113, 20], 53), b"a question")
    }

    #[test]
    fn packets_pass_as_they_came() {
        let (mut bench, frame) = (bench(2, 2), datagram(2, 1000));
        assert_eq!(bench.send(&frame), Ok(frame.clone()));
        assert_eq!(bench.send(&frame), Ok(frame));
        assert_eq!((bench.flows(), bench.counter("packets")), (1, 2));
        assert_eq!(bench.explained, ["place 0, packet 2"]);
    }

    #[test]
    fn a_flow_enters_when_another_has_left() {
        let mut bench = bench(2, 2);
        assert!(bench.send(&datagram(2, 1000)).is_ok());
        assert!(bench.send(&datagram(3, 1000)).is_ok());
        assert_eq!(bench.send(&datagram(4, 1000)), Err(DropReason::FunctionDenied));
        assert!(bench.has_told());
        bench.wait(3_600_000_000_000);
        assert_eq!(bench.flows(), 0);
        assert!(bench.send(&datagram(4, 1000)).is_ok());
        assert_eq!((bench.counter("entered"), bench.counter("full")), (3, 1));
    }

    #[test]
    fn a_client_has_its_share() {
        let mut bench = bench(9, 2);
        assert!(bench.send(&datagram(2, 1000)).is_ok());
        assert!(bench.send(&datagram(2, 1001)).is_ok());
        assert_eq!(bench.send(&datagram(2, 1002)), Err(DropReason::QuotaExceeded));
        assert!(bench.send(&datagram(3, 1000)).is_ok());
        assert_eq!(bench.counter("client_full"), 1);
    }

    #[test]
    fn a_hall_has_a_place() {
        let config = TurnstileConfig { places: 0, per_client: 1 };
        assert_eq!(
            Turnstile::new(config).map(|_| ()).map_err(|error| error.path),
            Err("places".into())
        );
    }
}
