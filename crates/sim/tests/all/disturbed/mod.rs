//! Planned worlds: something dies, stands still or moves at every event or at chosen
//! times, and every connection goes on.

mod coordinator;
mod failures;
mod migration;
mod switch;
mod worlds;
