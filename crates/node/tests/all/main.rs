//! Tests of the state machines with one another, without a machine: one program, which is
//! linked once.

mod coordinator;
mod coordinator_log;
mod coordinator_names;
mod demotion;
mod hosts;
mod listing;
mod moving;
mod noting;
mod pressure;
#[path = "../../../state/tests/all/random.rs"]
mod random;
mod ranking;
mod refusing;
mod replaying;
mod restoring;
mod rules;
mod runtime;
mod scaling;
mod spot;
mod state_server;
mod switch;
