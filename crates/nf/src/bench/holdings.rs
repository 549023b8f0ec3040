//! Leases and counts under a function: each belongs to its flow from beginning to end,
//! wherever the flow is, and a table has nothing left of flows that have ended.

use super::{Bench, Books};
use crate::shared::PoolEffect;
use crate::{Chain, Function};

/// Lifetimes are over by then, ns.
pub const LONG: u64 = 1_000_000_000_000_000;

/// Checks that a flow's holdings under this function are held exactly once while the flow
/// lives. Flows open, move to another instance, come to a third one because theirs has
/// failed, and end. At each place exactly their holdings are held, and in the end none.
/// `packets` are first packets of flows; some may be refused. Returns whether flows held
/// anything.
///
/// # Errors
/// The place at which something is held that no flow has, or is not held that one has.
pub fn check_holdings(
    build: &dyn Fn() -> Box<dyn Function>,
    packets: &[Vec<u8>],
) -> Result<bool, String> {
    let instance = || Bench::new(Chain::new(vec![build()]));
    let (mut first, mut second, mut third) = (instance(), instance(), instance());
    let nothing = first.books();
    let say = |bench: &mut Bench, count: usize| {
        for packet in packets.iter().cycle().take(count) {
            // Some packets are refused: by the function, or because the reply key is
            // taken.
            let _ = bench.send(packet);
        }
    };
    let all = packets.len();
    say(&mut first, all);
    let held = first.books();
    if first.flows() == 0 {
        return Err("none of the packets opens a flow: give the function a configuration that \
                    lets some pass"
            .to_owned());
    }
    say(&mut first, 2 * all);
    equal("packets of flows that live changed it", &first.books(), &held)?;

    second.takes_over(&mut first, true);
    equal("the flows have moved away", &first.books(), &nothing)?;
    equal("the flows have moved here", &second.books(), &held)?;
    say(&mut second, all);
    equal("packets of flows that came changed it", &second.books(), &held)?;

    second.effects();
    third.takes_over(&mut second, false);
    equal("the flows have been recovered", &third.books(), &held)?;
    let adopted = numbers(&third.effects(), |effect| match effect {
        PoolEffect::Adopted(number) => Some(*number),
        _ => None,
    });
    third.wait(LONG);
    equal("all flows have ended", &third.books(), &nothing)?;
    let returned = numbers(&third.effects(), |effect| match effect {
        PoolEffect::Return(number) => Some(*number),
        _ => None,
    });
    if adopted != returned {
        return Err(format!("flows brought the numbers {adopted:?}, and gave back {returned:?}"));
    }

    // The recount follows the loss of a flow: the others name their holdings.
    let (mut one, mut all_but_one) = (instance(), instance());
    say(&mut one, all);
    one.loses_one();
    let left = one.books();
    all_but_one.takes_over(&mut one, true);
    equal("a flow was lost, and the others have moved away", &one.books(), &nothing)?;
    equal("a flow was lost, and the others have moved here", &all_but_one.books(), &left)?;

    // Pools are empty: refused flows hold nothing.
    let mut poor = instance();
    poor.is_poor = true;
    say(&mut poor, all);
    poor.wait(LONG);
    equal("pools were empty, and flows have ended or never were", &poor.books(), &nothing)?;

    let mut last = instance();
    let empty = last.tables();
    say(&mut last, 2 * all);
    last.wait(LONG);
    equal("all flows have ended", &last.tables(), &empty)?;
    Ok(held != nothing)
}

fn equal(when: &str, found: &[Books], expected: &[Books]) -> Result<(), String> {
    let differing = found.iter().zip(expected).find(|(found, expected)| found != expected);
    let Some((Books { function, field, values }, expected)) = differing else { return Ok(()) };
    Err(format!(
        "{when}: `{field}` of `{function}` should have {}, and has {}",
        list(&expected.values),
        list(values)
    ))
}

fn list(values: &[i64]) -> String {
    const MOST: usize = 8;
    match values.len() {
        0 => "nothing".to_owned(),
        len if len > MOST => format!("{:?} and {} more", &values[..MOST], len - MOST),
        _ => format!("{values:?}"),
    }
}

fn numbers(effects: &[PoolEffect], of: fn(&PoolEffect) -> Option<u32>) -> Vec<u32> {
    let mut numbers: Vec<u32> = effects.iter().filter_map(of).collect();
    numbers.sort_unstable();
    numbers
}
