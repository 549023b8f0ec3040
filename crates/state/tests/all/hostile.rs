//! Any messages in any order: nothing panics, every index has a state, and a standby with
//! the same inputs is equal.

use holdfast_nf::shared::{Lease, Part, PoolBackend, RequestPool};
use holdfast_state::{Client, Form, Heard, Input, Kind, Limits, Message, Opcode, Primary, Server};
use holdfast_wire::{NodeId, Peer};
use proptest::prelude::*;

const SIZES: [u32; 3] = [5, 1, 70];

fn kinds() -> Vec<Kind> {
    let limits = |(at, size)| Limits {
        size,
        credit: at,
        lease: 40 * u64::from(at),
        rest: 30 * u64::from(2 - at),
        unknown_rest: 7,
        timeout: 9,
        step: 2,
    };
    (0u32..)
        .zip(SIZES)
        .map(|of| Kind::Indexes(limits(of)))
        .chain([Kind::Counters(3), Kind::Gauge(2)])
        .collect()
}

fn peer() -> impl Strategy<Value = Peer> {
    (prop_oneof![4 => 16u16..19, 1 => any::<u16>()], prop_oneof![4 => 1u32..4, 1 => any::<u32>()])
        .prop_map(|(node, incarnation)| Peer { node: NodeId::new(node), incarnation })
}

fn opcode() -> impl Strategy<Value = Opcode> {
    let known: Vec<Opcode> = (0u8..128)
        .filter_map(|number| {
            Form::Narrow.unpack(u64::from(number) << 25).ok().map(|message| message.opcode)
        })
        .collect();
    prop::sample::select(known)
}

fn message() -> impl Strategy<Value = Message> {
    let index = prop_oneof![6 => 0u32..6, 2 => 0u32..80, 1 => 0u32..1 << 20];
    (opcode(), prop_oneof![8 => 0u32..5, 1 => 0u32..32], index)
        .prop_map(|(opcode, list, index)| Message { opcode, list, index })
}

fn input() -> impl Strategy<Value = Input> {
    prop_oneof![
        3 => peer().prop_map(Input::Joined),
        1 => peer().prop_map(Input::Dead),
        1 => peer().prop_map(Input::Recovered),
        3 => (peer(), prop_oneof![6 => Just(0), 1 => 0u64..9, 1 => any::<u64>()]).prop_map(|(with, arrived)| Input::Begun { with, arrived }),
        1 => peer().prop_map(Input::Over),
        20 => (peer(), message()).prop_map(|(from, message)| Input::Said { from, message }),
        3 => prop_oneof![8 => 0u64..500, 1 => any::<u64>()].prop_map(Input::Time),
        1 => Just(Input::Complete),
    ]
}

/// All there is to see of a server, and of its links.
fn seen(server: &mut Server) -> Vec<String> {
    let peers: Vec<Peer> = server.instances().collect();
    let mut all: Vec<String> = peers
        .into_iter()
        .filter_map(|peer| {
            server.link(peer).map(|link| {
                format!("{peer:?} {} {} {}", link.sent(), link.received(), link.waiting())
            })
        })
        .collect();
    for (list, size) in (0..).zip(SIZES) {
        let holders: Vec<Vec<Peer>> = (0..size)
            .filter_map(|index| server.list(list).map(|list| list.holders(index).collect()))
            .collect();
        all.push(format!("{:?} {holders:?}", server.account(list)));
    }
    for list in [3, 4] {
        let statistics = server.statistics(list).expect("it is one");
        all.push(format!(
            "{:?} {:?} {}",
            statistics.totals(),
            statistics.parts().collect::<Vec<_>>(),
            statistics.has_untold()
        ));
    }
    all.push(server.failures().to_string());
    all
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_a_server_is_told(is_unknown in any::<bool>(), inputs in prop::collection::vec((input(), any::<u8>()), 1..400)) {
        let begin = if is_unknown { Server::unknown } else { Server::new };
        let mut primary = Primary::new(begin(&kinds(), 0, 1).expect("it is small"));
        let (mut standby, mut next, attachment) = primary.attach();
        for (input, chance) in inputs {
            let _ = primary.apply(input);
            for (list, size) in (0..).zip(SIZES) {
                prop_assert_eq!(primary.server().account(list).map(|account| account.size()), Some(size));
            }
            let gauge = primary.server().statistics(4).expect("it is one");
            let sum = |index: usize| gauge.parts().fold(0i64, |sum, (_, part)| sum.wrapping_add(part[index]));
            prop_assert_eq!(gauge.totals(), [sum(0), sum(1)]);
            let peers: Vec<Peer> = primary.server().instances().collect();
            for peer in peers.into_iter().filter(|_| chance % 3 == 0) {
                let polled = core::iter::from_fn(|| primary.poll(peer)).count();
                prop_assert!(polled < 2000);
                primary.acknowledge(peer);
            }
            if chance % 5 == 0 {
                let inputs: Vec<Input> = primary.inputs(next).expect("they are kept").collect();
                for input in &inputs {
                    prop_assert_eq!(standby.apply(*input), Ok(()));
                }
                next += inputs.len() as u64;
                primary.saved(attachment, next - u64::from(chance & 1).min(inputs.len() as u64));
            }
        }
        for input in primary.inputs(next).expect("they are kept") {
            prop_assert_eq!(standby.apply(input), Ok(()));
        }
        prop_assert_eq!(seen(&mut primary.server().clone()), seen(&mut standby));
    }

    #[test]
    fn whatever_a_client_is_told(heard in prop::collection::vec((message(), any::<u8>()), 1..300)) {
        let mut client = Client::new(64);
        let mut pools = SIZES.map(|size| RequestPool::new(size, 4));
        let mut gauge = Part::new(2);
        gauge.share();
        let mut memory = 1;
        prop_assert!(client.meet(memory, Form::Narrow));
        client.link().begin(0).expect("nothing was said");
        for (message, chance) in heard {
            match client.accept(message) {
                Ok(Some(Heard::Pool(message))) => {
                    let pool = pools.get_mut(message.list as usize).map(|pool| pool as &mut dyn PoolBackend);
                    client.carry_out(message, pool);
                }
                Ok(Some(Heard::Statistic { index, value, .. })) => gauge.hear(index, value),
                Ok(_) => {}
                Err(_) => {
                    client.link().end();
                    let arrived = client.link().sent();
                    client.link().begin(arrived).expect("all has arrived");
                }
            }
            let (list, size) = (usize::from(chance) % 3, SIZES[usize::from(chance) % 3]);
            if let Lease::Granted(number) = pools[list].lease(&(0..size), None) {
                prop_assert!(number < size, "{number} of {size} was leased");
            }
            if chance % 7 == 0 {
                memory += 1;
                prop_assert!(client.meet(memory, Form::Narrow));
                pools.iter_mut().for_each(PoolBackend::announce);
                gauge.announce();
                client.link().begin(0).expect("nothing was said");
            }
            client.gather(list as u32, &mut pools[list]);
            gauge.add(list, i64::from(chance) - 100);
            client.gather_statistics(4, &mut gauge);
            client.claimed();
            while client.link().poll().is_some() {}
        }
    }
}
