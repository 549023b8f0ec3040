//! BFD control packets (RFC 5880, section 4): read from a UDP payload, and written into
//! one.
//!
//! A packet from [`Control::parse`] has passed every check of RFC 5880, section 6.8.6,
//! that needs no session; the session makes the others. Authentication sections are read
//! and written unverified: verification needs the key. Keyed MD5 (section 4.3) is not
//! supported, because it is no longer safe: it parses as [`Authentication::Other`], which
//! no session accepts.

use crate::build::DoesNotFit;
use zerocopy::byteorder::network_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// UDP port of single-hop control packets (RFC 5881, section 4).
pub const PORT: u16 = 3784;
/// The least UDP source port (RFC 5881, section 4); the largest is 65,535.
pub const MIN_SOURCE_PORT: u16 = 49_152;
/// TTL or hop limit of sent packets, and the only one accepted (RFC 5881, section 5).
pub const TTL: u8 = 255;
/// Bytes of the mandatory section.
pub const LEN: usize = 24;
/// Bytes of the longest packet written: with a SHA1 section.
pub const MAX_LEN: usize = LEN + SHA1_LEN;
/// The place of the digest in a packet with a SHA1 section.
pub const DIGEST: core::ops::Range<usize> = LEN + 8..LEN + SHA1_LEN;
/// Characters of the longest password (section 4.2).
pub const MAX_PASSWORD: usize = 16;

/// Bytes of a SHA1 section (section 4.4).
const SHA1_LEN: usize = 28;
const VERSION: u8 = 1;

/// Authentication types (section 4.1).
mod kind {
    pub(super) const PASSWORD: u8 = 1;
    pub(super) const KEYED_SHA1: u8 = 4;
    pub(super) const METICULOUS_KEYED_SHA1: u8 = 5;
}

/// Bits of the second byte, under the state (section 4.1).
mod flag {
    pub(super) const POLL: u8 = 0x20;
    pub(super) const FINAL: u8 = 0x10;
    pub(super) const CONTROL_PLANE_INDEPENDENT: u8 = 0x08;
    pub(super) const AUTHENTICATION: u8 = 0x04;
    pub(super) const DEMAND: u8 = 0x02;
    pub(super) const MULTIPOINT: u8 = 0x01;
}

/// The mandatory section's layout (section 4.1).
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Header {
    version_diagnostic: u8,
    state_flags: u8,
    detect_multiplier: u8,
    len: u8,
    my_discriminator: U32,
    your_discriminator: U32,
    desired_min_tx: U32,
    required_min_rx: U32,
    required_min_echo_rx: U32,
}

const _: () = assert!(size_of::<Header>() == LEN);

/// The state of a session (section 4.1). `Display` gives the name of the RFC.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum State {
    /// Held down by an operator.
    AdminDown = 0,
    /// The other side is not heard, or does not hear this one.
    #[default]
    Down = 1,
    /// The other side is heard, and may not hear this one.
    Init = 2,
    /// Both sides hear each other.
    Up = 3,
}

impl State {
    /// All states, in order of their numbers.
    pub const ALL: [State; 4] = [State::AdminDown, State::Down, State::Init, State::Up];

    fn of(bits: u8) -> State {
        State::ALL[usize::from(bits & 3)]
    }

    /// The name in messages and `status --json`.
    pub fn name(self) -> &'static str {
        match self {
            State::AdminDown => "AdminDown",
            State::Down => "Down",
            State::Init => "Init",
            State::Up => "Up",
        }
    }
}

impl core::fmt::Display for State {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.pad(self.name())
    }
}

/// The reason why a session last went down (section 4.1), 5 bits. Unassigned numbers are
/// kept.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Diagnostic(u8);

impl Diagnostic {
    /// No diagnostic.
    pub const NONE: Diagnostic = Diagnostic(0);
    /// Control detection time expired.
    pub const TIME_EXPIRED: Diagnostic = Diagnostic(1);
    /// Neighbour signalled session down.
    pub const NEIGHBOR_SIGNALED_DOWN: Diagnostic = Diagnostic(3);
    /// Administratively down.
    pub const ADMIN_DOWN: Diagnostic = Diagnostic(7);

    /// The diagnostic with this number. `None` beyond 5 bits.
    pub fn new(number: u8) -> Option<Diagnostic> {
        (number < 32).then_some(Diagnostic(number))
    }

    /// The number.
    pub fn number(self) -> u8 {
        self.0
    }

    /// The meaning.
    pub fn name(self) -> &'static str {
        match self.0 {
            0 => "none",
            1 => "control detection time expired",
            2 => "echo function failed",
            3 => "neighbor signaled session down",
            4 => "forwarding plane reset",
            5 => "path down",
            6 => "concatenated path down",
            7 => "administratively down",
            8 => "reverse concatenated path down",
            _ => "reserved",
        }
    }
}

/// The authentication section (sections 4.2 to 4.4), unverified.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Authentication<'a> {
    /// Simple password: readable by every station on the link.
    Password {
        /// The number of the receiver's password.
        key_id: u8,
        /// 1 to 16 bytes.
        password: &'a [u8],
    },
    /// Keyed SHA1, or meticulous keyed SHA1.
    Sha1 {
        /// The sequence number grows with every packet.
        is_meticulous: bool,
        /// The number of the receiver's key.
        key_id: u8,
        /// The sequence number.
        sequence: u32,
        /// SHA1 over the whole packet, with the key, padded with zeros, in this place
        /// (section 6.7.4).
        digest: [u8; 20],
    },
    /// An unknown type, or keyed MD5. This section cannot be written.
    Other(u8),
}

/// A control packet. Intervals are in microseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Control<'a> {
    /// The sender's state.
    pub state: State,
    /// The reason of the sender's last change to a worse state.
    pub diagnostic: Diagnostic,
    /// The sender asks for an answer at once (section 6.5).
    pub poll: bool,
    /// The packet answers a poll.
    pub is_final: bool,
    /// The sender's BFD does not depend on its control plane.
    pub control_plane_independent: bool,
    /// The sender wants no periodic packets while both sides are up (section 6.6).
    pub demand: bool,
    /// The number of the sender's intervals without a packet after which the session is
    /// down.
    pub detect_multiplier: u8,
    /// The sender's name for the session, not 0.
    pub my_discriminator: u32,
    /// The receiver's name for it, as heard by the sender; 0 if unknown.
    pub your_discriminator: u32,
    /// The least interval at which the sender wants to send.
    pub desired_min_tx: u32,
    /// The least interval at which the sender can receive; 0 if it wants no periodic
    /// packets.
    pub required_min_rx: u32,
    /// The least interval for echo packets; 0 if the sender does not return them.
    pub required_min_echo_rx: u32,
    /// The authentication section, if there is one.
    pub authentication: Option<Authentication<'a>>,
}

/// The reasons for discarding a payload without a session: the checks of RFC 5880,
/// section 6.8.6, in its order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Malformed {
    /// Shorter than the mandatory section.
    Truncated,
    /// A version other than 1.
    Version,
    /// A length field below the least that is possible, or beyond the payload.
    Length,
    /// A detection multiplier of 0.
    Multiplier,
    /// The multipoint bit is set.
    Multipoint,
    /// The sender has no name for the session.
    MyDiscriminator,
    /// The receiver is not named, in a state in which it must have been heard.
    YourDiscriminator,
    /// An authentication section shorter than its type requires, longer than the packet,
    /// or of an impossible length.
    Authentication,
}

impl core::fmt::Display for Malformed {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Malformed::Truncated => "shorter than the mandatory section",
            Malformed::Version => "a version other than 1",
            Malformed::Length => "a length that the packet cannot have",
            Malformed::Multiplier => "a detection multiplier of 0",
            Malformed::Multipoint => "the multipoint bit is set",
            Malformed::MyDiscriminator => "my discriminator is 0",
            Malformed::YourDiscriminator => {
                "your discriminator is 0 in a state other than Down and AdminDown"
            }
            Malformed::Authentication => "an authentication section of a wrong length",
        })
    }
}

impl std::error::Error for Malformed {}

impl<'a> Control<'a> {
    /// Reads a UDP payload. Bytes behind the packet's own length are ignored:
    /// [`Control::signed`] leaves them out.
    ///
    /// # Errors
    /// The reason to discard it, whatever the session (RFC 5880, section 6.8.6).
    pub fn parse(payload: &'a [u8]) -> Result<Control<'a>, Malformed> {
        let (header, _) = Header::ref_from_prefix(payload).map_err(|_| Malformed::Truncated)?;
        if header.version_diagnostic >> 5 != VERSION {
            return Err(Malformed::Version);
        }
        let has = |bit: u8| header.state_flags & bit != 0;
        let is_authenticated = has(flag::AUTHENTICATION);
        let len = usize::from(header.len);
        if len < LEN + if is_authenticated { 2 } else { 0 } || len > payload.len() {
            return Err(Malformed::Length);
        }
        if header.detect_multiplier == 0 {
            return Err(Malformed::Multiplier);
        }
        if has(flag::MULTIPOINT) {
            return Err(Malformed::Multipoint);
        }
        if header.my_discriminator.get() == 0 {
            return Err(Malformed::MyDiscriminator);
        }
        let state = State::of(header.state_flags >> 6);
        if header.your_discriminator.get() == 0 && !matches!(state, State::Down | State::AdminDown)
        {
            return Err(Malformed::YourDiscriminator);
        }
        let authentication = if is_authenticated {
            Some(Authentication::parse(&payload[LEN..len]).ok_or(Malformed::Authentication)?)
        } else {
            None
        };
        Ok(Control {
            state,
            diagnostic: Diagnostic(header.version_diagnostic & 0x1f),
            poll: has(flag::POLL),
            is_final: has(flag::FINAL),
            control_plane_independent: has(flag::CONTROL_PLANE_INDEPENDENT),
            demand: has(flag::DEMAND),
            detect_multiplier: header.detect_multiplier,
            my_discriminator: header.my_discriminator.get(),
            your_discriminator: header.your_discriminator.get(),
            desired_min_tx: header.desired_min_tx.get(),
            required_min_rx: header.required_min_rx.get(),
            required_min_echo_rx: header.required_min_echo_rx.get(),
            authentication,
        })
    }

    /// The bytes of a payload within the packet's length field, over which the digest is.
    /// `None` if the payload does not parse.
    pub fn signed(payload: &[u8]) -> Option<&[u8]> {
        payload.get(..usize::from(*payload.get(3)?))
    }

    /// Bytes that [`Control::write`] needs.
    ///
    /// # Errors
    /// If the authentication section cannot be written.
    pub fn written_len(&self) -> Result<usize, DoesNotFit> {
        match self.authentication {
            None => Ok(LEN),
            Some(Authentication::Password { password, .. })
                if (1..=MAX_PASSWORD).contains(&password.len()) =>
            {
                Ok(LEN + 3 + password.len())
            }
            Some(Authentication::Sha1 { .. }) => Ok(LEN + SHA1_LEN),
            Some(Authentication::Password { .. } | Authentication::Other(_)) => Err(DoesNotFit),
        }
    }

    /// Writes the packet at the front of `into`, and returns its length in bytes.
    ///
    /// # Errors
    /// If `into` is too short, or the authentication section cannot be written; nothing
    /// is written then.
    pub fn write(&self, into: &mut [u8]) -> Result<usize, DoesNotFit> {
        let len = self.written_len()?;
        let into = into.get_mut(..len).ok_or(DoesNotFit)?;
        let bit = |is_set: bool, bit: u8| if is_set { bit } else { 0 };
        let flags = bit(self.poll, flag::POLL)
            | bit(self.is_final, flag::FINAL)
            | bit(self.control_plane_independent, flag::CONTROL_PLANE_INDEPENDENT)
            | bit(self.authentication.is_some(), flag::AUTHENTICATION)
            | bit(self.demand, flag::DEMAND);
        let header = Header {
            version_diagnostic: VERSION << 5 | self.diagnostic.0,
            state_flags: (self.state as u8) << 6 | flags,
            detect_multiplier: self.detect_multiplier,
            len: len as u8,
            my_discriminator: self.my_discriminator.into(),
            your_discriminator: self.your_discriminator.into(),
            desired_min_tx: self.desired_min_tx.into(),
            required_min_rx: self.required_min_rx.into(),
            required_min_echo_rx: self.required_min_echo_rx.into(),
        };
        let (front, section) = into.split_at_mut(LEN);
        front.copy_from_slice(header.as_bytes());
        let section_len = section.len() as u8;
        match self.authentication {
            Some(Authentication::Password { key_id, password }) => {
                section[..3].copy_from_slice(&[kind::PASSWORD, section_len, key_id]);
                section[3..].copy_from_slice(password);
            }
            Some(Authentication::Sha1 { is_meticulous, key_id, sequence, digest }) => {
                let kind =
                    if is_meticulous { kind::METICULOUS_KEYED_SHA1 } else { kind::KEYED_SHA1 };
                section[..4].copy_from_slice(&[kind, section_len, key_id, 0]);
                section[4..8].copy_from_slice(&sequence.to_be_bytes());
                section[8..].copy_from_slice(&digest);
            }
            Some(Authentication::Other(_)) | None => {}
        }
        Ok(len)
    }
}

impl<'a> Authentication<'a> {
    /// Reads the section behind the mandatory one. `None` if the type cannot have this
    /// length.
    fn parse(section: &'a [u8]) -> Option<Authentication<'a>> {
        let (&kind, &len) = (section.first()?, section.get(1)?);
        let section = section.get(..usize::from(len)).filter(|section| section.len() >= 2)?;
        let is_sha1 = matches!(kind, kind::KEYED_SHA1 | kind::METICULOUS_KEYED_SHA1);
        match kind {
            kind::PASSWORD => {
                let password = section
                    .get(3..)
                    .filter(|password| (1..=MAX_PASSWORD).contains(&password.len()))?;
                Some(Authentication::Password { key_id: section[2], password })
            }
            _ if is_sha1 => {
                let section: &[u8; SHA1_LEN] = section.try_into().ok()?;
                Some(Authentication::Sha1 {
                    is_meticulous: kind == kind::METICULOUS_KEYED_SHA1,
                    key_id: section[2],
                    sequence: u32::from_be_bytes(*section[4..].first_chunk()?),
                    digest: *section[8..].first_chunk()?,
                })
            }
            other => Some(Authentication::Other(other)),
        }
    }
}
