//! Fuzz targets as plain functions: any bytes go in, and a panic is a bug.
//!
//! The same functions are run in two ways. The gate runs each over its checked-in corpus
//! and over seeded mutations of it, in the build of all other tests (`tests/corpora.rs`).
//! libFuzzer runs them guided by coverage, for as long as one likes (`libfuzzer/`,
//! `tests/fuzz.sh` of the repository), and grows the corpora.
#![forbid(unsafe_code)]

mod assembly;
mod bfd;
mod config;
mod fabric;
mod http;
mod ips;
pub mod mutation;
mod packet;
mod records;
pub mod runner;
mod sealed;
mod selector;
mod whole_box;

use arbitrary::{Arbitrary, Unstructured};

/// A function to be fuzzed.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Also the name of its corpus.
    pub name: &'static str,
    /// Takes any bytes and panics only where there is a bug. The function keeps nothing
    /// from one run to the next, so an input that has failed once fails again.
    pub run: fn(&[u8]),
    /// Mutations of its corpus that the gate runs: fewer if a run costs more.
    pub mutations: u64,
}

/// All targets, the slowest first.
pub const TARGETS: &[Target] = &[
    Target { name: "whole_box", run: whole_box::run, mutations: 10_000 },
    Target { name: "records", run: records::run, mutations: 10_000 },
    Target { name: "fabric", run: fabric::run, mutations: 30_000 },
    Target { name: "sealed", run: sealed::run, mutations: 30_000 },
    Target { name: "bfd", run: bfd::run, mutations: 50_000 },
    Target { name: "http", run: http::run, mutations: 20_000 },
    Target { name: "ips", run: ips::run, mutations: 20_000 },
    Target { name: "config", run: config::run, mutations: 40_000 },
    Target { name: "packet", run: packet::run, mutations: 100_000 },
    Target { name: "selector", run: selector::run, mutations: 100_000 },
];

/// Reads the bytes as a `T` and uses all of them. `None` if they are too few for any `T`.
fn structured<'a, T: Arbitrary<'a>>(data: &'a [u8]) -> Option<T> {
    if data.len() < T::size_hint(0).0 {
        return None;
    }
    T::arbitrary_take_rest(Unstructured::new(data)).ok()
}
