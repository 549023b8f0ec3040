//! `holdfast bench functions`: what the functions cost.
//!
//! Three questions, each with a file of its own. [`packets`]: the time per packet of each
//! function alone, and of the papers' chains. [`payload`]: bytes per second of functions
//! that read payload, beside the library that each is made of. [`rules`]: the time per
//! new flow by the number of a firewall's rules. Every case first looks at its result.
//! The cases take turns, so that a noisy machine disturbs all alike.

pub mod packets;
pub mod payload;
pub mod rules;
