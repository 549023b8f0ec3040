//! The difference between two instances of a function after one packet, in words for
//! the function's author.

use holdfast_nf::bench::{Bench, Passage};
use holdfast_nf::{Configured, StateField};
use holdfast_wire::DropReason;

/// The packet as it came out, or the reason of its drop.
pub(super) type Sent = Result<Vec<u8>, DropReason>;

/// An instance after a packet.
pub(super) struct After {
    sent: Sent,
    is_told: bool,
    is_nondeterministic: bool,
    passage: Option<Passage>,
}

impl After {
    pub(super) fn of(bench: &Bench, sent: Sent) -> After {
        After {
            sent,
            is_told: bench.has_told(),
            is_nondeterministic: bench.nondeterministic,
            passage: bench.passage().cloned(),
        }
    }

    /// The packet as it came out, if it did.
    pub(super) fn frame(&self) -> Option<&[u8]> {
        self.sent.as_deref().ok()
    }

    pub(super) fn passage(&self) -> Option<&Passage> {
        self.passage.as_ref()
    }

    /// True if processing the packet again may come out differently.
    pub(super) fn is_nondeterministic(&self) -> bool {
        self.is_nondeterministic
    }

    /// The first difference from `other`. `None` if there is none.
    pub(super) fn differs_from(&self, other: &After, of: &dyn Configured) -> Option<String> {
        let state = self
            .passage
            .as_ref()
            .zip(other.passage.as_ref())
            .and_then(|(one, two)| field(of.layout().fields, &one.after, &two.after));
        frames(&self.sent, &other.sent).or(state).or_else(|| match (self, other) {
            (one, two) if one.is_told != two.is_told => {
                Some("one drops the packet in silence, and one rejects it".to_owned())
            }
            (one, two) if one.is_nondeterministic != two.is_nondeterministic => Some(
                "one draws a random number or reads what other flows change, and one does not"
                    .to_owned(),
            ),
            _ => None,
        })
    }
}

fn frames(one: &Sent, two: &Sent) -> Option<String> {
    match (one, two) {
        (Ok(one), Ok(two)) if one.len() != two.len() => {
            Some(format!("it comes out with {} bytes, and with {}", one.len(), two.len()))
        }
        (Ok(one), Ok(two)) => {
            let at = (0..one.len()).find(|&at| one[at] != two[at])?;
            Some(format!(
                "byte {at} of the frame comes out as {:#04x}, and as {:#04x}",
                one[at], two[at]
            ))
        }
        (Err(one), Err(two)) if one == two => None,
        (one, two) => {
            let fate = |sent: &Sent| match sent {
                Ok(_) => "passes".to_owned(),
                Err(reason) => format!("is dropped as `{}`", reason.name()),
            };
            Some(format!("it {}, and {}", fate(one), fate(two)))
        }
    }
}

/// The first field of a flow's state that differs.
fn field(fields: &[StateField], one: &[u8], two: &[u8]) -> Option<String> {
    let at = (0..one.len().min(two.len())).find(|&at| one[at] != two[at])?;
    let field = fields.iter().find(|field| (field.start..field.end).contains(&at));
    Some(match field {
        Some(StateField { name, start, end }) => format!(
            "field `{name}` of the flow's state is {}, and {}",
            value(&one[*start..*end]),
            value(&two[*start..*end])
        ),
        None => format!("byte {at} of the flow's state is {}, and {}", one[at], two[at]),
    })
}

/// A field's bytes: as a number, if they may be one.
fn value(bytes: &[u8]) -> String {
    match bytes.len() {
        1 | 2 | 4 | 8 => {
            let number =
                bytes.iter().rev().fold(0, |number: u64, byte| number << 8 | u64::from(*byte));
            number.to_string()
        }
        _ => format!("{bytes:02x?}"),
    }
}

/// The first counter in which an instance differs from the first one, or else its notes,
/// which are taken.
pub(super) fn shared(benches: &mut [Bench]) -> Option<String> {
    let all: Vec<_> = benches.iter_mut().map(|bench| (bench.counted(), bench.logged())).collect();
    let [(first, noted), others @ ..] = &all[..] else { return None };
    others.iter().find_map(|(counted, logged)| {
        let mut counters = first.iter().zip(counted).filter(|(one, two)| one != two);
        if let Some((one, two)) = counters.next() {
            return Some(format!("counter `{}` is {}, and {}", one.name, one.value, two.value));
        }
        let differ = || format!("one notes {noted:?} for the operator, and one {logged:?}");
        (noted != logged).then(differ)
    })
}

/// The first pool, gauge or table in which instances differ.
pub(super) fn books(one: &mut Bench, two: &mut Bench) -> Option<String> {
    let of =
        |bench: &mut Bench| bench.books().into_iter().chain(bench.tables()).collect::<Vec<_>>();
    let (one, two) = (of(one), of(two));
    let (one, two) = one.into_iter().zip(two).find(|(one, two)| one != two)?;
    Some(format!("`{}` has {:?}, and {:?}", one.field, one.values, two.values))
}
