//! Cases of TCP: see docs/correctness.md, whose rows they are.

use super::{Connection, FAR, Rest, Stage, v4};
use anyhow::{Result, bail, ensure};
use holdfast_lab::until;
use holdfast_tests::TIMEOUT;
use holdfast_tests::conversation::flags::{ACK, FIN, RST, SYN};
use holdfast_tests::frames::{self, End, Listener, Segment};
use holdfast_tests::network::{CLIENT, SERVER};
use holdfast_tests::sockets::{Held, accepted, begin, crash, exchange, is_reset, listen, opened};
use std::io::{Error, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr};

/// Both ends send a SYN, and the two cross behind the box (RFC 9293, 3.5, figure 7).
pub(super) fn simultaneous_open<'a>(stage: &'a Stage<'a>) -> Result<Rest<'a>> {
    let (client, server) = stage.ends(CLIENT, SERVER);
    let (inside, outside) = (stage.inside.listen()?, stage.outside.listen()?);
    let held = [
        stage.inside.hold(format!("tcp dport {}", client.port()))?,
        stage.outside.hold(format!("tcp dport {}", server.port()))?,
    ];
    let one = begin(stage.inside.namespace, client, server)?;
    let is_first = |_, to, segment: &Segment| to == v4(server) && segment.flags == SYN;
    let (peer, _, first) = stage.see(&outside, "the client's SYN", is_first)?;
    let other = begin(stage.outside.namespace, server, SocketAddr::from(peer))?;
    let is_second = |from, to, segment: &Segment| {
        (from, to) == (v4(server), v4(client)) && segment.flags == SYN
    };
    let (_, _, second) = stage.see(&inside, "the server's SYN", is_second)?;
    Ok(Box::new(move || {
        held.into_iter().try_for_each(Held::release)?;
        stage.inside.deliver(&second)?;
        stage.outside.deliver(&first)?;
        opened(&one, stage.interrupt)?;
        opened(&other, stage.interrupt)?;
        exchange(&one, &other)
    }))
}

/// A SYN is lost with its host, which comes again from the same port with another
/// sequence number.
pub(super) fn another_syn<'a>(stage: &'a Stage<'a>) -> Result<Rest<'a>> {
    let (client, server) = stage.ends(CLIENT, SERVER);
    let outside = stage.outside.listen()?;
    let listener = listen(stage.outside.namespace, server)?;
    let held = stage.outside.hold(format!("tcp dport {}", server.port()))?;
    let first = begin(stage.inside.namespace, client, server)?;
    let is_syn = |to: End, segment: &Segment| to == v4(server) && segment.flags == SYN;
    let (_, lost, _) =
        stage.see(&outside, "the first SYN", |_, to, segment| is_syn(to, segment))?;
    crash(first)?;
    let second = begin(stage.inside.namespace, client, server)?;
    let is_another =
        |_, to, segment: &Segment| is_syn(to, segment) && segment.sequence != lost.sequence;
    stage.see(&outside, "the second SYN", is_another)?;
    Ok(Box::new(move || {
        held.release()?;
        opened(&second, stage.interrupt)?;
        exchange(&second, &accepted(&listener, stage.interrupt)?)
    }))
}

/// The answer to a SYN is lost, and so is the server's memory of it: the repeated SYN is
/// answered with another sequence number.
pub(super) fn two_answers<'a>(stage: &'a Stage<'a>) -> Result<Rest<'a>> {
    let (client, server) = stage.ends(CLIENT, SERVER);
    let inside = stage.inside.listen()?;
    let mut listener = listen(stage.outside.namespace, server)?;
    let held = stage.inside.hold(format!("tcp dport {}", client.port()))?;
    let opener = begin(stage.inside.namespace, client, server)?;
    let is_answer = |to: End, segment: &Segment| to == v4(client) && segment.flags == SYN | ACK;
    let (_, lost, _) =
        stage.see(&inside, "the first answer", |_, to, segment| is_answer(to, segment))?;
    drop(listener);
    listener = listen(stage.outside.namespace, server)?;
    let is_another =
        |_, to, segment: &Segment| is_answer(to, segment) && segment.sequence != lost.sequence;
    stage.see(&inside, "the second answer", is_another)?;
    Ok(Box::new(move || {
        held.release()?;
        opened(&opener, stage.interrupt)?;
        exchange(&opener, &accepted(&listener, stage.interrupt)?)
    }))
}

/// A server that keeps no state until its answer is acknowledged (RFC 4987, 3.6), and a
/// client that hears only a later answer.
pub(super) fn cookies<'a>(stage: &'a Stage<'a>) -> Result<Rest<'a>> {
    let (client, server) = stage.ends(CLIENT, FAR);
    let inside = stage.inside.listen()?;
    let listener = listen(&stage.far, server)?;
    let held = stage.inside.hold(format!("tcp dport {}", client.port()))?;
    let opener = begin(stage.inside.namespace, client, server)?;
    for which in ["the first answer", "the second answer"] {
        stage
            .see(&inside, which, |_, to, segment| to == v4(client) && segment.flags == SYN | ACK)?;
    }
    Ok(Box::new(move || {
        held.release()?;
        opened(&opener, stage.interrupt)?;
        exchange(&opener, &accepted(&listener, stage.interrupt)?)
    }))
}

/// A closed port, whose refusal reaches the client; later the port is open.
pub(super) fn closed_port<'a>(stage: &'a Stage<'a>) -> Result<Rest<'a>> {
    let (client, server) = stage.ends(CLIENT, SERVER);
    let refused =
        move || match opened(&begin(stage.inside.namespace, client, server)?, stage.interrupt) {
            Err(error)
                if error.root_cause().downcast_ref::<Error>().map(Error::kind)
                    == Some(ErrorKind::ConnectionRefused) =>
            {
                Ok(())
            }
            other => bail!("a closed port refuses nobody: {other:?}"),
        };
    refused()?;
    Ok(Box::new(move || {
        refused()?;
        let listener = listen(stage.outside.namespace, server)?;
        let opener = begin(stage.inside.namespace, client, server)?;
        opened(&opener, stage.interrupt)?;
        exchange(&opener, &accepted(&listener, stage.interrupt)?)
    }))
}

/// The client has crashed and connects again from the same port. The server still has the
/// old connection: it challenges the SYN, gets a reset, and accepts the next SYN (RFC
/// 9293, 3.5.1; RFC 5961, 4).
pub(super) fn crashed_client<'a>(stage: &'a Stage<'a>) -> Result<Rest<'a>> {
    let (connection, opener, acceptor) = stage.connection()?;
    crash(opener)?;
    Ok(Box::new(move || {
        let outside = stage.outside.listen()?;
        let again = connection.again(stage)?;
        let (peer, server) = (v4(connection.peer), v4(connection.server));
        let is_challenge =
            |from, to, segment: &Segment| (from, to) == (server, peer) && segment.flags == ACK;
        let (_, challenge, _) = stage.see(&outside, "the challenge", is_challenge)?;
        let is_reset_of = |from, to, segment: &Segment| {
            (from, to) == (peer, server)
                && segment.flags == RST
                && segment.sequence == challenge.acknowledgement
        };
        stage.see(&outside, "the reset that answers it", is_reset_of)?;
        is_reset(&acceptor)?;
        connection.is_again(&again, stage)
    }))
}

/// The server has crashed: the client's data are answered by a reset.
pub(super) fn crashed_server<'a>(stage: &'a Stage<'a>) -> Result<Rest<'a>> {
    let (connection, opener, acceptor) = stage.connection()?;
    crash(acceptor)?;
    Ok(Box::new(move || {
        (&opener).write_all(b"is anybody there")?;
        is_reset(&opener)?;
        drop(connection);
        Ok(())
    }))
}

/// The server has closed first: its end is in TIME-WAIT, and a new connection from the
/// same port reopens it (RFC 9293, 3.6.1).
pub(super) fn time_wait<'a>(stage: &'a Stage<'a>) -> Result<Rest<'a>> {
    let (connection, opener, acceptor) = stage.connection()?;
    acceptor.shutdown(Shutdown::Write)?;
    ensure!((&opener).read(&mut [0; 1])? == 0, "the client hears that the server has closed");
    opener.shutdown(Shutdown::Both)?;
    stage.waits(connection.server)?;
    Ok(Box::new(move || connection.is_again(&connection.again(stage)?, stage)))
}

/// The same with a lower sequence number than the old one. A server accepts it for its
/// later time stamp (RFC 6191); without time stamps it challenges the SYN and gets a
/// reset. A kernel's sequence numbers rise, so raw frames play the connection that ends.
pub(super) fn lower_syn<'a>(stage: &'a Stage<'a>, has_times: bool) -> Result<Rest<'a>> {
    let (client, server) = stage.ends(CLIENT, SERVER);
    let (inside, outside) = (stage.inside.listen()?, stage.outside.listen()?);
    let listener = listen(stage.outside.namespace, server)?;
    // The kernel's SYN shows its present sequence number.
    let away = stage.outside.hold(format!("tcp dport {}", server.port()))?;
    let held = stage.inside.hold(format!("tcp dport {}", client.port()))?;
    let probe = begin(stage.inside.namespace, client, server)?;
    let is_syn = move |to: End, segment: &Segment| to == v4(server) && segment.flags == SYN;
    let (_, own, _) =
        stage.see(&outside, "the kernel's SYN", |_, to, segment| is_syn(to, segment))?;
    crash(probe)?;
    away.release()?;
    let time = own.time.filter(|_| has_times);
    let high = own.sequence.wrapping_add(1 << 30);
    let say = |flags, sequence, acknowledgement| {
        let segment = Segment { flags, sequence, acknowledgement, time, len: 0 };
        stage.inside.spoof(v4(client), v4(server), segment)
    };
    let hear = |flags: u8, acknowledgement| {
        let is_it = move |_, to: End, segment: &Segment| {
            to == v4(client) && segment.flags == flags && segment.acknowledgement == acknowledgement
        };
        stage
            .see(&inside, "an answer to what is played by hand", is_it)
            .map(|(_, segment, _)| segment.sequence)
    };
    say(SYN, high, 0)?;
    let answer = hear(SYN | ACK, high.wrapping_add(1))?;
    say(ACK, high.wrapping_add(1), answer.wrapping_add(1))?;
    let acceptor = accepted(&listener, stage.interrupt)?;
    acceptor.shutdown(Shutdown::Write)?;
    hear(FIN | ACK, high.wrapping_add(1))?;
    say(FIN | ACK, high.wrapping_add(1), answer.wrapping_add(2))?;
    hear(ACK, high.wrapping_add(2))?;
    stage.waits(server)?;
    Ok(Box::new(move || {
        held.release()?;
        let opener = begin(stage.inside.namespace, client, server)?;
        let is_lower = |_, to, segment: &Segment| {
            is_syn(to, segment) && segment.sequence.wrapping_sub(high) > 1 << 31
        };
        stage.see(&outside, "a SYN with a lower number", is_lower)?;
        opened(&opener, stage.interrupt)?;
        exchange(&opener, &accepted(&listener, stage.interrupt)?)
    }))
}

/// Resets inside the window, but not exact, arrive; the ends challenge them, and data go
/// on (RFC 5961, 3.2).
pub(super) fn inexact_resets<'a>(stage: &'a Stage<'a>) -> Result<Rest<'a>> {
    let (connection, opener, acceptor) = stage.connection()?;
    let reset = move |beyond: u32, connection: &Connection| {
        let (client, peer, server) =
            (v4(connection.client), v4(connection.peer), v4(connection.server));
        let [from_client, from_server] = connection.next.map(|next| next.wrapping_add(beyond));
        let (inside, outside) = (stage.inside.listen()?, stage.outside.listen()?);
        // A reset that comes while the flow's owner is dead may be lost.
        until("the client's reset arrives", TIMEOUT, stage.interrupt, || {
            stage.inside.spoof(
                client,
                server,
                Segment { flags: RST, sequence: from_client, ..Segment::default() },
            )?;
            arrived(&outside, |to, segment| {
                to == server && segment.flags == RST && segment.sequence == from_client
            })
        })?;
        until("the server's reset arrives", TIMEOUT, stage.interrupt, || {
            stage.outside.spoof(
                server,
                peer,
                Segment { flags: RST, sequence: from_server, ..Segment::default() },
            )?;
            arrived(&inside, |to, segment| {
                to == client && segment.flags == RST && segment.sequence == from_server
            })
        })
    };
    reset(100, &connection)?;
    exchange(&opener, &acceptor)?;
    Ok(Box::new(move || {
        reset(5000, &connection)?;
        exchange(&opener, &acceptor)
    }))
}

fn arrived(on: &Listener, is_it: impl Fn(End, &Segment) -> bool) -> Result<Option<()>> {
    while let Some(frame) = on.receive()? {
        if frames::segment(&frame).is_some_and(|(_, to, segment)| is_it(to, &segment)) {
            return Ok(Some(()));
        }
    }
    Ok(None)
}

/// An attacker sends segments in either end's name, with numbers far outside the windows.
/// The firewall drops them except the client's SYN, which the server challenges. The
/// connection goes on.
pub(super) fn blind_segments<'a>(stage: &'a Stage<'a>) -> Result<Rest<'a>> {
    const FAR_OFF: u32 = 1 << 30;
    let (connection, opener, acceptor) = stage.connection()?;
    let blind = move |connection: &Connection| {
        let (client, peer, server) =
            (v4(connection.client), v4(connection.peer), v4(connection.server));
        let [from_client, from_server] = connection.next.map(|next| next.wrapping_add(FAR_OFF));
        let (inside, outside) = (stage.inside.listen()?, stage.outside.listen()?);
        for flags in [RST, RST | ACK, ACK, FIN | ACK, SYN, SYN | ACK] {
            let acknowledgement = if flags & ACK != 0 { 1 } else { 0 };
            let segment = |sequence| Segment {
                flags,
                sequence,
                acknowledgement,
                time: None,
                len: u32::from(flags == ACK),
            };
            stage.inside.spoof(client, server, segment(from_client))?;
            stage.outside.spoof(server, peer, segment(from_server))?;
        }
        exchange(&opener, &acceptor)?;
        if stage.functions.firewall {
            let passed = |on: &Listener, mac: [u8; 6], sequence| -> Result<Vec<u8>> {
                let mut flags = Vec::new();
                while let Some(frame) = on.receive()? {
                    let of = frames::segment(&frame).filter(|(_, _, segment)| {
                        frame[..6] == mac && segment.sequence == sequence
                    });
                    flags.extend(of.map(|(_, _, segment)| segment.flags));
                }
                Ok(flags)
            };
            let came_in = passed(&inside, stage.inside.own_mac, from_server)?;
            let went_out = passed(&outside, stage.outside.own_mac, from_client)?;
            ensure!(
                came_in.is_empty() && went_out.iter().all(|flags| *flags == SYN),
                "in {came_in:?}, out {went_out:?}"
            );
        }
        Ok(())
    };
    blind(&connection)?;
    Ok(Box::new(move || blind(&connection)))
}
