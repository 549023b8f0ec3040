//! Ports and what processes share, on this machine. A program of its own looks at what
//! DPDK does to a process, and another one, under loom, at what threads share.

mod dpdk;
mod ports;
mod vports;
