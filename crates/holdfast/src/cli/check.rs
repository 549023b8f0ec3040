//! `holdfast check`: this machine and a configuration file, or a running box.

use crate::config::{self, Memory, Plan};
use crate::files;
use crate::host_check::{self, Check, Outcome};
use crate::live_check;
use holdfast_control::exit::{self, Failure};
use holdfast_control::status::Status;
use holdfast_control::table::print;
use holdfast_control::table::{Style, Table, Tone};
use holdfast_control::{Client, MAX_FILE, Target};
use serde_json::{Value, json};
use std::io::Read;
use std::path::Path;
use std::time::{Duration, Instant};

const VERSION: u32 = 1;
/// The pause between two looks at a running box. Its processes report a few times as
/// often.
const LOOK_INTERVAL: Duration = Duration::from_millis(150);

pub(super) fn check(file: Option<&Path>, with_host: bool, json: bool) -> Result<(), Failure> {
    let text = file.map(text_of).transpose()?;
    let read = file
        .zip(text.as_deref())
        .map(|(file, text)| (name_of(file), plan_of(file, text, with_host)));
    let mut checks = if with_host { host_check::host() } else { Vec::new() };
    if let Some((_, Ok(plan))) = read.as_ref().filter(|_| with_host) {
        checks.push(host_check::memory(plan, &Memory::of(plan)));
        checks.extend(host_check::devices(plan));
        checks.extend(host_check::words(plan));
    }
    let mistake = match &read {
        Some((_, Err(mistake))) => Some(mistake),
        _ => None,
    };
    let warnings = match &read {
        Some((_, Ok(plan))) => plan.warnings(),
        _ => Vec::new(),
    };
    let code = if mistake.is_some() { exit::CONFIGURATION } else { host_check::code(&checks) };
    if json {
        let file = read.as_ref().map(|(name, result)| match result {
            Ok(plan) => right(name, plan, &warnings),
            Err(mistake) => {
                let mut said = place(name, mistake);
                (said["path"], said["ok"]) = (json!(name), json!(false));
                said
            }
        });
        print(&format!(
            "{}\n",
            json!({ "version": VERSION, "ok": code == 0, "checks": checks, "file": file })
        ))?;
    } else {
        let mut text = host_text(&checks, Style::of_stdout());
        if let Some((name, Ok(plan))) = &read {
            text += &format!("{name}: right: {}\n", counted(plan));
            warnings.iter().for_each(|warning| text += &format!("warning: {warning}\n"));
        }
        print(&text)?;
    }
    match (mistake, code) {
        (Some(mistake), _) => Err(Failure::new(code, mistake.to_string())),
        (None, 0) => Ok(()),
        (None, _) => Err(Failure::new(code, format!("a box cannot run here: {}", failed(&checks)))),
    }
}

/// Checks a running box.
pub(super) fn live(target: &Target, time: Duration, json: bool) -> Result<(), Failure> {
    let client = Client::to(target)?;
    let first = client.list("", u32::MAX)?;
    let end = Instant::now() + time;
    let mut looks: Vec<Status> = Vec::new();
    while looks.is_empty() || Instant::now() < end {
        looks.push(client.status()?);
        std::thread::sleep(LOOK_INTERVAL);
    }
    let checks = live_check::checks(&looks, [&first, &client.list("", u32::MAX)?]);
    let code = host_check::code(&checks);
    print(&match json {
        true => format!("{}\n", json!({ "version": VERSION, "ok": code == 0, "checks": checks })),
        false => host_text(&checks, Style::of_stdout()),
    })?;
    match code {
        0 => Ok(()),
        code => Err(Failure::new(code, format!("not as it must always be: {}", failed(&checks)))),
    }
}

fn failed(checks: &[Check]) -> String {
    let failed = checks
        .iter()
        .filter(|check| check.outcome == Outcome::Fail)
        .map(|check| check.name.as_str());
    failed.collect::<Vec<_>>().join(", ")
}

/// The configuration, with its files of keys and certificates if it is this machine's.
fn plan_of(file: &Path, text: &str, with_host: bool) -> Result<Plan, config::Mistake> {
    let name = name_of(file);
    let plan = config::read(&name, &config::attach(&name, text)?)?;
    if with_host {
        plan.read_keys()?;
        plan.read_bfd_keys()?;
        plan.read_identity()?;
    }
    Ok(plan)
}

pub(super) fn name_of(file: &Path) -> String {
    if file == Path::new("-") { "standard input".to_owned() } else { file.display().to_string() }
}

/// The text of a file, if its size is sensible.
pub(super) fn text_of(file: &Path) -> Result<String, Failure> {
    let failed = |error: std::io::Error| {
        Failure::new(exit::CONFIGURATION, format!("{}: {error}", name_of(file)))
    };
    let source: Box<dyn Read> = match file == Path::new("-") {
        true => Box::new(std::io::stdin()),
        false => Box::new(files::open(file).map_err(failed)?),
    };
    let mut bytes = Vec::new();
    // A byte more than allowed: the configuration's reader reports that the file is too
    // long.
    source.take(MAX_FILE as u64 + 1).read_to_end(&mut bytes).map_err(failed)?;
    match String::from_utf8(bytes) {
        Ok(text) => Ok(text),
        Err(error) => {
            let before = &error.as_bytes()[..error.utf8_error().valid_up_to()];
            let line = before.iter().filter(|byte| **byte == b'\n').count() + 1;
            Err(Failure::new(
                exit::CONFIGURATION,
                format!("{}:{line}: this is not UTF-8", name_of(file)),
            ))
        }
    }
}

/// A mistake or warning, with its file if that is one that the configuration names.
fn place(name: &str, mistake: &config::Mistake) -> Value {
    let mut said = json!({ "line": mistake.line, "column": mistake.column,
        "width": mistake.width, "message": mistake.message });
    if mistake.file != name {
        said["file"] = json!(mistake.file);
    }
    said
}

fn right(name: &str, plan: &Plan, warnings: &[config::Mistake]) -> Value {
    json!({ "path": name, "ok": true, "cluster": plan.cluster, "ports": plan.ports.len(),
        "chains": plan.chains.len(), "rules": plan.rules.len(), "runtimes": plan.runtimes(),
        "authenticated": plan.key.is_some(), "memory": Memory::of(plan), "warnings": warnings.iter().map(|warning| place(name, warning)).collect::<Vec<_>>() })
}

fn counted(plan: &Plan) -> String {
    let some =
        |count: usize, what: &str| format!("{count} {what}{}", if count == 1 { "" } else { "s" });
    [
        some(plan.ports.len(), "port"),
        some(plan.chains.len(), "chain"),
        some(plan.rules.len(), "rule"),
        some(plan.runtimes().into(), "runtime"),
        if plan.key.is_some() {
            "messages authenticated"
        } else if plan.hosts.is_empty() {
            "messages not authenticated (one machine needs no key)"
        } else {
            "nothing between the hosts authenticated (`fabric: { key: FILE }` would)"
        }
        .to_owned(),
    ]
    .join(", ")
}

fn host_text(checks: &[Check], style: Style) -> String {
    if checks.is_empty() {
        return String::new();
    }
    let mut table = Table::new(&["check", "result", "found"]);
    let mut remedies = String::new();
    for check in checks {
        let (word, tone) = match check.outcome {
            Outcome::Ok => ("ok", Tone::Good),
            Outcome::Warn => ("warn", Tone::Caution),
            Outcome::Fail => ("FAIL", Tone::Bad),
        };
        table.row(vec![
            (check.name.clone(), Tone::Plain),
            (word.to_owned(), tone),
            (check.found.clone(), Tone::Plain),
        ]);
        if let Some(remedy) = &check.remedy {
            remedies += &format!("{}: {remedy}\n", style.paint(&check.name, tone));
        }
    }
    let gap = if remedies.is_empty() { "" } else { "\n" };
    format!("{}{gap}{remedies}\n", table.text(style))
}
