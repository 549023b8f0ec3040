//! Names of DSCPs, as RFCs and other routers write them.

use schemars::JsonSchema;
use serde::Deserialize;

/// A DSCP as an operator writes it.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(
    untagged,
    expecting = "a DSCP is a number from 0 to 63, or a name such as ef, af21, cs1 or le"
)]
pub enum DscpConfig {
    /// 0 to 63.
    Number(#[schemars(range(min = 0, max = 63))] i64),
    /// `df` or `be` (RFC 2474, section 4.1: 0), `cs0` to `cs7` (section 4.2.2), `af11` to
    /// `af43` (RFC 2597), `ef` (RFC 3246), `va` (RFC 5865), `le` (RFC 8622).
    Name(String),
}

impl DscpConfig {
    /// The six bits of the DSCP.
    ///
    /// # Errors
    /// The text says what is wrong, and what would be right.
    pub(crate) fn read(&self) -> Result<u8, String> {
        match self {
            DscpConfig::Number(number) => u8::try_from(*number)
                .ok()
                .filter(|dscp| *dscp < 64)
                .ok_or_else(|| format!("{number} is not a DSCP: a number from 0 to 63, six bits without those of ECN")),
            DscpConfig::Name(name) => of_name(&name.to_ascii_lowercase()).ok_or_else(|| {
                format!("`{name}` is not the name of a DSCP: `df`, `cs0` to `cs7`, `af11` to `af43`, `ef`, `va`, `le`, or a number from 0 to 63")
            }),
        }
    }
}

fn of_name(name: &str) -> Option<u8> {
    match name.as_bytes() {
        b"df" | b"be" => Some(0),
        b"le" => Some(1),
        b"va" => Some(44),
        b"ef" => Some(46),
        [b'c', b's', class @ b'0'..=b'7'] => Some((class - b'0') << 3),
        // Class and drop precedence: RFC 2597, section 6.
        [b'a', b'f', class @ b'1'..=b'4', precedence @ b'1'..=b'3'] => {
            Some((class - b'0') << 3 | (precedence - b'0') << 1)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::of_name;

    /// The values of the RFCs, and no others.
    #[test]
    fn names_are_those_of_the_rfcs() {
        let known = [
            ("df", 0),
            ("be", 0),
            ("le", 1),
            ("cs0", 0),
            ("cs1", 8),
            ("cs2", 16),
            ("cs3", 24),
            ("cs4", 32),
            ("cs5", 40),
            ("cs6", 48),
            ("cs7", 56),
            ("af11", 10),
            ("af12", 12),
            ("af13", 14),
            ("af21", 18),
            ("af22", 20),
            ("af23", 22),
            ("af31", 26),
            ("af32", 28),
            ("af33", 30),
            ("af41", 34),
            ("af42", 36),
            ("af43", 38),
            ("va", 44),
            ("ef", 46),
        ];
        for (name, dscp) in known {
            assert_eq!(of_name(name), Some(dscp), "{name}");
        }
        for name in [
            "", "a", "cs", "cs8", "cs01", "cs-1", "cs+1", "af", "af1", "af01", "af14", "af51",
            "af111", "af1é", "é", "eff", "46",
        ] {
            assert_eq!(of_name(name), None, "{name}");
        }
    }
}
