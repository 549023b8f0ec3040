//! Keys of a cluster, and the sealing of frames with them.
//!
//! AES-256-GCM of RustCrypto: pure Rust, so rustc alone builds it and it is the same on
//! every target, with the processor's AES where it has it. For a full frame ring takes
//! half the time (0.7 instead of 1.9 µs for 2300 bytes, 0.21 instead of 0.30 µs for 300),
//! with C and assembler of its own; ChaCha20-Poly1305 is slower in both. Another library
//! would change this file only.
//!
//! A nonce must never come twice under a key. A sender's key is therefore its own for one
//! life number (see [`Seal::new`]). Under it the nonce is the counter of the frames that
//! it has sent, which is never set back, not by a change of keys either.

use super::format::{ASSOCIATED_LEN, ETHERNET_LEN, HEADER_LEN, Header, SEALED, TAG_LEN};
use aes_gcm::aead::AeadInOut;
use aes_gcm::{Aes256Gcm, KeyInit, Nonce};
use core::num::NonZeroU64;
use hkdf::Hkdf;
use holdfast_protection::Peer;
use holdfast_wire::NodeId;
use sha2::Sha256;
use zerocopy::{FromBytes, IntoBytes};
use zeroize::{Zeroize, ZeroizeOnDrop};

/// Keys that a ring may hold: the current one, and during a change the old and the next.
pub const MAX_KEYS: usize = 8;

/// A key with the number by which frames name it.
#[derive(Clone, PartialEq, Eq, Zeroize, ZeroizeOnDrop)]
pub struct Key {
    /// Its number.
    pub number: u8,
    /// The secret.
    pub secret: [u8; 32],
}

/// The keys of a cluster: frames are sealed under the first, and accepted under all.
///
/// To change the key without losing a frame, first give every node the next key behind
/// the current, then put it in front, then leave the old one out. A node that is given a
/// new ring continues its channels; frames that could not be opened meanwhile are
/// repeated.
#[derive(Clone, PartialEq, Eq)]
pub struct KeyRing(Vec<Key>);

/// Why keys are no ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyRingError {
    /// The ring has no key.
    Empty,
    /// The ring has more than [`MAX_KEYS`].
    TooMany,
    /// Two keys have this number.
    SameNumber(u8),
}

impl core::fmt::Display for KeyRingError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            KeyRingError::Empty => f.write_str("there is no key"),
            KeyRingError::TooMany => write!(f, "there are more than {MAX_KEYS} keys"),
            KeyRingError::SameNumber(number) => write!(f, "two keys have the number {number}"),
        }
    }
}

impl core::error::Error for KeyRingError {}

impl KeyRing {
    /// A ring of these keys; the first is the current one.
    ///
    /// # Errors
    /// See [`KeyRingError`].
    pub fn new(keys: Vec<Key>) -> Result<KeyRing, KeyRingError> {
        if keys.is_empty() {
            return Err(KeyRingError::Empty);
        }
        if keys.len() > MAX_KEYS {
            return Err(KeyRingError::TooMany);
        }
        for (at, key) in keys.iter().enumerate() {
            if keys[..at].iter().any(|other| other.number == key.number) {
                return Err(KeyRingError::SameNumber(key.number));
            }
        }
        Ok(KeyRing(keys))
    }

    /// The keys, the current one first.
    pub fn keys(&self) -> &[Key] {
        &self.0
    }
}

// Debug output never prints a secret.
impl core::fmt::Debug for KeyRing {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_list().entries(self.0.iter().map(|key| key.number)).finish()
    }
}

/// A key of one sender, under one life number.
pub(crate) struct Opener {
    number: u8,
    cipher: Aes256Gcm,
}

impl Opener {
    /// The number of the cluster key from which this key is derived.
    pub(crate) fn number(&self) -> u8 {
        self.number
    }

    /// Encrypts in place. Returns the tag, which authenticates `associated` too; `None`
    /// for more bytes than any frame has.
    pub(crate) fn encrypt(
        &self,
        counter: u64,
        associated: &[u8],
        bytes: &mut [u8],
    ) -> Option<[u8; TAG_LEN]> {
        self.cipher
            .encrypt_inout_detached(&nonce(counter), associated, bytes.into())
            .ok()
            .map(Into::into)
    }

    /// Decrypts in place. False if the tag is wrong; the bytes are garbage then.
    pub(crate) fn decrypt(
        &self,
        counter: u64,
        associated: &[u8],
        bytes: &mut [u8],
        tag: [u8; TAG_LEN],
    ) -> bool {
        self.cipher
            .decrypt_inout_detached(&nonce(counter), associated, bytes.into(), &tag.into())
            .is_ok()
    }
}

/// A cluster's keys, ready to derive from; the current one first.
pub(crate) struct Roots(Vec<(u8, Hkdf<Sha256>)>);

impl Roots {
    pub(crate) fn new(ring: &KeyRing) -> Roots {
        Roots(ring.keys().iter().map(|key| (key.number, Hkdf::new(None, &key.secret))).collect())
    }

    /// The keys with this name, one derived from each cluster key; the current one first.
    pub(crate) fn derive(&self, name: &[&[u8]]) -> Vec<Opener> {
        self.0.iter().map(|root| derive(root, name)).collect()
    }

    fn derive_current(&self, name: &[&[u8]]) -> Opener {
        // A ring has at least one key.
        derive(&self.0[0], name)
    }

    fn derive_numbered(&self, number: u8, name: &[&[u8]]) -> Option<Opener> {
        self.0.iter().find(|(other, _)| *other == number).map(|root| derive(root, name))
    }
}

/// Seals frames of an endpoint.
pub(super) struct Seal {
    me: Peer,
    cluster: u32,
    life: NonZeroU64,
    roots: Roots,
    own: Opener,
    /// The frame that is being sealed or opened.
    scratch: Vec<u8>,
}

/// The nonce of a sender's frame.
fn nonce(counter: u64) -> Nonce<aes_gcm::aead::consts::U12> {
    let mut bytes = [0; 12];
    bytes[4..].copy_from_slice(&counter.to_be_bytes());
    bytes.into()
}

fn derive((number, root): &(u8, Hkdf<Sha256>), name: &[&[u8]]) -> Opener {
    let mut secret = [0; 32];
    // Neither call can fail: the lengths are right.
    let _ = root.expand_multi_info(name, &mut secret);
    let cipher = Aes256Gcm::new(&secret.into());
    secret.zeroize();
    Opener { number: *number, cipher }
}

/// Calls `derive` with the name of a node's key for messages, under one life number.
fn named<T>(cluster: u32, peer: Peer, life: u64, derive: impl FnOnce(&[&[u8]]) -> T) -> T {
    let node = peer.node.to_be_bytes();
    derive(&[
        b"holdfast fabric 2",
        &cluster.to_be_bytes(),
        &node,
        &peer.incarnation.to_be_bytes(),
        &life.to_be_bytes(),
    ])
}

impl Seal {
    /// The seal of an endpoint.
    ///
    /// The life number makes sure that no two incarnations seal under the same key. The
    /// process that starts draws it at random, because the incarnation is not enough: the
    /// coordinator tells incarnations apart only as long as it remembers them, and a box
    /// that is stopped and started again counts from the beginning, with the same cluster
    /// key. Two processes of one node with the same incarnation would have to draw the
    /// same of 2^64 numbers.
    pub(super) fn new(me: Peer, cluster: u32, life: NonZeroU64, ring: &KeyRing) -> Seal {
        let roots = Roots::new(ring);
        let own = named(cluster, me, life.get(), |name| roots.derive_current(name));
        Seal { me, cluster, life, roots, own, scratch: Vec::new() }
    }

    pub(super) fn set_keys(&mut self, ring: &KeyRing) {
        *self = Seal {
            scratch: core::mem::take(&mut self.scratch),
            ..Seal::new(self.me, self.cluster, self.life, ring)
        };
    }

    pub(super) fn life(&self) -> u64 {
        self.life.get()
    }

    /// The keys that open a peer's frames under one life number.
    pub(super) fn openers(&self, peer: Peer, life: u64) -> Vec<Opener> {
        named(self.cluster, peer, life, |name| self.roots.derive(name))
    }

    /// Seals a frame that is complete but for its tag.
    pub(super) fn seal(&mut self, frame: &[u8], counter: u64) -> Option<&[u8]> {
        self.scratch.clear();
        self.scratch.extend_from_slice(frame);
        let (header, _) = Header::mut_from_prefix(&mut self.scratch[ETHERNET_LEN..]).ok()?;
        header.flags |= SEALED;
        header.key = self.own.number;
        header.source_life = self.life.get().into();
        let (head, records) = self.scratch.split_at_mut(ETHERNET_LEN + HEADER_LEN);
        let (associated, tag) = head[ETHERNET_LEN..].split_at_mut(ASSOCIATED_LEN);
        tag.copy_from_slice(&self.own.encrypt(counter, associated, records)?);
        Some(&self.scratch)
    }

    /// True if the frame's sender has a key of the cluster; [`Seal::opened`] then has its
    /// records. `known` are the keys under the sender's life number, if it is known.
    pub(super) fn open(
        &mut self,
        header: &Header,
        records: &[u8],
        known: Option<&[Opener]>,
    ) -> bool {
        let made;
        let known = known.map(|known| known.iter().find(|opener| opener.number == header.key));
        let opener = match known {
            Some(Some(opener)) => opener,
            Some(None) => return false,
            None => {
                let peer = Peer {
                    node: NodeId::new(header.source.get()),
                    incarnation: header.source_incarnation.get(),
                };
                let derived = named(self.cluster, peer, header.source_life.get(), |name| {
                    self.roots.derive_numbered(header.key, name)
                });
                let Some(derived) = derived else { return false };
                made = derived;
                &made
            }
        };
        self.scratch.clear();
        self.scratch.extend_from_slice(records);
        let associated = &header.as_bytes()[..ASSOCIATED_LEN];
        opener.decrypt(header.counter.get(), associated, self.scratch.as_mut_slice(), header.tag)
    }

    /// The records of the last frame that was opened.
    pub(super) fn opened(&self) -> &[u8] {
        &self.scratch
    }
}
