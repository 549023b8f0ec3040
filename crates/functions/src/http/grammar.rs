//! The grammar of messages, byte by byte: start lines, fields, chunk lines.
//!
//! The grammar is RFC 9112's without most of its leniencies: lines end with CR LF, the
//! start line has single spaces (sections 3 and 4 allow more), no line is folded (5.2),
//! no space stands before a colon (5.1). Parsers differ in how they read lenient forms,
//! but read every message that this grammar accepts alike. Two forms outside RFC 9112 are
//! accepted, because servers send them and all parsers read them alike: spaces after a
//! chunk size, and a status line that ends after the status code.

use super::head::{Head, part};
use super::message::{Reader, mark, step};
use super::{is_text, is_token};

/// Names of the fields that the reader interprets, in lower case.
const NAMES: [&[u8]; 4] = [b"content-length", b"transfer-encoding", b"host", b"upgrade"];
const LENGTH: u8 = 1;
const CODING: u8 = 2;
const HOST: u8 = 4;
const UPGRADE: u8 = 8;

/// Value of [`Reader::at`] in a field value whose word has ended, or is not the expected
/// one.
const OTHER: u8 = u8::MAX;
const CHUNKED: &[u8] = b"chunked";
/// Value of [`Reader::at`] in a Transfer-Encoding, after `chunked` and a space.
const SPACED: u8 = CHUNKED.len() as u8 + 1;

/// Maximum number of digits of a chunk size.
const SIZE_DIGITS: u8 = 15;

impl Reader {
    /// Moves on to step `next`. Returns `is_right`, which is true if the byte is the
    /// expected one.
    fn must(&mut self, is_right: bool, next: u8) -> bool {
        self.step = next;
        is_right
    }

    /// The number of bytes at the beginning that are allowed at this step and change
    /// nothing: most of a header section is fields that are not interpreted.
    pub(super) fn skipped(&self, bytes: &[u8]) -> usize {
        let is_interpreted = self.field & (LENGTH | CODING | HOST) != 0;
        match self.step {
            step::NAME if self.field == 0 => run(bytes, is_token),
            step::VALUE if !is_interpreted => run(bytes, is_text),
            step::REASON | step::EXTENSION => run(bytes, is_text),
            _ => 0,
        }
    }

    /// Processes a byte; false if the byte is not allowed at this step.
    pub(super) fn take(&mut self, head: &mut Head, byte: u8) -> bool {
        match self.step {
            // Servers ignore empty lines before a request (section 2.2).
            step::START if byte == b'\r' && self.is_response == 0 => {
                self.must(true, step::START_LF)
            }
            step::START_LF => self.must(byte == b'\n', step::START),
            step::START if self.is_response != 0 => {
                self.expect_protocol();
                self.take(head, byte)
            }
            step::START => {
                head.clear();
                self.step = step::METHOD;
                self.take(head, byte)
            }
            step::METHOD | step::TARGET..=step::QUERY => self.take_request(head, byte),
            step::PROTOCOL => {
                let is_right = b"HTTP/1.".get(usize::from(self.at)) == Some(&byte);
                self.at = self.at.saturating_add(1);
                is_right && (self.at < 7 || self.must(true, step::MINOR))
            }
            step::MINOR => {
                self.marks |= if byte == b'0' { mark::OLD } else { 0 };
                let next = if self.is_response != 0 { step::STATUS_SPACE } else { step::LINE_CR };
                self.must(matches!(byte, b'0' | b'1'), next)
            }
            step::LINE_CR => self.must(byte == b'\r', step::LINE_LF),
            step::LINE_LF => self.must(byte == b'\n', step::FIELD),
            step::STATUS_SPACE => {
                (self.status, self.at) = (0, 0);
                self.must(byte == b' ', step::STATUS)
            }
            step::STATUS => {
                let digit = u16::from(byte.wrapping_sub(b'0') % 10);
                self.status = self.status.wrapping_mul(10).wrapping_add(digit);
                self.at = self.at.saturating_add(1);
                byte.is_ascii_digit() && (self.at < 3 || self.must(true, step::REASON_SPACE))
            }
            step::REASON_SPACE if byte == b' ' => self.must(true, step::REASON),
            step::REASON_SPACE => self.must(byte == b'\r', step::LINE_LF),
            step::REASON if byte == b'\r' => self.must(true, step::LINE_LF),
            step::REASON => is_text(byte),
            step::FIELD if byte == b'\r' => self.must(true, step::END_LF),
            step::FIELD => {
                self.at = 0;
                self.field = match (self.has(mark::TRAILER), self.is_response) {
                    // Trailer fields do not affect the framing (section 7.1.2).
                    (true, _) => 0,
                    (false, 0) => LENGTH | CODING | HOST | UPGRADE,
                    (false, _) => LENGTH | CODING,
                };
                self.step = step::NAME;
                is_token(byte) && self.take_name(byte)
            }
            step::NAME => self.take_name(byte),
            step::VALUE if byte == b'\r' => self.end_value(head) && self.must(true, step::LINE_LF),
            step::VALUE => is_text(byte) && self.take_value(head, byte),
            step::END_LF if self.has(mark::TRAILER) => {
                self.begin();
                byte == b'\n'
            }
            step::END_LF => self.must(byte == b'\n', step::HEAD),
            step::SIZE..=step::CHUNK_LF => self.take_size(byte),
            _ => false,
        }
    }

    fn expect_protocol(&mut self) {
        (self.at, self.step) = (0, step::PROTOCOL);
    }

    /// Processes a byte of a request line before its version (section 3).
    fn take_request(&mut self, head: &mut Head, byte: u8) -> bool {
        let is_connect = head.method() == b"CONNECT";
        // A target has no fragment (section 3.2).
        let is_target = (b'!'..=b'~').contains(&byte) && byte != b'#';
        if match self.step {
            step::TARGET => !matches!(byte, b'*' | b'/'),
            step::SCHEME | step::SLASHES => true,
            step::AUTHORITY => !matches!(byte, b' ' | b'/' | b'?'),
            _ => false,
        } {
            head.push_origin(byte);
        }
        match (self.step, byte) {
            (step::METHOD, b' ') => self.must(head.method_len > 0, step::TARGET),
            (step::METHOD, _) => {
                self.marks |= if head.push_method(byte) { 0 } else { mark::LONG_METHOD };
                is_token(byte)
            }
            (step::TARGET, _) if is_connect => {
                self.expect_authority();
                self.take_authority(head, byte, false)
            }
            (step::TARGET, b'*') => {
                self.push_path(head, byte);
                self.must(head.method() == b"OPTIONS", step::ASTERISK)
            }
            (step::TARGET, b'/') => {
                self.push_path(head, byte);
                self.expect_path();
                true
            }
            (step::TARGET, _) => self.must(byte.is_ascii_alphabetic(), step::SCHEME),
            (step::SCHEME, b':') => {
                self.at = 0;
                self.must(true, step::SLASHES)
            }
            (step::SCHEME, _) => byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.'),
            (step::SLASHES, _) => {
                self.at = self.at.saturating_add(1);
                if self.at == 2 {
                    self.expect_authority();
                }
                byte == b'/'
            }
            (step::AUTHORITY, b' ' | b'/' | b'?') => {
                match byte {
                    b'/' => self.push_path(head, b'/'),
                    _ if is_connect => {}
                    _ => head.imply_path(),
                }
                let has_host = matches!(self.part, part::NAME | part::BEHIND | part::PORT);
                match byte {
                    b' ' => self.expect_protocol(),
                    b'/' => self.expect_path(),
                    _ => self.expect_query(head),
                }
                has_host && head.host_len > 0 && (byte == b' ' || !is_connect)
            }
            (step::AUTHORITY, _) => self.take_authority(head, byte, false),
            (step::ASTERISK | step::PATH | step::QUERY, b' ') => {
                self.expect_protocol();
                true
            }
            (step::PATH, b'?') => {
                self.expect_query(head);
                true
            }
            (step::PATH, _) => {
                self.push_path(head, byte);
                is_target && !b"\"<>\\^`{|}".contains(&byte) && self.take_code(byte)
            }
            (step::QUERY, _) => {
                head.push_query(byte);
                is_target
            }
            _ => false,
        }
    }

    fn expect_path(&mut self) {
        (self.at, self.step) = (0, step::PATH);
    }

    fn expect_query(&mut self, head: &mut Head) {
        head.push_query(b'?');
        self.step = step::QUERY;
    }

    /// Processes a byte of a path, which may belong to a percent-encoding. [`Reader::at`]
    /// is the last byte of an unfinished encoding: `%`, or the digit after it. Encoded
    /// slashes, backslashes and zeros are refused, because servers disagree on whether
    /// they are delimiters (RFC 3986, section 2.2).
    fn take_code(&mut self, byte: u8) -> bool {
        let is_border =
            matches!((self.at, byte), (b'2', b'f' | b'F') | (b'5', b'c' | b'C') | (b'0', b'0'));
        self.at = match (self.at, byte) {
            (_, b'%') => b'%',
            (b'%', b'0' | b'2' | b'5') => byte,
            _ => 0,
        };
        !is_border
    }

    fn push_path(&mut self, head: &mut Head, byte: u8) {
        self.marks |= if head.push_path(byte) { 0 } else { mark::LONG_PATH };
    }

    fn expect_authority(&mut self) {
        self.marks |= mark::AUTHORITY;
        (self.part, self.step) = (part::START, step::AUTHORITY);
    }

    /// Processes a byte of a host with a port. `is_compared`: the byte is from the Host
    /// field and must equal the target's.
    fn take_authority(&mut self, head: &mut Head, byte: u8, is_compared: bool) -> bool {
        let Some((next, is_host)) = part::after(self.part, byte) else { return false };
        self.part = next;
        let byte = byte.to_ascii_lowercase();
        if !is_host {
            return true;
        }
        if is_compared {
            let known = head.host().get(usize::from(self.compared)).copied();
            self.compared = self.compared.saturating_add(1);
            return known == Some(byte) || known.is_none() && self.has(mark::LONG_HOST);
        }
        self.marks |= if head.push_host(byte) { 0 } else { mark::LONG_HOST };
        true
    }

    fn take_name(&mut self, byte: u8) -> bool {
        if byte != b':' {
            let byte = byte.to_ascii_lowercase();
            for (number, name) in NAMES.iter().enumerate() {
                if name.get(usize::from(self.at)) != Some(&byte) {
                    self.field &= !(1 << number);
                }
            }
            self.at = self.at.saturating_add(1);
            return is_token(byte);
        }
        for (number, name) in NAMES.iter().enumerate() {
            if name.len() != usize::from(self.at) {
                self.field &= !(1 << number);
            }
        }
        (self.at, self.step) = (0, step::VALUE);
        // A message has at most one Host and one Content-Length (sections 3.2 and 6.3).
        let is_second = self.field == HOST && self.has(mark::HOST)
            || self.field == LENGTH && self.has(mark::LENGTH);
        match self.field {
            LENGTH => (self.left, self.marks) = (0, self.marks | mark::LENGTH),
            CODING => self.marks |= mark::CODING,
            HOST => {
                self.marks |= mark::HOST;
                (self.part, self.compared) = (part::START, 0);
            }
            UPGRADE => self.marks |= mark::UPGRADE,
            _ => {}
        }
        !is_second
    }

    fn take_value(&mut self, head: &mut Head, byte: u8) -> bool {
        let is_space = matches!(byte, b' ' | b'\t');
        match self.field {
            LENGTH if is_space => {
                self.at = if self.at == 0 { 0 } else { OTHER };
                true
            }
            LENGTH => {
                let digit = u64::from(byte.wrapping_sub(b'0'));
                let longer = self.left.checked_mul(10).and_then(|left| left.checked_add(digit));
                let is_right = self.at != OTHER && byte.is_ascii_digit() && longer.is_some();
                (self.left, self.at) = (longer.unwrap_or(0), 1);
                is_right
            }
            CODING => {
                if is_space {
                    self.at = match self.at {
                        0 => 0,
                        at if usize::from(at) == CHUNKED.len() => SPACED,
                        SPACED => SPACED,
                        _ => OTHER,
                    };
                } else if byte == b',' {
                    self.end_coding();
                } else {
                    // The coding `chunked` is the last one, and applied once (section
                    // 6.1).
                    if self.has(mark::CHUNKED) {
                        return false;
                    }
                    let expected = CHUNKED.get(usize::from(self.at));
                    let is_next = expected == Some(&byte.to_ascii_lowercase());
                    self.at = if is_next { self.at.saturating_add(1) } else { OTHER };
                }
                true
            }
            HOST if is_space => {
                let is_right = self.part != part::LITERAL;
                self.part = if self.part == part::START { part::START } else { part::ENDED };
                is_right
            }
            HOST => self.take_authority(head, byte, self.has(mark::AUTHORITY)),
            _ => true,
        }
    }

    fn end_coding(&mut self) {
        if self.at == SPACED || usize::from(self.at) == CHUNKED.len() {
            self.marks |= mark::CHUNKED;
        }
        self.at = 0;
    }

    fn end_value(&mut self, head: &Head) -> bool {
        match self.field {
            LENGTH => self.at != 0,
            CODING => {
                self.end_coding();
                true
            }
            // The field equals the target's host, if the target names one (section 3.2).
            HOST => {
                let is_same = !self.has(mark::AUTHORITY)
                    || self.compared == head.host_len
                    || self.has(mark::LONG_HOST);
                self.part != part::LITERAL && is_same
            }
            _ => true,
        }
    }

    /// Processes a byte of a chunk line, or a byte after a chunk's data (section 7.1).
    fn take_size(&mut self, byte: u8) -> bool {
        match (self.step, byte) {
            (step::SIZE, b' ' | b'\t' | b';' | b'\r') => {
                self.step = after_size(byte);
                self.at > 0
            }
            (step::SIZE, _) => {
                let Some(digit) = char::from(byte).to_digit(16) else { return false };
                self.left = self.left << 4 | u64::from(digit);
                self.at = self.at.saturating_add(1);
                self.at <= SIZE_DIGITS
            }
            (step::SIZE_SPACE, b' ' | b'\t' | b';' | b'\r') => {
                self.step = after_size(byte);
                true
            }
            (step::EXTENSION, b'\r') => self.must(true, step::SIZE_LF),
            (step::EXTENSION, _) => is_text(byte),
            (step::SIZE_LF, _) if self.left > 0 => self.must(byte == b'\n', step::CHUNK),
            (step::SIZE_LF, _) => {
                self.marks |= mark::TRAILER;
                self.must(byte == b'\n', step::FIELD)
            }
            (step::CHUNK_CR, _) => self.must(byte == b'\r', step::CHUNK_LF),
            (step::CHUNK_LF, _) => {
                self.expect_size();
                byte == b'\n'
            }
            _ => false,
        }
    }
}

/// The number of bytes at the beginning that are all `allowed`. Blocks without a branch
/// inside become vector instructions.
fn run(bytes: &[u8], allowed: impl Fn(u8) -> bool) -> usize {
    let is_whole = |block: &&[u8]| block.iter().fold(true, |all, byte| all & allowed(*byte));
    let blocks = bytes.chunks_exact(16).take_while(is_whole).count() * 16;
    blocks + bytes[blocks..].iter().take_while(|byte| allowed(**byte)).count()
}

/// The step after a byte that ends a chunk's size.
fn after_size(byte: u8) -> u8 {
    match byte {
        b';' => step::EXTENSION,
        b'\r' => step::SIZE_LF,
        _ => step::SIZE_SPACE,
    }
}
