//! The program `holdfast`, which the laboratory starts as anybody else does.

use holdfast_control::exit::{self, Failure};
use std::path::PathBuf;

/// The file of `holdfast`: `$HOLDFAST_BIN`, or the one of the directory of this program
/// (of a test's program: the directory above).
///
/// # Errors
/// If there is none: with the remedy.
pub fn binary() -> Result<PathBuf, Failure> {
    const REMEDY: &str = "build it (`cargo build -p holdfast`), or set HOLDFAST_BIN";
    if let Some(path) = std::env::var_os("HOLDFAST_BIN").filter(|path| !path.is_empty()) {
        let path = PathBuf::from(path);
        let missing = || {
            let message = format!("there is no {} (HOLDFAST_BIN): {REMEDY}", path.display());
            Failure::new(exit::UNAVAILABLE, message)
        };
        return if path.is_file() { Ok(path) } else { Err(missing()) };
    }
    let unknown = |error: std::io::Error| {
        Failure::new(exit::UNAVAILABLE, format!("this program's own file: {error}"))
    };
    let own = std::env::current_exe().map_err(unknown)?;
    let beside = own.ancestors().skip(1).take(2).map(|directory| directory.join("holdfast"));
    beside.into_iter().find(|path| path.is_file()).ok_or_else(|| {
        let message = format!("there is no `holdfast` beside {}: {REMEDY}", own.display());
        Failure::new(exit::UNAVAILABLE, message)
    })
}
