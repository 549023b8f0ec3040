//! A pair of sessions on virtual time, sessions with keys, all sessions of a box, and
//! whatever else anybody might send.

mod anything;
mod keys;
mod one_pair;
mod pair;
mod several;
