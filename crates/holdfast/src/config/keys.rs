//! The file with the cluster's keys.
//!
//! Each line is a key, `NUMBER:KEY`, the current one first; a key is 32 bytes in
//! hexadecimal or base64. A file with one key may leave out the number (0 then), and may
//! be the 32 bytes themselves. Empty lines, and text behind a `#`, are ignored. Never: a
//! part of the file in a message.

use holdfast_control::secret::read_secret;
use holdfast_node::channel::{Key, KeyRing};
use std::path::Path;
use zeroize::Zeroizing;

const SECRET_LEN: usize = 32;

/// Reads a file of keys.
///
/// # Errors
/// The text says what is wrong, and the remedy.
pub fn read(path: &Path) -> Result<KeyRing, String> {
    let name = path.display();
    let bytes = read_secret(path, &format!("holdfast keygen {name}"), "holdfast keygen FILE")?;
    parse(&bytes).map_err(|message| format!("`{name}`: {message}"))
}

/// Parses a file of keys; never panics.
///
/// # Errors
/// The text says what is wrong, with the line.
pub(super) fn parse(bytes: &[u8]) -> Result<KeyRing, String> {
    let ring = |keys| {
        KeyRing::new(keys)
            .map_err(|error| format!("{error}: `holdfast keygen` makes one, a line each"))
    };
    if let Ok(secret) = <[u8; SECRET_LEN]>::try_from(bytes) {
        return ring(vec![Key { number: 0, secret }]);
    }
    let text = std::str::from_utf8(bytes).map_err(|_| {
        format!("neither text nor {SECRET_LEN} bytes, but {}: a line is `NUMBER:KEY`", bytes.len())
    })?;
    let mut keys = Vec::new();
    let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default().trim());
    for (at, line) in lines.enumerate().filter(|(_, line)| !line.is_empty()) {
        let (number, key) = match line.split_once(':') {
            Some((number, key)) => {
                let number = number.trim().parse::<u8>().ok();
                (
                    number.ok_or_else(|| {
                        format!("line {}: a key's number is from 0 to 255", at + 1)
                    })?,
                    key.trim(),
                )
            }
            None => (0, line),
        };
        let secret = hexadecimal(key).or_else(|| base64(key)).ok_or_else(|| {
            format!("line {}: a key is {SECRET_LEN} bytes, as 64 hexadecimal digits or 44 characters of base64", at + 1)
        })?;
        keys.push(Key { number, secret });
    }
    ring(keys)
}

fn hexadecimal(text: &str) -> Option<[u8; SECRET_LEN]> {
    let text = text.as_bytes();
    if text.len() != 2 * SECRET_LEN {
        return None;
    }
    let mut secret = [0; SECRET_LEN];
    for (byte, digits) in secret.iter_mut().zip(text.chunks_exact(2)) {
        let digit = |at: usize| char::from(digits[at]).to_digit(16);
        *byte = (digit(0)? << 4 | digit(1)?) as u8;
    }
    Some(secret)
}

/// Decodes base64 (RFC 4648), with or without padding, in either alphabet.
fn base64(text: &str) -> Option<[u8; SECRET_LEN]> {
    let text = text.strip_suffix('=').unwrap_or(text).as_bytes();
    // 32 bytes are 42 characters and 4 bits of another.
    if text.len() != SECRET_LEN.div_ceil(3) * 4 - 1 {
        return None;
    }
    let mut secret = [0; SECRET_LEN];
    let (mut bits, mut count, mut at) = (0u32, 0, 0);
    for character in text {
        let value = match character {
            b'A'..=b'Z' => character - b'A',
            b'a'..=b'z' => character - b'a' + 26,
            b'0'..=b'9' => character - b'0' + 52,
            b'+' | b'-' => 62,
            b'/' | b'_' => 63,
            _ => return None,
        };
        bits = bits << 6 | u32::from(value);
        count += 6;
        if count >= 8 {
            count -= 8;
            *secret.get_mut(at)? = (bits >> count) as u8;
            at += 1;
        }
    }
    // The remaining bits of the last character must be zero.
    (at == SECRET_LEN && bits & ((1 << count) - 1) == 0).then_some(secret)
}

/// A key as a line of the file.
pub fn line(key: &Key) -> Zeroizing<String> {
    use std::fmt::Write;
    let mut line = Zeroizing::new(String::with_capacity(4 + 2 * SECRET_LEN + 1));
    // Writing to a text cannot fail.
    let _ = write!(line, "{}:", key.number);
    key.secret.iter().for_each(|byte| {
        let _ = write!(line, "{byte:02x}");
    });
    line.push('\n');
    line
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const HEX: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191A1B1C1D1E1F";
    const BASE64: &str = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";

    fn secret() -> [u8; 32] {
        std::array::from_fn(|at| at as u8)
    }

    /// The same key, in all its spellings.
    #[test]
    fn a_key_is_hexadecimal_base64_or_raw() {
        let texts = [
            HEX.to_owned(),
            format!("{HEX}\n"),
            BASE64.to_owned(),
            BASE64.trim_end_matches('=').to_owned(),
            format!(" 0 : {HEX} # mine\n\n# none\n"),
        ];
        for text in texts {
            assert_eq!(
                parse(text.as_bytes()).map(|ring| ring.keys().to_vec().len()),
                Ok(1),
                "{text}"
            );
            assert_eq!(parse(text.as_bytes()).unwrap().keys()[0].secret, secret(), "{text}");
        }
        assert_eq!(parse(&secret()).unwrap().keys()[0].secret, secret());
        assert_eq!(parse(&[0xff; 32]).unwrap().keys()[0].secret, [0xff; 32]);
    }

    /// Several keys: the first is current.
    #[test]
    fn the_first_line_is_the_current_key() {
        let ring = parse(format!("7:{BASE64}\r\n3:{HEX}\n").as_bytes()).unwrap();
        assert_eq!(ring.keys().iter().map(|key| key.number).collect::<Vec<_>>(), [7, 3]);
    }

    /// A wrong file is refused with the line, and without any part of it.
    #[test]
    fn mistakes_have_a_line_and_keep_the_secret() {
        let short = &HEX[..62];
        let cases = [
            (String::new(), "there is no key"),
            ("# later\n".to_owned(), "there is no key"),
            (format!("1:{HEX}\n1:{BASE64}\n"), "two keys have the number 1"),
            (format!("1:{HEX}\n\n300:{HEX}\n"), "line 3: a key's number"),
            (format!("1:{HEX}\n2:{short}\n"), "line 2: a key is 32 bytes"),
            (format!("{}!\n", &BASE64[..43]), "line 1: a key is 32 bytes"),
            // The last character has bits that belong to no byte.
            (format!("{}9=\n", &BASE64[..42]), "line 1: a key is 32 bytes"),
        ];
        for (text, expected) in cases {
            let message = parse(text.as_bytes()).map(|ring| format!("{ring:?}")).unwrap_err();
            assert!(message.starts_with(expected), "{message}");
            assert!(!message.contains(&HEX[..8]) && !message.contains(&BASE64[..8]), "{message}");
        }
        assert!(parse(&[0xff; 33]).unwrap_err().contains("33"));
    }

    proptest! {
        /// Any bytes are a ring or a mistake.
        #[test]
        fn any_bytes_are_a_ring_or_a_mistake(bytes: Vec<u8>) {
            if let Err(message) = parse(&bytes) {
                prop_assert!(!message.is_empty());
            }
        }

        /// A key written as a line is read back as the same key.
        #[test]
        fn a_line_is_read_as_it_was_written(number: u8, secret: [u8; 32]) {
            let key = Key { number, secret };
            let ring = parse(line(&key).as_bytes()).unwrap();
            prop_assert!(ring.keys() == [key]);
        }
    }
}
