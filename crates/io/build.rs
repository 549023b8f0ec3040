//! Compiles the C halves of drivers: DPDK's ports, and libfabric's control transport.

use holdfast_shim_build::{Shim, build};

const SHIMS: [Shim; 2] = [
    Shim {
        name: "dpdk",
        sources: &["dpdk/shim.c", "dpdk/shim.h", "shim_signals.h"],
        module: "libdpdk",
        oldest: "22.11",
        title: "DPDK",
        // DPDK's environment loads the drivers itself.
        libraries: &["-lrte_eal", "-lrte_ethdev", "-lrte_mbuf", "-lrte_mempool"],
        remedy: "install libdpdk-dev and pkg-config, and build again",
    },
    Shim {
        name: "libfabric",
        sources: &["libfabric/shim.c", "libfabric/shim.h", "shim_signals.h"],
        module: "libfabric",
        oldest: "1.17",
        title: "libfabric",
        libraries: &["-lfabric"],
        remedy: "install libfabric-dev and pkg-config, and build again",
    },
];

fn main() {
    build(&SHIMS);
}
