//! BFD authentication: how packets are signed and verified (RFC 5880, section 6.7).

use super::Discard;
use holdfast_wire::bfd::{Authentication, Control, DIGEST, MAX_PASSWORD};
use sha1::{Digest, Sha1};
use subtle::ConstantTimeEq;
use zeroize::{Zeroize, ZeroizeOnDrop};

/// The authentication type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyKind {
    /// Simple password (section 6.7.2): keeps out mistakes, but no listener.
    Password,
    /// Keyed SHA1 (section 6.7.4): a packet counts again only as long as its number is
    /// the latest.
    KeyedSha1,
    /// Meticulous keyed SHA1: each number counts once.
    MeticulousKeyedSha1,
}

/// A session's key. Freed memory is wiped.
#[derive(Clone, Zeroize, ZeroizeOnDrop)]
pub struct Key {
    #[zeroize(skip)]
    kind: KeyKind,
    id: u8,
    /// The secret, padded with zeros.
    secret: [u8; Key::MAX_LEN],
    len: usize,
}

impl core::fmt::Debug for Key {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Key")
            .field("kind", &self.kind)
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

impl Key {
    /// Bytes of the longest SHA1 key (section 4.4).
    pub const MAX_LEN: usize = 20;

    /// The key with this number. `None` if the secret is empty or longer than its kind
    /// allows: 16 bytes of a password, 20 of the others.
    pub fn new(kind: KeyKind, id: u8, secret: &[u8]) -> Option<Key> {
        let most = if kind == KeyKind::Password { MAX_PASSWORD } else { Key::MAX_LEN };
        if secret.is_empty() || secret.len() > most {
            return None;
        }
        let mut padded = [0; Key::MAX_LEN];
        padded[..secret.len()].copy_from_slice(secret);
        Some(Key { kind, id, secret: padded, len: secret.len() })
    }

    /// The authentication type.
    pub fn kind(&self) -> KeyKind {
        self.kind
    }

    /// The key's number.
    pub fn id(&self) -> u8 {
        self.id
    }

    /// The secret.
    pub fn secret(&self) -> &[u8] {
        &self.secret[..self.len]
    }

    /// True if both keys are the same.
    pub fn is_same(&self, other: &Key) -> bool {
        (self.kind, self.id) == (other.kind, other.id)
            && bool::from(self.secret().ct_eq(other.secret()))
    }

    fn is_meticulous(&self) -> bool {
        self.kind == KeyKind::MeticulousKeyedSha1
    }

    /// The authentication section of a packet before it is signed.
    pub(super) fn section(&self, sequence: u32) -> Authentication<'_> {
        match self.kind {
            KeyKind::Password => {
                Authentication::Password { key_id: self.id, password: self.secret() }
            }
            KeyKind::KeyedSha1 | KeyKind::MeticulousKeyedSha1 => Authentication::Sha1 {
                is_meticulous: self.is_meticulous(),
                key_id: self.id,
                sequence,
                // The key stands in the digest's place while the digest is computed
                // (section 6.7.4).
                digest: self.secret,
            },
        }
    }

    /// Signs a packet that was written with [`Key::section`].
    pub(super) fn sign(&self, packet: &mut [u8]) {
        if self.kind != KeyKind::Password {
            let digest = Sha1::digest(&*packet);
            packet[DIGEST].copy_from_slice(&digest);
        }
    }

    /// Verifies the packet in this payload. Returns its sequence number, if it has one.
    ///
    /// `last`: the number of the last packet that was taken, while it is valid (section
    /// 6.8.1, `bfd.AuthSeqKnown`).
    pub(super) fn verify(
        &self,
        packet: &Control<'_>,
        payload: &[u8],
        last: Option<u32>,
    ) -> Result<Option<u32>, Discard> {
        match packet.authentication {
            Some(Authentication::Password { key_id, password })
                if self.kind == KeyKind::Password =>
            {
                let is_right = key_id == self.id && bool::from(password.ct_eq(self.secret()));
                if is_right { Ok(None) } else { Err(Discard::Unauthenticated) }
            }
            Some(Authentication::Sha1 { is_meticulous, key_id, sequence, digest })
                if self.kind != KeyKind::Password
                    && is_meticulous == self.is_meticulous()
                    && key_id == self.id =>
            {
                let signed = Control::signed(payload).filter(|signed| signed.len() >= DIGEST.end);
                let signed = signed.ok_or(Discard::Unauthenticated)?;
                let mut sum = Sha1::new();
                sum.update(&signed[..DIGEST.start]);
                sum.update(self.secret);
                sum.update(&signed[DIGEST.end..]);
                if !bool::from(sum.finalize().as_slice().ct_eq(&digest[..])) {
                    return Err(Discard::Unauthenticated);
                }
                // Sequence numbers wrap around.
                let ahead = last.map(|last| sequence.wrapping_sub(last));
                let least = u32::from(self.is_meticulous());
                match ahead {
                    Some(ahead)
                        if ahead < least || ahead > 3 * u32::from(packet.detect_multiplier) =>
                    {
                        Err(Discard::Replayed)
                    }
                    _ => Ok(Some(sequence)),
                }
            }
            _ => Err(Discard::Unauthenticated),
        }
    }
}
