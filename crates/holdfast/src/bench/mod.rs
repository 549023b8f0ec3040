//! `holdfast bench`: measurements that check their results before they take their times.
//!
//! Every figure is a ratio within one run on one machine; absolute times are printed for orientation.

pub mod datapath;
pub mod messages;
pub mod migration;
mod traffic;
