//! Rates and bursts as an operator writes them: `10 Mbit/s`, `500 packets/s`, `64 kB`.

use core::num::NonZeroU64;
use holdfast_nf::Rate;

/// Minimum of a default burst, packets.
const LEAST_PACKETS: u64 = 10;
/// Bytes of a full packet on Ethernet.
const FULL: u64 = 1500;
/// The largest rate and the largest burst, bits or packets.
const MOST: u64 = 1 << 50;

/// The unit of an amount: the factor to bits or packets, and true for packets.
fn unit(word: &str) -> Option<(u64, bool)> {
    Some(match word {
        "bit" => (1, false),
        "kbit" => (1_000, false),
        "Mbit" => (1_000_000, false),
        "Gbit" => (1_000_000_000, false),
        "B" => (8, false),
        "kB" => (8_000, false),
        "MB" => (8_000_000, false),
        "GB" => (8_000_000_000, false),
        "packet" | "packets" => (1, true),
        _ => return None,
    })
}

/// Reads `NUMBER UNIT`: bits or packets, and true for packets.
fn amount(text: &str) -> Option<(NonZeroU64, bool)> {
    let text = text.trim();
    let digits = text.find(|character: char| !character.is_ascii_digit())?;
    let (number, word) = text.split_at(digits);
    let (factor, is_packets) = unit(word.trim_start())?;
    let amount =
        number.parse::<u64>().ok()?.checked_mul(factor).filter(|amount| *amount <= MOST)?;
    Some((NonZeroU64::new(amount)?, is_packets))
}

/// Reads a rate and its burst. The default burst is what the rate gives in 100 ms, and at
/// least ten full packets.
///
/// # Errors
/// The key of the wrong value (`rate` or `burst`), and the remedy.
pub(super) fn rate(rate: &str, burst: Option<&str>) -> Result<Rate, (&'static str, String)> {
    let read = rate.trim_end().strip_suffix("/s").and_then(amount);
    let (per_second, is_packets) = read.ok_or_else(|| {
        let message = format!(
            "`{rate}` is not a rate: a whole number above zero with `bit/s`, `kbit/s`, `Mbit/s`, `Gbit/s`, `B/s`, `kB/s`, `MB/s`, `GB/s` or `packets/s`"
        );
        ("rate", message)
    })?;
    let least = if is_packets { 1 } else { FULL };
    let burst = match burst {
        Some(written) => {
            let read = amount(written).filter(|(_, of_packets)| *of_packets == is_packets);
            let (amount, _) = read.ok_or_else(|| {
                let units = if is_packets { "`packets`" } else { "`B`, `kB`, `MB` or `GB`" };
                ("burst", format!("`{written}` is not a burst of this rate: a whole number above zero with {units}"))
            })?;
            let burst = if is_packets { amount.get() } else { amount.get() / 8 };
            if burst < least {
                let message = format!(
                    "`{written}` is less than a full packet of {FULL} B, which would never pass"
                );
                return Err(("burst", message));
            }
            burst
        }
        None if is_packets => (per_second.get() / 10).max(LEAST_PACKETS),
        None => (per_second.get() / 80).max(LEAST_PACKETS * FULL),
    };
    Ok(match is_packets {
        true => Rate::packets(per_second, burst),
        false => Rate::bits(per_second, burst),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bits(per_second: u64, burst: u64) -> Rate {
        Rate::bits(NonZeroU64::new(per_second).expect("not zero"), burst)
    }

    fn packets(per_second: u64, burst: u64) -> Rate {
        Rate::packets(NonZeroU64::new(per_second).expect("not zero"), burst)
    }

    /// Rates in each unit, with and without a burst.
    #[test]
    fn rates_are_read() {
        for (text, burst, meant) in [
            ("10 Mbit/s", None, bits(10_000_000, 125_000)),
            ("10Mbit/s", Some("64 kB"), bits(10_000_000, 64_000)),
            (" 2 GB/s ", Some("1 MB"), bits(16_000_000_000, 1_000_000)),
            ("9 kbit/s", None, bits(9_000, 15_000)),
            ("1 bit/s", Some("1500 B"), bits(1, 1500)),
            ("500 packets/s", None, packets(500, 50)),
            ("1 packet/s", None, packets(1, 10)),
            ("500 packets/s", Some("1 packet"), packets(500, 1)),
        ] {
            assert_eq!(rate(text, burst), Ok(meant), "{text} {burst:?}");
        }
    }

    /// A mistake is reported with the key of the wrong value.
    #[test]
    fn mistakes_are_told() {
        for (text, burst, key) in [
            ("10 Mbit", None, "rate"),
            ("Mbit/s", None, "rate"),
            ("10", None, "rate"),
            ("", None, "rate"),
            ("0 Mbit/s", None, "rate"),
            ("-1 Mbit/s", None, "rate"),
            ("1.5 Mbit/s", None, "rate"),
            ("10 mbit/s", None, "rate"),
            ("18446744073709551615 Gbit/s", None, "rate"),
            ("10 Mbit/s", Some("10 packets"), "burst"),
            ("10 packets/s", Some("10 kB"), "burst"),
            ("10 Mbit/s", Some("1499 B"), "burst"),
            ("10 Mbit/s", Some("0 kB"), "burst"),
            ("10 Mbit/s", Some("64 kB/s"), "burst"),
        ] {
            assert_eq!(rate(text, burst).map_err(|(key, _)| key), Err(key), "{text} {burst:?}");
        }
    }
}
