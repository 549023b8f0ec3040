//! The daemon and its commands. The laboratory's are another program.
#![forbid(unsafe_code)]

pub mod cli;
pub mod config;
pub mod control;
pub mod explain;
mod files;
pub mod host_check;
pub mod live_check;
mod program;
pub mod run;

pub use program::Program;

/// Programs with this library have runtimes, whose standbys may share their heap.
#[global_allocator]
static ALLOCATOR: holdfast_io::CountingAllocator = holdfast_io::CountingAllocator;
