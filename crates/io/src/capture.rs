//! Packets kept for people: appended to a capture file, with a comment that gives the
//! reason.
//!
//! Each is a section of its own (pcapng, section 4.1), so that appending does not need to
//! read the file, and an entry cut off by a full disk spoils no other.

use pcap_file::DataLink;
use pcap_file::pcapng::PcapNgWriter;
use pcap_file::pcapng::blocks::enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption};
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};
use std::borrow::Cow;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::SystemTime;

/// Appends an Ethernet frame to a capture that only its owner may read, unless the
/// capture has `most` bytes already.
///
/// # Errors
/// The kernel's error; `StorageFull` if the capture is full.
pub fn append(path: &Path, most: u64, frame: &[u8], comment: &str) -> io::Result<()> {
    let mut section = Vec::with_capacity(frame.len() + 512);
    let invalid =
        |error: pcap_file::PcapError| io::Error::new(io::ErrorKind::InvalidData, error.to_string());
    let mut writer = PcapNgWriter::new(&mut section).map_err(invalid)?;
    let interface = InterfaceDescriptionBlock {
        linktype: DataLink::ETHERNET,
        snaplen: 0,
        // The resolution of time stamps: nanoseconds.
        options: vec![InterfaceDescriptionOption::IfTsResol(9)],
    };
    writer.write_pcapng_block(interface).map_err(invalid)?;
    let packet = EnhancedPacketBlock {
        interface_id: 0,
        timestamp: SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default(),
        original_len: frame.len() as u32,
        data: Cow::Borrowed(frame),
        options: vec![EnhancedPacketOption::Comment(Cow::Borrowed(comment))],
    };
    writer.write_pcapng_block(packet).map_err(invalid)?;
    let mut file = OpenOptions::new().append(true).create(true).mode(0o600).open(path)?;
    if file.metadata()?.len() + section.len() as u64 > most {
        return Err(io::Error::new(
            io::ErrorKind::StorageFull,
            format!("{} is full", path.display()),
        ));
    }
    file.write_all(&section)
}

#[cfg(test)]
mod tests {
    use super::*;
    use pcap_file::pcapng::{Block, PcapNgReader};

    /// Appended frames are there, each with its comment; a frame beyond the limit is
    /// refused and changes nothing.
    #[test]
    fn what_is_appended_can_be_read() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("kept.pcapng");
        let frames = [vec![1; 60], vec![2; 61], vec![3; 1514]];
        for (at, frame) in frames.iter().enumerate() {
            append(&path, 4096, frame, &format!("packet {at}")).unwrap();
        }
        let error = append(&path, 4096, &[4; 3000], "too much").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        let bytes = std::fs::read(&path).unwrap();
        let mut reader = PcapNgReader::new(&bytes[..]).unwrap();
        let mut found = Vec::new();
        while let Some(block) = reader.next_block() {
            if let Block::EnhancedPacket(packet) = block.unwrap() {
                let comment = packet.options.iter().find_map(|option| match option {
                    EnhancedPacketOption::Comment(text) => Some(text.clone().into_owned()),
                    _ => None,
                });
                found.push((packet.data.into_owned(), comment.unwrap()));
            }
        }
        let expected: Vec<_> = frames
            .into_iter()
            .enumerate()
            .map(|(at, frame)| (frame, format!("packet {at}")))
            .collect();
        assert_eq!(found, expected);
    }
}
