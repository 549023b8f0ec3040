//! The daemon, and the commands that belong to it. The program `holdfast` puts these together with the laboratory's, of which nothing is here.
#![forbid(unsafe_code)]

pub mod cli;
pub mod config;
pub mod control;
pub mod explain;
mod files;
pub mod host_check;
pub mod live_check;
pub mod run;

/// Every program with this library in it has runtimes, and these may have standbys that share their heap.
#[global_allocator]
static ALLOCATOR: holdfast_io::CountingAllocator = holdfast_io::CountingAllocator;
