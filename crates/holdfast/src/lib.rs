//! The one binary, as a library: what the command `holdfast` is made of.
#![forbid(unsafe_code)]

pub mod bench;
pub mod demo;
pub mod lab;
pub mod status;
