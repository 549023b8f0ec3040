//! Compiles the DPDK driver's C half into a shared object of its own, which the library embeds and loads when a DPDK port is opened.
//! Without DPDK's development files there is none, and the driver says so.

use std::path::{Path, PathBuf};
use std::process::Command;

const SOURCES: [&str; 2] = ["dpdk/shim.c", "dpdk/shim.h"];
/// The libraries that the shim calls. DPDK's environment loads the drivers itself.
const LIBRARIES: [&str; 4] = ["-lrte_eal", "-lrte_ethdev", "-lrte_mbuf", "-lrte_mempool"];
const REMEDY: &str = "install libdpdk-dev and pkg-config, and build again";

fn main() {
    for source in SOURCES {
        println!("cargo::rerun-if-changed={source}");
    }
    for variable in ["PKG_CONFIG_PATH", "PKG_CONFIG_LIBDIR"] {
        println!("cargo::rerun-if-env-changed={variable}");
    }
    // For the tests: those of the driver are skipped without DPDK.
    println!("cargo::rustc-check-cfg=cfg(holdfast_dpdk)");
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let (image, absent) = match build(&out) {
        Ok(path) => {
            println!("cargo::rustc-cfg=holdfast_dpdk");
            (format!("Some(include_bytes!({path:?}))"), String::new())
        }
        Err(reason) => ("None".to_owned(), reason),
    };
    let text = format!("const IMAGE: Option<&[u8]> = {image};\nconst ABSENT: &str = {absent:?};\n");
    std::fs::write(out.join("dpdk_shim.rs"), text).expect("OUT_DIR can be written to");
}

fn build(out: &Path) -> Result<PathBuf, String> {
    watch_packages();
    if std::env::var_os("HOST") != std::env::var_os("TARGET") {
        return Err("this program was built without DPDK: it was built on a machine of another kind".to_owned());
    }
    let without = |why: &str| format!("this program was built without DPDK ({why}): {REMEDY}");
    let flags = pkg_config(&["--cflags", "libdpdk >= 22.11"]).ok_or_else(|| without("libdpdk 22.11 or newer was not there"))?;
    let search = pkg_config(&["--libs-only-L", "libdpdk"]).unwrap_or_default();
    let library = out.join("libholdfast_dpdk.so");
    // A shared object is no archive, which is what the crate's own commands make: its compiler, its flags, our command.
    let mut command = cc::Build::new().opt_level(3).pic(true).warnings(true).extra_warnings(true).get_compiler().to_command();
    command.args(flags.split_whitespace()).args(["-shared", SOURCES[0], "-o"]).arg(&library);
    command.args(search.split_whitespace()).args(LIBRARIES);
    match command.output() {
        Ok(output) if output.status.success() => Ok(library),
        Ok(output) => {
            for line in String::from_utf8_lossy(&output.stderr).lines() {
                println!("cargo::warning={line}");
            }
            Err(without("its C half does not compile against this libdpdk"))
        }
        Err(error) => Err(without(&format!("{error}"))),
    }
}

fn pkg_config(arguments: &[&str]) -> Option<String> {
    let output = Command::new("pkg-config").args(arguments).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Looks again when a package has come or gone. A file that is not there would make cargo look every time, a directory does not.
fn watch_packages() {
    let known = pkg_config(&["--variable", "pc_path", "pkg-config"]).unwrap_or_default();
    let usual = ["/usr/lib/x86_64-linux-gnu/pkgconfig", "/usr/lib/aarch64-linux-gnu/pkgconfig", "/usr/lib/pkgconfig"];
    for directory in known.trim().split(':').chain(usual).filter(|directory| Path::new(directory).is_dir()) {
        println!("cargo::rerun-if-changed={directory}");
    }
}
