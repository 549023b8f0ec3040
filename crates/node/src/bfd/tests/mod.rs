//! A pair of sessions on virtual time, sessions with keys, all sessions of a box, and
//! arbitrary input.

mod anything;
mod keys;
mod one_pair;
mod pair;
mod several;
