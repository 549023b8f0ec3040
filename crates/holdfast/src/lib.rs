//! The one binary, as a library: what the command `holdfast` is made of.
#![forbid(unsafe_code)]

pub mod bench;
pub mod cli;
pub mod config;
pub mod control;
pub mod demo;
pub mod explain;
pub mod host_check;
pub mod lab;
pub mod live_check;
pub mod run;

/// Every program with this library in it has runtimes, and these may have standbys that share their heap.
#[global_allocator]
static ALLOCATOR: holdfast_io::CountingAllocator = holdfast_io::CountingAllocator;
