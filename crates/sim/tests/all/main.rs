//! Worlds: as texts, by their seeds, and planned ones.

mod disturbed;
mod script;
mod seeds;
