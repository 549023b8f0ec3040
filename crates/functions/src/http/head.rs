//! The parts of a request that rules look at: method, host, path.

use holdfast_wire::fault::{Fault, is_planted};

/// Maximum length of a method, bytes.
const METHOD: usize = 24;
/// Maximum length of a host without its port, bytes.
const HOST: usize = 128;
/// Maximum length of a path without its query, bytes.
pub(super) const PATH: usize = 384;
/// Room at the end of [`Head::path`] for the scheme and authority of a target, bytes.
const ORIGIN: usize = 128;

/// Bits of [`Head::logged`].
mod logged {
    /// The target is kept as it was sent.
    pub(super) const KEPT: u8 = 1;
    /// The path is `/` because the target has none.
    pub(super) const IMPLIED: u8 = 2;
    /// A part of the target had no room.
    pub(super) const CUT: u8 = 4;
}

holdfast_nf::flow_state! {
    /// The latest request of a connection.
    pub struct Head {
        /// Length of the path in `path`, bytes.
        pub path_len: u16,
        /// Length of the query behind it, bytes.
        pub query_len: u16,
        /// Length of `method`, bytes.
        pub method_len: u8,
        /// Length of `host`, bytes.
        pub host_len: u8,
        /// Length of the scheme and authority, with what is between them, bytes.
        pub origin_len: u8,
        /// The parts of the target that are kept for the log: see [`logged`].
        pub logged: u8,
        /// The method.
        pub method: [u8; METHOD],
        /// The host in lower case, without its port.
        pub host: [u8; HOST],
        /// The path as it was sent, the query as far as there is room, and from `PATH -
        /// ORIGIN` on the scheme and authority, unless the path needs that room.
        pub path: [u8; PATH],
    }
}

fn push(text: &mut [u8], len: usize, byte: u8) -> bool {
    text.get_mut(len).map(|place| *place = byte).is_some()
}

impl Head {
    /// Clears the request.
    pub(super) fn clear(&mut self) {
        (self.path_len, self.query_len, self.method_len, self.host_len) = (0, 0, 0, 0);
        (self.origin_len, self.logged) = (0, self.logged & logged::KEPT);
    }

    /// Keeps targets as they are sent.
    pub(super) fn keep_targets(&mut self) {
        self.logged = logged::KEPT;
    }

    /// True if targets are kept.
    pub(super) fn keeps_targets(&self) -> bool {
        self.logged & logged::KEPT != 0
    }

    /// True if a part of the target had no room.
    pub(super) fn is_cut(&self) -> bool {
        self.logged & logged::CUT != 0
    }

    /// Adds a byte to the method; false if there is no room.
    pub(super) fn push_method(&mut self, byte: u8) -> bool {
        let has_room = push(&mut self.method, self.method_len.into(), byte);
        self.method_len += u8::from(has_room);
        has_room
    }

    /// Adds a byte to the host; false if there is no room.
    pub(super) fn push_host(&mut self, byte: u8) -> bool {
        let has_room = push(&mut self.host, self.host_len.into(), byte);
        self.host_len += u8::from(has_room);
        has_room
    }

    /// Adds a byte to the path; false if there is no room.
    pub(super) fn push_path(&mut self, byte: u8) -> bool {
        // Rules need the path. Logging must not change what they see.
        if usize::from(self.path_len) == PATH - ORIGIN && self.origin_len > 0 {
            (self.origin_len, self.logged) = (0, self.logged | logged::CUT);
        }
        let has_room = push(&mut self.path, self.path_len.into(), byte);
        self.path_len += u16::from(has_room);
        has_room
    }

    /// Adds the path of a target that has none.
    pub(super) fn imply_path(&mut self) {
        self.push_path(b'/');
        self.logged |= logged::IMPLIED;
    }

    /// Adds a byte to the query, if targets are kept.
    pub(super) fn push_query(&mut self, byte: u8) {
        if self.keeps_targets() {
            let room = if self.origin_len > 0 { PATH - ORIGIN } else { PATH };
            let len = usize::from(self.path_len) + usize::from(self.query_len);
            let has_room = len < room && push(&mut self.path, len, byte);
            self.query_len += u16::from(has_room);
            self.logged |= if has_room { 0 } else { logged::CUT };
        }
    }

    /// Adds a byte to the scheme and authority, if targets are kept.
    pub(super) fn push_origin(&mut self, byte: u8) {
        if self.keeps_targets() {
            let len = usize::from(self.origin_len);
            let has_room = len < ORIGIN && push(&mut self.path, PATH - ORIGIN + len, byte);
            self.origin_len += u8::from(has_room);
            self.logged |= if has_room { 0 } else { logged::CUT };
        }
    }

    /// The method.
    pub(super) fn method(&self) -> &[u8] {
        self.method.get(..self.method_len.into()).unwrap_or(&[])
    }

    /// The host, in lower case.
    pub(super) fn host(&self) -> &[u8] {
        self.host.get(..self.host_len.into()).unwrap_or(&[])
    }

    /// The host without the final dot of an absolute name.
    pub(super) fn name(&self) -> &[u8] {
        let host = self.host();
        host.strip_suffix(b".").unwrap_or(host)
    }

    /// The path as it was sent.
    pub(super) fn path(&self) -> &[u8] {
        self.path.get(..self.path_len.into()).unwrap_or(&[])
    }

    /// Appends the target as it was sent.
    pub(super) fn write_target(&self, into: &mut Vec<u8>) {
        let (path, query) = (usize::from(self.path_len), usize::from(self.query_len));
        let origin = PATH - ORIGIN..PATH - ORIGIN + usize::from(self.origin_len);
        let begins_at = if self.logged & logged::IMPLIED == 0 { 0 } else { path };
        for part in [origin, begins_at..path + query] {
            into.extend_from_slice(self.path.get(part).unwrap_or(&[]));
        }
    }
}

/// Places inside a host with a port (RFC 3986, section 3.2).
pub(super) mod part {
    /// The host has not begun.
    pub(in crate::http) const START: u8 = 0;
    /// A name or an IPv4 address.
    pub(in crate::http) const NAME: u8 = 1;
    /// An IPv6 address, between brackets.
    pub(in crate::http) const LITERAL: u8 = 2;
    /// The place after the brackets.
    pub(in crate::http) const BEHIND: u8 = 3;
    /// The port.
    pub(in crate::http) const PORT: u8 = 4;
    /// The end: only spaces may follow.
    pub(in crate::http) const ENDED: u8 = 5;

    /// The place after a byte, and true if the byte belongs to the host; `None` if the
    /// byte is not allowed there. User names are refused (RFC 9110, section 4.2.4), and
    /// so are percent-encoded bytes, which some servers decode.
    pub(in crate::http) fn after(part: u8, byte: u8) -> Option<(u8, bool)> {
        let is_name = byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=".contains(&byte);
        match (part, byte) {
            (START, b'[') => Some((LITERAL, true)),
            (START | NAME | BEHIND, b':') => Some((PORT, false)),
            (START | NAME, _) if is_name => Some((NAME, true)),
            (LITERAL, b']') => Some((BEHIND, true)),
            (LITERAL, b':' | b'.') => Some((LITERAL, true)),
            (LITERAL, _) if byte.is_ascii_hexdigit() => Some((LITERAL, true)),
            (PORT, _) if byte.is_ascii_digit() => Some((PORT, false)),
            _ => None,
        }
    }
}

/// Writes a path to `into` as most servers compare it, and returns its length:
/// percent-encodings are decoded, several slashes become one, and dot segments are
/// resolved (RFC 3986, section 6.2.2). The [grammar](super::grammar) has refused encoded
/// delimiters.
pub(super) fn normalize(path: &[u8], into: &mut [u8; PATH]) -> usize {
    let decoded = decode(path, into);
    if into[0] != b'/' || decoded == 0 || is_planted(Fault::ComparesRawPaths) {
        return decoded;
    }
    // The write position never overtakes the read position.
    let (mut read, mut write, mut is_directory) = (0, 0, false);
    while read < decoded {
        let start = read + 1;
        let end = into[start..decoded].iter().position(|byte| *byte == b'/');
        let end = end.map_or(decoded, |len| start + len);
        is_directory = matches!(&into[start..end], b"" | b"." | b"..");
        if &into[start..end] == b".." {
            write = into[..write].iter().rposition(|byte| *byte == b'/').unwrap_or(0);
        } else if !is_directory {
            into.copy_within(read..end, write);
            write += end - read;
        }
        read = end;
    }
    if is_directory {
        into[write] = b'/';
        write += 1;
    }
    write
}

fn decode(path: &[u8], into: &mut [u8; PATH]) -> usize {
    let hex = |at: usize| char::from(*path.get(at)?).to_digit(16);
    let (mut read, mut write) = (0, 0);
    while let (Some(byte), Some(place)) = (path.get(read), into.get_mut(write)) {
        let code = (*byte == b'%').then(|| Some(hex(read + 1)? << 4 | hex(read + 2)?)).flatten();
        let code = code.filter(|_| !is_planted(Fault::ComparesRawPaths));
        *place = code.map_or(*byte, |code| code as u8);
        read += if code.is_some() { 3 } else { 1 };
        write += 1;
    }
    write
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Equivalent spellings of a path are normalized to one.
    #[test]
    fn spellings_of_a_path_are_one() {
        for (sent, normal) in [
            ("/", "/"),
            ("/a", "/a"),
            ("//a///b/", "/a/b/"),
            ("/%61dmin/%78", "/admin/x"),
            ("/x/../admin", "/admin"),
            ("/x/%2e%2E/admin", "/admin"),
            ("/../../a/./b/.", "/a/b/"),
            ("/a/b/..", "/a/"),
            ("/a/..", "/"),
            ("/..", "/"),
            ("/...", "/..."),
            ("/a%", "/a%"),
            ("/a%4", "/a%4"),
            ("/a%zz%", "/a%zz%"),
            ("/%2561", "/%61"),
            ("*", "*"),
            ("", ""),
        ] {
            let mut into = [0; PATH];
            let len = normalize(sent.as_bytes(), &mut into);
            assert_eq!(std::str::from_utf8(&into[..len]), Ok(normal), "{sent}");
        }
        let mut into = [0; PATH];
        assert_eq!(normalize(&[b'/'; PATH], &mut into), 1);
        assert_eq!(normalize(&[b'a'; PATH], &mut into), PATH);
        let mut long = [b'a'; PATH];
        (long[0], long[PATH - 1]) = (b'/', b'/');
        assert_eq!(normalize(&long, &mut into), PATH);
    }
}
