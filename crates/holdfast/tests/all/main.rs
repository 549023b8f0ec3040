//! The daemon and its commands, seen from outside, in a single program, so that the
//! daemon's library is linked once.

mod bfd_config;
mod captures;
mod cli;
mod clusters;
mod config;
mod control;
mod control_api;
mod control_config;
mod election;
mod etcd_config;
mod guide;
mod hosts_config;
mod incarnations;
mod keys;
mod pages;
mod reference;
mod switches_config;
mod vlan_config;
