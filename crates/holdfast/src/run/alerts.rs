//! Files of alerts, a line of JSON each, in the words of Suricata's EVE.
//!
//! In: alerts of functions, each once ([`LoggedPackets`] has dropped those of a replay).
//! Out: lines at the ends of the files that the functions name, written by a thread per
//! file. A file that is full becomes `FILE.1`, in place of an earlier one. Never: a wait
//! of the packet loop, or more than two files of [`MOST`] bytes.
//!
//! [`LoggedPackets`]: holdfast_node::manager::Manager::take_logged

use super::lines::{Lines, say};
use crate::config::Plan;
use crate::files;
use holdfast_nf::Alert;
use holdfast_wire::FlowKey;
use holdfast_wire::header::proto;
use serde::Serialize;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fs::{File, Metadata};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;
use time::OffsetDateTime;

/// Maximum size of a file, bytes.
const MOST: u64 = 16 << 20;

/// The fields of an event, in Suricata's order.
#[derive(Serialize)]
struct Event<'a> {
    timestamp: String,
    in_iface: &'a str,
    event_type: &'static str,
    src_ip: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    src_port: Option<u16>,
    dest_ip: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    dest_port: Option<u16>,
    proto: String,
    alert: AlertFields<'a>,
}

#[derive(Serialize)]
struct AlertFields<'a> {
    action: &'static str,
    gid: u32,
    signature_id: u32,
    rev: u32,
    signature: &'a str,
    category: &'a str,
}

/// The line of an alert about a packet that came in by `port`.
fn line(alert: &Alert, key: &FlowKey, port: &str, now: SystemTime) -> String {
    let now = OffsetDateTime::from(now);
    let (date, time) = (now.date(), now.time());
    let has_ports = [proto::TCP, proto::UDP].map(u16::from).contains(&key.protocol);
    let proto = match u8::try_from(key.protocol) {
        Ok(proto::TCP) => "TCP".to_owned(),
        Ok(proto::UDP) => "UDP".to_owned(),
        Ok(proto::ICMP) => "ICMP".to_owned(),
        Ok(proto::ICMPV6) => "IPv6-ICMP".to_owned(),
        _ => format!("{:03}", key.protocol),
    };
    let event = Event {
        timestamp: format!(
            "{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:06}+0000",
            date.year(),
            u8::from(date.month()),
            date.day(),
            time.hour(),
            time.minute(),
            time.second(),
            time.microsecond()
        ),
        in_iface: port,
        event_type: "alert",
        src_ip: key.source_ip().to_string(),
        src_port: has_ports.then_some(key.source_port),
        dest_ip: key.destination_ip().to_string(),
        dest_port: has_ports.then_some(key.destination_port),
        proto,
        alert: AlertFields {
            action: if alert.is_blocked { "blocked" } else { "allowed" },
            gid: alert.gid,
            signature_id: alert.sid,
            rev: alert.rev,
            signature: &alert.signature,
            category: &alert.category,
        },
    };
    // Texts and numbers always have a form in JSON.
    serde_json::to_string(&event).unwrap_or_default() + "\n"
}

/// A file, as its thread writes it. Lines that cannot be written are lost and counted.
struct AlertFile {
    path: PathBuf,
    most: u64,
    file: Option<(File, u64)>,
    /// Lines lost since the file could last be written.
    lost: u64,
}

impl AlertFile {
    fn append(&mut self, line: &[u8]) -> io::Result<()> {
        if self.file.as_ref().is_some_and(|(file, _)| !is_at(file, &self.path)) {
            // Somebody has moved it (logrotate), or removed it.
            self.file = None;
        }
        if let Some((_, size)) = self.file
            && size > 0
            && size + line.len() as u64 > self.most
        {
            let mut old = self.path.clone().into_os_string();
            old.push(".1");
            self.file = None;
            std::fs::rename(&self.path, old)?;
        }
        if self.file.is_none() {
            let file = files::append(&self.path)?;
            let size = file.metadata()?.len();
            self.file = Some((file, size));
        }
        let Some((file, size)) = &mut self.file else { return Ok(()) };
        if let Err(error) = file.write_all(line) {
            // A full disk may have taken a part, and the next line would be joined to it.
            let _ = file.set_len(*size);
            return Err(error);
        }
        *size += line.len() as u64;
        Ok(())
    }
}

/// True if the path leads to this file.
fn is_at(file: &File, path: &Path) -> bool {
    let identity = |of: io::Result<Metadata>| of.ok().map(|of| (of.dev(), of.ino()));
    identity(file.metadata()) == identity(std::fs::metadata(path))
}

impl Write for AlertFile {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let written = self.append(line);
        let path = self.path.display();
        match written {
            Ok(()) if self.lost > 0 => {
                say(&format!("alerts are written to {path} again; {} are missing", self.lost));
                self.lost = 0;
            }
            Ok(()) => {}
            Err(error) => {
                self.file = None;
                if self.lost == 0 {
                    say(&format!("alerts cannot be written to {path}: {error}"));
                }
                self.lost += 1;
            }
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The files of alerts that functions name.
#[derive(Default)]
pub(super) struct AlertFiles(BTreeMap<PathBuf, Lines>);

impl AlertFiles {
    /// Begins the files of all functions of the plan. A file that cannot be written is
    /// tried again with each alert.
    pub(super) fn begin(plan: &Plan) -> io::Result<AlertFiles> {
        let mut files = AlertFiles::default();
        let functions = plan.chains.iter().flat_map(|chain| &chain.functions);
        // A function that has alerts has a first one.
        for Alert { file, .. } in functions.filter_map(|function| function.alert(0)) {
            let Entry::Vacant(vacant) = files.0.entry(file) else { continue };
            let file = vacant.key();
            if let Err(error) = files::append(file) {
                say(&format!("alerts cannot be written to {}: {error}", file.display()));
            }
            let lines = Lines::to(AlertFile::new(file, MOST))?;
            vacant.insert(lines);
        }
        Ok(files)
    }

    /// Writes an alert about a packet that came in by `port`.
    pub(super) fn write(&self, alert: &Alert, key: &FlowKey, port: &str) {
        let Some(lines) = self.0.get(&alert.file) else { return };
        let lost = lines.write(line(alert, key, port, SystemTime::now()));
        if lost > 0 {
            let path = alert.file.display();
            say(&format!("{lost} alerts are missing in {path}: its disk is slow"));
        }
    }

    /// Writes what is queued at the end of the process, if the disk takes it in time.
    pub(super) fn finish(&self) {
        self.0.values().for_each(Lines::finish);
    }
}

impl AlertFile {
    fn new(path: &Path, most: u64) -> AlertFile {
        AlertFile { path: path.to_owned(), most, file: None, lost: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, UNIX_EPOCH};

    fn alert() -> Alert {
        Alert {
            is_blocked: true,
            gid: 1,
            sid: 7,
            rev: 2,
            signature: "a \"mark\"".to_owned(),
            category: "bad-unknown".to_owned(),
            file: PathBuf::from("/eve.json"),
        }
    }

    /// An alert has the fields of EVE; a protocol without ports has none.
    #[test]
    fn an_alert_is_a_line_of_json() {
        let now = UNIX_EPOCH + Duration::from_micros(1_700_000_000_000_042);
        let mut key = FlowKey {
            source: holdfast_wire::map_v4([10, 0, 0, 2]),
            destination: holdfast_wire::map_v4([192, 0, 2, 9]),
            source_port: 1000,
            destination_port: 80,
            protocol: 6,
            ..FlowKey::default()
        };
        assert_eq!(
            line(&alert(), &key, "lan", now),
            "{\"timestamp\":\"2023-11-14T22:13:20.000042+0000\",\"in_iface\":\"lan\",\
             \"event_type\":\"alert\",\"src_ip\":\"10.0.0.2\",\"src_port\":1000,\
             \"dest_ip\":\"192.0.2.9\",\"dest_port\":80,\"proto\":\"TCP\",\
             \"alert\":{\"action\":\"blocked\",\"gid\":1,\"signature_id\":7,\"rev\":2,\
             \"signature\":\"a \\\"mark\\\"\",\"category\":\"bad-unknown\"}}\n"
        );
        (key.protocol, key.source_port) = (1, 0);
        let ping = line(&Alert { is_blocked: false, ..alert() }, &key, "lan", now);
        assert!(ping.contains("\"proto\":\"ICMP\"") && !ping.contains("port"), "{ping}");
        assert!(ping.contains("\"action\":\"allowed\""), "{ping}");
        key.protocol = 47;
        assert!(line(&alert(), &key, "lan", now).contains("\"proto\":\"047\""));
    }

    /// A full file becomes the old one, and the old one before it goes: two files at
    /// most, of bounded size. A process that begins goes on at the file's end.
    #[test]
    fn files_are_bounded() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("eve.json");
        let read = |path: &Path| std::fs::read_to_string(path).unwrap_or_default();
        let mut file = AlertFile::new(&path, 10);
        for line in ["1234\n", "2345\n", "3456\n"] {
            file.write_all(line.as_bytes()).unwrap();
        }
        let old = directory.path().join("eve.json.1");
        assert_eq!((read(&path), read(&old)), ("3456\n".into(), "1234\n2345\n".into()));
        let mut file = AlertFile::new(&path, 10);
        file.write_all(b"4567\n").unwrap();
        assert_eq!(read(&path), "3456\n4567\n");
        file.write_all(b"a line of more than ten\n").unwrap();
        assert_eq!((read(&path).len(), read(&old)), (24, "3456\n4567\n".into()));
        file.write_all(b"5678\n").unwrap();
        assert_eq!(read(&path), "5678\n");
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 2);
    }

    /// A file that was moved or removed gets no more lines; a new one does.
    #[test]
    fn a_file_may_be_moved_meanwhile() {
        let directory = tempfile::tempdir().unwrap();
        let (path, moved) = (directory.path().join("eve.json"), directory.path().join("moved"));
        let read = |path: &Path| std::fs::read_to_string(path).unwrap();
        let mut file = AlertFile::new(&path, 10);
        file.write_all(b"1234\n").unwrap();
        std::fs::rename(&path, &moved).unwrap();
        file.write_all(b"2345\n").unwrap();
        assert_eq!((read(&moved), read(&path)), ("1234\n".into(), "2345\n".into()));
        std::fs::remove_file(&path).unwrap();
        file.write_all(b"3456\n").unwrap();
        assert_eq!(read(&path), "3456\n");
        assert_eq!(file.lost, 0);
    }

    /// A place that cannot be written loses lines, and neither stops nor blocks the
    /// writer: a directory, a pipe that nobody reads. Lines are written again once it can
    /// be.
    #[test]
    fn what_cannot_be_written_is_lost_and_counted() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("eve.json");
        std::fs::create_dir(&path).unwrap();
        let mut file = AlertFile::new(&path, 10);
        file.write_all(b"1234\n").unwrap();
        std::fs::remove_dir(&path).unwrap();
        let (kind, mode) = (rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU);
        rustix::fs::mknodat(rustix::fs::CWD, &path, kind, mode, 0).unwrap();
        file.write_all(b"2345\n").unwrap();
        assert_eq!(file.lost, 2);
        std::fs::remove_file(&path).unwrap();
        file.write_all(b"3456\n").unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "3456\n");
        assert_eq!(file.lost, 0);
    }
}
