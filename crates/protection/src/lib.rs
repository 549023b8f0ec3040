//! Where state lives, when a packet may leave, how what was lost is rebuilt.
#![forbid(unsafe_code)]

mod released;

pub use released::Released;
