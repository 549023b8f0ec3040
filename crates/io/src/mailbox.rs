//! Messages with descriptors between two processes of a host: a pair of Unix sockets that keeps the messages apart.

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;

/// The longest message, bytes. What is longer is passed as a descriptor.
pub const MAX_MESSAGE: usize = 16 << 10;
/// Descriptors of a message, at most.
const MAX_FDS: usize = 8;

/// One end. When the other one is closed, or its process has ended, what was sent before can still be received.
pub struct Mailbox(OwnedFd);

impl Mailbox {
    /// Two ends.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn pair() -> io::Result<(Mailbox, Mailbox)> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (one, other) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        Ok((Mailbox(one), Mailbox(other)))
    }

    /// An end that was passed to this process.
    pub fn of(fd: OwnedFd) -> Mailbox {
        Mailbox(fd)
    }

    /// Readable when there is a message.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// Sends a message, without waiting.
    ///
    /// # Errors
    /// `WouldBlock` if the other side does not read; `InvalidInput` if the message is too long; else what the kernel says.
    pub fn send(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        if bytes.is_empty() || bytes.len() > MAX_MESSAGE || fds.len() > MAX_FDS {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the message is too long"));
        }
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(fds));
        }
        // No signal if the other side is gone: that is an error like any other.
        sendmsg(&self.0, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)?;
        Ok(())
    }

    /// The next message, `None` if there is none now.
    ///
    /// # Errors
    /// `UnexpectedEof` if the other side is gone and everything was received; else what the kernel says.
    pub fn receive(&self) -> io::Result<Option<(Vec<u8>, Vec<OwnedFd>)>> {
        let mut bytes = vec![0; MAX_MESSAGE];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let got = loop {
            match recvmsg(&self.0, &mut [IoSliceMut::new(&mut bytes)], &mut control, RecvFlags::CMSG_CLOEXEC) {
                Ok(got) => break got,
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) => return Ok(None),
                Err(error) => return Err(error.into()),
            }
        };
        if got.bytes == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        bytes.truncate(got.bytes);
        let mut fds = Vec::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                fds.extend(rights);
            }
        }
        Ok(Some((bytes, fds)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::{Read, Write};

    /// Messages stay apart and bring their descriptors along; what a side sent before it was gone is received, and then its end.
    #[test]
    fn messages_and_descriptors_outlive_their_sender() {
        let (one, other) = Mailbox::pair().unwrap();
        let (reader, writer) = io::pipe().unwrap();
        one.send(b"first", &[]).unwrap();
        one.send(b"second", &[reader.as_fd(), writer.as_fd()]).unwrap();
        drop((one, reader, writer));
        assert_eq!(other.receive().unwrap().unwrap().0, b"first");
        let (bytes, fds) = other.receive().unwrap().unwrap();
        assert_eq!((bytes.as_slice(), fds.len()), (&b"second"[..], 2));
        let mut pipes = fds.into_iter().map(File::from);
        let (mut reader, mut writer) = (pipes.next().unwrap(), pipes.next().unwrap());
        writer.write_all(b"whole").unwrap();
        drop(writer);
        let mut text = String::new();
        reader.read_to_string(&mut text).unwrap();
        assert_eq!(text, "whole");
        assert_eq!(other.receive().unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        assert!(other.send(b"nobody reads it", &[]).is_err());
    }

    /// A side that does not read blocks nobody, and what is too long is refused rather than cut.
    #[test]
    fn nobody_waits() {
        let (one, other) = Mailbox::pair().unwrap();
        assert!(other.receive().unwrap().is_none());
        assert_eq!(one.send(&[7; MAX_MESSAGE + 1], &[]).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        let full = (0..100_000).find_map(|_| one.send(&[7; MAX_MESSAGE], &[]).err()).unwrap();
        assert_eq!(full.kind(), io::ErrorKind::WouldBlock);
        assert_eq!(other.receive().unwrap().unwrap().0, [7; MAX_MESSAGE]);
    }
}
