//! Compiles C halves, for build scripts: each becomes a shared object of its own, which
//! its crate embeds and loads when it is asked for. If the development files of its
//! library are missing, there is no object, and the crate embeds the reason.
//!
//! In: sources, and a module of pkg-config. Out: a file `NAME_shim.rs` in `OUT_DIR` with
//! `IMAGE` and `ABSENT`, and the cfg `holdfast_NAME` if there is an object. Never: a
//! build that fails for want of a library.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, reason = "a build script speaks to cargo so")]

use std::path::{Path, PathBuf};
use std::process::Command;

/// A C half.
pub struct Shim {
    /// The name, also in the name of the file with the result (`NAME_shim.rs`).
    pub name: &'static str,
    /// The file that is compiled, and the headers that it includes.
    pub sources: &'static [&'static str],
    /// pkg-config's module.
    pub module: &'static str,
    /// The module's oldest version.
    pub oldest: &'static str,
    /// The name that people use.
    pub title: &'static str,
    /// The libraries that it calls.
    pub libraries: &'static [&'static str],
    /// The remedy if the module is missing.
    pub remedy: &'static str,
}

/// Compiles these, of the crate whose build script calls it.
///
/// # Panics
/// If cargo does not call it.
pub fn build(shims: &[Shim]) {
    for variable in ["PKG_CONFIG_PATH", "PKG_CONFIG_LIBDIR"] {
        println!("cargo::rerun-if-env-changed={variable}");
    }
    watch_packages();
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    for shim in shims {
        // For the tests: those that need the shared object are skipped if it is missing.
        println!("cargo::rustc-check-cfg=cfg(holdfast_{})", shim.name);
        for source in shim.sources {
            println!("cargo::rerun-if-changed={source}");
        }
        let (image, absent) = match shim.build(&out) {
            Ok(path) => {
                println!("cargo::rustc-cfg=holdfast_{}", shim.name);
                (format!("Some(include_bytes!({path:?}))"), String::new())
            }
            Err(reason) => ("None".to_owned(), reason),
        };
        let text =
            format!("const IMAGE: Option<&[u8]> = {image};\nconst ABSENT: &str = {absent:?};\n");
        std::fs::write(out.join(format!("{}_shim.rs", shim.name)), text)
            .expect("OUT_DIR can be written to");
    }
}

impl Shim {
    fn build(&self, out: &Path) -> Result<PathBuf, String> {
        let Shim { name, sources, module, oldest, title, libraries, remedy } = self;
        if std::env::var_os("HOST") != std::env::var_os("TARGET") {
            return Err(format!(
                "this program was built without {title}: it was built on a machine of another kind"
            ));
        }
        let without =
            |why: &str| format!("this program was built without {title} ({why}): {remedy}");
        let flags = pkg_config(&["--cflags", &format!("{module} >= {oldest}")])
            .ok_or_else(|| without(&format!("{module} {oldest} or newer was not there")))?;
        let search = pkg_config(&["--libs-only-L", module]).unwrap_or_default();
        let library = out.join(format!("libholdfast_{name}.so"));
        // A shared object is no archive, which is what the crate's own commands make: its
        // compiler, its flags, our command.
        let mut command = cc::Build::new()
            .opt_level(3)
            .pic(true)
            .warnings(true)
            .extra_warnings(true)
            .get_compiler()
            .to_command();
        command.args(flags.split_whitespace()).args(["-shared", sources[0], "-o"]).arg(&library);
        command.args(search.split_whitespace()).args(*libraries);
        match command.output() {
            Ok(output) if output.status.success() => Ok(library),
            Ok(output) => {
                for line in String::from_utf8_lossy(&output.stderr).lines() {
                    println!("cargo::warning={line}");
                }
                Err(without(&format!("its C half does not compile against this {module}")))
            }
            Err(error) => Err(without(&format!("{error}"))),
        }
    }
}

fn pkg_config(arguments: &[&str]) -> Option<String> {
    let output = Command::new("pkg-config").args(arguments).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Looks again when a package has come or gone. A file that is not there would make cargo
/// look every time, a directory does not.
fn watch_packages() {
    let known = pkg_config(&["--variable", "pc_path", "pkg-config"]).unwrap_or_default();
    let usual = [
        "/usr/lib/x86_64-linux-gnu/pkgconfig",
        "/usr/lib/aarch64-linux-gnu/pkgconfig",
        "/usr/lib/pkgconfig",
    ];
    for directory in
        known.trim().split(':').chain(usual).filter(|directory| Path::new(directory).is_dir())
    {
        println!("cargo::rerun-if-changed={directory}");
    }
}
