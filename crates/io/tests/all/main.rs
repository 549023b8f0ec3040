//! Ports and what processes share, on this machine. What DPDK does to a process is looked
//! at in a program of its own, what threads share in another one under loom.

mod dpdk;
mod ports;
mod vports;
