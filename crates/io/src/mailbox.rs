//! Messages with descriptors between two processes of a host: a pair of Unix sockets that
//! preserves message boundaries.

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;

/// The longest message, bytes. Longer contents are passed as a descriptor.
pub const MAX_MESSAGE: usize = 16 << 10;
/// Maximum number of descriptors of a message.
const MAX_FDS: usize = 8;

/// An end. After the other one is closed, or its process has ended, earlier messages can
/// still be received.
pub struct Mailbox {
    socket: OwnedFd,
    /// Receive buffer, [`MAX_MESSAGE`] bytes.
    space: Box<[u8]>,
    /// Messages for which the other side had no room yet.
    unsent: VecDeque<(Vec<u8>, Vec<OwnedFd>)>,
}

impl Mailbox {
    /// Makes two ends.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn pair() -> io::Result<(Mailbox, Mailbox)> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (one, other) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        Ok((Mailbox::of(one), Mailbox::of(other)))
    }

    /// An end that was passed to this process.
    pub fn of(fd: OwnedFd) -> Mailbox {
        Mailbox { socket: fd, space: vec![0; MAX_MESSAGE].into(), unsent: VecDeque::new() }
    }

    /// Readable when there is a message.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Sends a message behind earlier ones, now or with a later [`Mailbox::flush`]. Does
    /// nothing if the other side is gone.
    ///
    /// # Errors
    /// `InvalidInput` if the message is too long; else there are no descriptors left.
    pub fn send(&mut self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        if bytes.is_empty() || bytes.len() > MAX_MESSAGE || fds.len() > MAX_FDS {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the message is too long"));
        }
        let fds = fds.iter().map(|fd| fd.try_clone_to_owned()).collect::<io::Result<Vec<_>>>()?;
        self.unsent.push_back((bytes.to_vec(), fds));
        self.flush();
        Ok(())
    }

    /// Sends the unsent messages.
    pub fn flush(&mut self) {
        while let Some((bytes, fds)) = self.unsent.front() {
            let fds: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
            match self.send_now(bytes, &fds) {
                Err(rustix::io::Errno::AGAIN) => return,
                Err(rustix::io::Errno::INTR) => continue,
                Ok(()) | Err(_) => {}
            }
            self.unsent.pop_front();
        }
    }

    fn send_now(&self, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> rustix::io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(fds));
        }
        // A missing other side is an error, not a signal.
        sendmsg(&self.socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)?;
        Ok(())
    }

    /// The next message, or `None`.
    ///
    /// # Errors
    /// `UnexpectedEof` if the other side is gone and everything was received; else the
    /// kernel's error.
    pub fn receive(&mut self) -> io::Result<Option<(Vec<u8>, Vec<OwnedFd>)>> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let got = loop {
            match recvmsg(
                &self.socket,
                &mut [IoSliceMut::new(&mut self.space)],
                &mut control,
                RecvFlags::CMSG_CLOEXEC,
            ) {
                Ok(got) => break got,
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) => return Ok(None),
                Err(error) => return Err(error.into()),
            }
        };
        if got.bytes == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let mut fds = Vec::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                fds.extend(rights);
            }
        }
        Ok(Some((self.space[..got.bytes].to_vec(), fds)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::{Read, Write};

    /// Messages stay apart and bring their descriptors along. Messages that a side sent
    /// before it was gone are received, and then its end.
    #[test]
    fn messages_and_descriptors_outlive_their_sender() {
        let (mut one, mut other) = Mailbox::pair().unwrap();
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
        assert!(other.send(b"nobody reads it", &[]).is_ok());
    }

    /// A side that does not read blocks no other and loses nothing. A message that is too
    /// long is refused rather than cut.
    #[test]
    fn nobody_waits() {
        let (mut one, mut other) = Mailbox::pair().unwrap();
        assert!(other.receive().unwrap().is_none());
        assert_eq!(
            one.send(&[7; MAX_MESSAGE + 1], &[]).unwrap_err().kind(),
            io::ErrorKind::InvalidInput
        );
        for number in 0..1000u32 {
            one.send(&[&number.to_le_bytes()[..], &[7; 8000]].concat(), &[]).unwrap();
        }
        assert!(!one.unsent.is_empty());
        for number in 0..1000u32 {
            one.flush();
            assert_eq!(other.receive().unwrap().unwrap().0[..4], number.to_le_bytes());
        }
        assert!(other.receive().unwrap().is_none());
    }
}
