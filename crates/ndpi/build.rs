//! Compiles the C half that calls nDPI.

use holdfast_shim_build::{Shim, build};

fn main() {
    build(&[Shim {
        name: "ndpi",
        sources: &["shim/shim.c", "shim/shim.h"],
        module: "libndpi",
        oldest: "4.2",
        title: "nDPI",
        libraries: &["-lndpi"],
        remedy: "install libndpi-dev and pkg-config, and build again",
    }]);
}
