//! Keys of a cluster, and the sealing of frames with them.
//!
//! AES-256-GCM of RustCrypto: pure Rust, so nothing but rustc builds it and it is the same on every target, with the processor's AES where it has
//! it. For a full frame ring takes half the time (0.7 instead of 1.9 µs for 2300 bytes, 0.21 instead of 0.30 µs for 300) with C and
//! assembler of its own; ChaCha20-Poly1305 is slower in both. What would have to change for another is this file.
//!
//! A nonce must never come twice under a key. A sender's key is therefore its own for one life (see [`Seal::new`]), and within a life the nonce
//! is the counter of the frames that it has sent, which is never set back, not by a change of keys either.

use super::format::{ASSOCIATED_LEN, ETHERNET_LEN, HEADER_LEN, Header, SEALED};
use aes_gcm::aead::AeadInOut;
use aes_gcm::{Aes256Gcm, KeyInit, Nonce};
use core::num::NonZeroU64;
use hkdf::Hkdf;
use holdfast_protection::Peer;
use sha2::Sha256;
use zerocopy::{FromBytes, IntoBytes};
use zeroize::{Zeroize, ZeroizeOnDrop};

/// Keys that a ring may hold: the current one, and on the way to another the old and the next.
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
/// To change the key without losing a frame, first give every node the next one behind the current, then put it in front, then leave the old one out.
/// A node that is given a new ring goes on where it was; whatever nobody could open meanwhile is repeated.
#[derive(Clone, PartialEq, Eq)]
pub struct KeyRing(Vec<Key>);

/// Why keys are no ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyRingError {
    /// There is none.
    Empty,
    /// There are more than [`MAX_KEYS`].
    TooMany,
    /// Two have this number.
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

// A secret is never printed, whatever prints what holds it.
impl core::fmt::Debug for KeyRing {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_list().entries(self.0.iter().map(|key| key.number)).finish()
    }
}

/// A key of one sender in one life.
pub(super) struct Opener {
    number: u8,
    cipher: Aes256Gcm,
}

/// Seals what an endpoint sends.
pub(super) struct Seal {
    me: Peer,
    cluster: u32,
    life: NonZeroU64,
    /// Per cluster key, ready to derive from: the current one first.
    roots: Vec<(u8, Hkdf<Sha256>)>,
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

/// The key under which a node seals in one life.
fn derive(root: &Hkdf<Sha256>, cluster: u32, peer: Peer, life: u64) -> Aes256Gcm {
    let mut secret = [0; 32];
    let node = peer.node.to_be_bytes();
    let parts: [&[u8]; 5] =
        [b"holdfast fabric 2", &cluster.to_be_bytes(), &node, &peer.incarnation.to_be_bytes(), &life.to_be_bytes()];
    // Neither can fail: the lengths are right.
    let _ = root.expand_multi_info(&parts, &mut secret);
    let cipher = Aes256Gcm::new(&secret.into());
    secret.zeroize();
    cipher
}

impl Seal {
    /// Seals for an endpoint.
    ///
    /// That no two lives seal under the same key is what the number of the life is for, drawn at random by who starts the process: the incarnation
    /// alone tells the lives of a node apart only as long as the coordinator remembers them, and a box that is stopped and started again counts
    /// from the beginning, with the same cluster key. Two lives of one node and incarnation would have to draw the same of 2^64 numbers.
    pub(super) fn new(me: Peer, cluster: u32, life: NonZeroU64, ring: &KeyRing) -> Seal {
        let roots = Seal::roots(ring);
        let own = Opener { number: roots[0].0, cipher: derive(&roots[0].1, cluster, me, life.get()) };
        Seal { me, cluster, life, roots, own, scratch: Vec::new() }
    }

    fn roots(ring: &KeyRing) -> Vec<(u8, Hkdf<Sha256>)> {
        ring.keys().iter().map(|key| (key.number, Hkdf::new(None, &key.secret))).collect()
    }

    pub(super) fn set_keys(&mut self, ring: &KeyRing) {
        *self = Seal { scratch: core::mem::take(&mut self.scratch), ..Seal::new(self.me, self.cluster, self.life, ring) };
    }

    pub(super) fn life(&self) -> u64 {
        self.life.get()
    }

    /// What opens the frames of a peer in one life.
    pub(super) fn openers(&self, peer: Peer, life: u64) -> Vec<Opener> {
        let opener =
            |(number, root): &(u8, Hkdf<Sha256>)| Opener { number: *number, cipher: derive(root, self.cluster, peer, life) };
        self.roots.iter().map(opener).collect()
    }

    /// A frame that is complete but for its tag, sealed.
    pub(super) fn seal(&mut self, frame: &[u8], counter: u64) -> Option<&[u8]> {
        self.scratch.clear();
        self.scratch.extend_from_slice(frame);
        let (header, _) = Header::mut_from_prefix(&mut self.scratch[ETHERNET_LEN..]).ok()?;
        header.flags |= SEALED;
        header.key = self.own.number;
        header.source_life = self.life.get().into();
        let (head, records) = self.scratch.split_at_mut(ETHERNET_LEN + HEADER_LEN);
        let (associated, tag) = head[ETHERNET_LEN..].split_at_mut(ASSOCIATED_LEN);
        let sealed = self.own.cipher.encrypt_inout_detached(&nonce(counter), associated, records.into()).ok()?;
        tag.copy_from_slice(&sealed);
        Some(&self.scratch)
    }

    /// True if a frame's sender has a key of the cluster; [`Seal::opened`] has its records then. `known` are the openers of the sender's life, if
    /// it is known.
    pub(super) fn open(&mut self, header: &Header, records: &[u8], known: Option<&[Opener]>) -> bool {
        let made;
        let known = known.map(|known| known.iter().find(|opener| opener.number == header.key).map(|opener| &opener.cipher));
        let cipher = match known {
            Some(Some(cipher)) => cipher,
            Some(None) => return false,
            None => {
                let Some((_, root)) = self.roots.iter().find(|(number, _)| *number == header.key) else { return false };
                let peer = Peer { node: header.source.get(), incarnation: header.source_incarnation.get() };
                made = derive(root, self.cluster, peer, header.source_life.get());
                &made
            }
        };
        self.scratch.clear();
        self.scratch.extend_from_slice(records);
        let associated = &header.as_bytes()[..ASSOCIATED_LEN];
        let nonce = nonce(header.counter.get());
        cipher.decrypt_inout_detached(&nonce, associated, self.scratch.as_mut_slice().into(), &header.tag.into()).is_ok()
    }

    /// The records that were opened last.
    pub(super) fn opened(&self) -> &[u8] {
        &self.scratch
    }
}
