//! A chain on a bench ([`holdfast_nf::bench`]), with packets in words and an independent
//! parser for those that come out.

use crate::{reading, words};
use holdfast_functions::catalog;
use holdfast_nf::Chain;
use holdfast_wire::DropReason;
use holdfast_wire::zone::Zones;
use serde_json::Value;
use std::any::Any;
use std::cell::Cell;
use std::net::SocketAddr;
use std::ops::{Deref, DerefMut};
use std::sync::Once;

const SECOND: u64 = 1_000_000_000;

thread_local! {
    /// True while this thread's panics are expected and not printed.
    static IS_QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Plays a scenario silently. The error has the message of the expectation that failed.
pub(crate) fn holds(scenario: fn()) -> Result<(), String> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !IS_QUIET.get() {
                usual(info);
            }
        }));
    });
    IS_QUIET.set(true);
    let outcome = std::panic::catch_unwind(scenario);
    IS_QUIET.set(false);
    let text = |said: Box<dyn Any + Send>| match said.downcast::<String>() {
        Ok(text) => *text,
        Err(said) => said.downcast_ref::<&str>().copied().unwrap_or_default().to_owned(),
    };
    outcome.map_err(text)
}

/// A bench, as the module's head says.
pub(crate) struct Bench {
    inner: holdfast_nf::bench::Bench,
    /// The values that functions show of flows: function and name.
    names: Vec<(&'static str, &'static str)>,
}

impl Deref for Bench {
    type Target = holdfast_nf::bench::Bench;

    fn deref(&self) -> &Self::Target {
        &self.inner
    }
}

impl DerefMut for Bench {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.inner
    }
}

impl Bench {
    /// A chain of functions with their configurations.
    pub(crate) fn new(functions: &[(&str, Value)]) -> Bench {
        Bench::on(&Zones::default(), functions)
    }

    /// Like `new`, in a box whose ports have names.
    pub(crate) fn on(zones: &Zones, functions: &[(&str, Value)]) -> Bench {
        let configured = |(name, config): &(&str, Value)| {
            catalog::configured(name, config, zones)
                .unwrap_or_else(|error| panic!("{name}: {error}"))
        };
        let functions: Vec<_> = functions.iter().map(configured).collect();
        let names = functions
            .iter()
            .flat_map(|function| function.values().iter().map(|name| (function.name(), *name)));
        let chain = Chain::new(functions.iter().map(|function| function.bind()).collect());
        Bench { inner: holdfast_nf::bench::Bench::new(chain), names: names.collect() }
    }

    /// Sends a frame into the chain. Returns the frame that comes out, or the reason of
    /// the drop. An independent parser reads the frame and checks its checksums.
    pub(crate) fn send_frame(&mut self, frame: &[u8]) -> Result<Vec<u8>, DropReason> {
        let out = self.send_unchecked(frame)?;
        if let Err(wrong) = reading::check(&out) {
            panic!("{:?} left with a wrong checksum: {wrong}", reading::ends(&out));
        }
        Ok(out)
    }

    /// Like [`Bench::send_frame`], for frames that come in damaged.
    pub(crate) fn send_unchecked(&mut self, frame: &[u8]) -> Result<Vec<u8>, DropReason> {
        self.inner.send(frame)
    }

    /// Sends a packet in words.
    pub(crate) fn send(&mut self, packet: &str) -> Result<Vec<u8>, DropReason> {
        self.send_frame(&words::frame(packet))
    }

    /// Sends a packet that must come out. Returns its source and destination afterwards.
    #[track_caller]
    pub(crate) fn passes(&mut self, packet: &str) -> (SocketAddr, SocketAddr) {
        match self.send(packet) {
            Ok(frame) => reading::ends(&frame),
            Err(reason) => panic!("`{packet}` was dropped: {reason}"),
        }
    }

    /// Sends a packet that must come out as another, byte for byte.
    #[track_caller]
    pub(crate) fn becomes(&mut self, packet: &str, expected: &str) {
        let out =
            self.send(packet).unwrap_or_else(|reason| panic!("`{packet}` was dropped: {reason}"));
        let wanted = words::frame(expected);
        if out != wanted {
            panic!(
                "`{packet}` should become `{expected}`\n  is     {out:02x?}\n  should {wanted:02x?}\n  {:?}",
                reading::ends(&out)
            );
        }
    }

    /// Sends a packet that must come out as it came.
    #[track_caller]
    pub(crate) fn unchanged(&mut self, packet: &str) {
        self.becomes(packet, packet);
    }

    /// Sends a packet that must be dropped for this reason.
    #[track_caller]
    pub(crate) fn drops(&mut self, packet: &str, reason: DropReason) {
        match self.send(packet) {
            Ok(out) => panic!(
                "`{packet}` came out as {:?}, and should have been dropped: {reason}",
                reading::ends(&out)
            ),
            Err(other) => assert_eq!((other, self.has_told()), (reason, false), "`{packet}`"),
        }
    }

    /// Like `drops`; the sender must be told.
    #[track_caller]
    pub(crate) fn rejects(&mut self, packet: &str, reason: DropReason) {
        match self.send(packet) {
            Ok(out) => panic!(
                "`{packet}` came out as {:?}, and should have been rejected: {reason}",
                reading::ends(&out)
            ),
            Err(other) => assert_eq!((other, self.has_told()), (reason, true), "`{packet}`"),
        }
    }

    /// Lets time pass, and ends flows whose lifetime is over.
    pub(crate) fn wait(&mut self, seconds: u64) {
        self.inner.wait(seconds * SECOND);
    }

    /// A value of the latest flow.
    #[track_caller]
    pub(crate) fn value(&self, function: &str, name: &str) -> Option<u64> {
        let mut values = self.names.iter().zip(self.inner.values());
        let found = values.find(|(known, _)| **known == (function, name));
        found.unwrap_or_else(|| panic!("{function} shows no `{name}`")).1
    }

    /// All counters that are not 0, with their names.
    pub(crate) fn counters(&mut self) -> Vec<(String, u64)> {
        let all = self.inner.counted().into_iter().filter(|counted| counted.value > 0);
        all.map(|counted| (counted.name, counted.value)).collect()
    }
}
