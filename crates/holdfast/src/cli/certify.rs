//! `holdfast certify`: certificates for the control API.

use holdfast_control::certify::{Subject, certify as make};
use holdfast_control::exit::Failure;
use holdfast_control::table::print;
use serde_json::json;
use std::path::Path;
use time::OffsetDateTime;

const VERSION: u32 = 1;

pub(super) fn certify(
    directory: &Path,
    subjects: &[Subject],
    days: u32,
    json: bool,
) -> Result<(), Failure> {
    let made = make(directory, subjects, days, OffsetDateTime::now_utc())?;
    if json {
        let certificates: Vec<_> = subjects
            .iter()
            .zip(&made.directories)
            .map(|(subject, path)| json!({ "name": subject.name, "role": subject.role.name(), "directory": path }))
            .collect();
        let object = json!({ "version": VERSION, "directory": directory, "new_authority": made.has_new_authority, "certificates": certificates });
        return print(&format!("{object}\n"));
    }
    let mut text = String::new();
    if made.has_new_authority {
        text += &format!(
            "authority: {}; keep its key, ca.key, where nobody else comes\n",
            directory.display()
        );
    }
    for (subject, path) in subjects.iter().zip(&made.directories) {
        text += &format!("{} {}: {}\n", subject.role.name(), subject.name, path.display());
    }
    print(&text)
}
