//! Cases of ICMP, with both families.

use super::{FAR, FAR_SIX, PINGED, Rest, SMALL_MTU, Stage};
use anyhow::{Context, Result, ensure};
use etherparse::{Icmpv4Header, Icmpv4Slice, Icmpv4Type, Ipv4Slice, PacketBuilder};
use holdfast_lab::{Interrupt, programs, until};
use holdfast_tests::TIMEOUT;
use holdfast_tests::network::{CLIENT, INSIDE, SERVER, SIX, ip};
use holdfast_tests::ping::Ping;
use holdfast_tests::sockets::{accepted, begin, exchange, listen, opened};
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::time::Duration;

/// An inside and an outside host ping each other with the same identifier.
pub(super) fn pings_of_each_other<'a>(stage: &'a Stage<'a>) -> Result<Rest<'a>> {
    const ID: u16 = 0x4848;
    let mut pings = [
        Ping::from(stage.inside.namespace, PINGED.parse()?, SERVER.parse()?)?,
        Ping::new(stage.outside.namespace, stage.functions.pinged().parse()?)?,
    ];
    let mut both = move || {
        std::thread::scope(|scope| {
            let asked =
                pings.each_mut().map(|ping| scope.spawn(|| answered(ping, ID, stage.interrupt)));
            asked.into_iter().try_for_each(|asked| {
                asked.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            })
        })
    };
    both()?;
    Ok(Box::new(both))
}

/// Asks until the answer comes.
fn answered(ping: &mut Ping, id: u16, interrupt: &Interrupt) -> Result<()> {
    until("an echo reply", TIMEOUT, interrupt, || {
        Ok(ping.ask([id], Duration::from_secs(1))?.contains(&id).then_some(()))
    })
}

/// After a ping from inside, no other message with its identifier comes in, and no
/// redirect or source quench that quotes it (RFC 5508, REQ-1; RFC 1122, 3.2.2).
pub(super) fn poseurs<'a>(stage: &'a Stage<'a>) -> Result<Rest<'a>> {
    let id = 0x5000 + stage.number();
    let outside = stage.outside.listen()?;
    let client: Ipv4Addr = CLIENT.parse()?;
    let mut ping = Ping::from(stage.inside.namespace, client, SERVER.parse()?)?;
    answered(&mut ping, id, stage.interrupt)?;
    let request = until("the request", TIMEOUT, stage.interrupt, || {
        while let Some(frame) = outside.receive()? {
            if echo(&frame).is_some_and(|(_, to, is_request, _)| is_request && to == ip(SERVER)) {
                return Ok(Some(frame));
            }
        }
        Ok(None)
    })?;
    let (peer, _, _, outer) = echo(&request).context("it is one")?;
    let pose = move |ping: &mut Ping| {
        let inside = stage.inside.listen()?;
        for kind in 1..=255_u8 {
            // Errors that may belong to the flow are for another case.
            let body = match kind {
                3 | 11 | 12 => continue,
                4 | 5 => [&[0, 0, 0, 0][..], &request[14..42]].concat(),
                _ => [&outer.to_be_bytes()[..], &[0, 1]].concat(),
            };
            let mut message = [&[kind, 0, 0, 0][..], &body].concat();
            let sum =
                etherparse::checksum::Sum16BitWords::new().add_slice(&message).ones_complement();
            message[2..4].copy_from_slice(&sum.to_ne_bytes());
            let builder = PacketBuilder::ethernet2(stage.outside.own_mac, stage.outside.box_mac);
            let builder = builder.ipv4(SERVER.parse::<Ipv4Addr>()?.octets(), peer.octets(), 64);
            let mut frame = Vec::new();
            builder.write(&mut frame, etherparse::IpNumber::ICMP, &message)?;
            stage.outside.up.send(&frame)?;
        }
        answered(ping, id, stage.interrupt)?;
        while let Some(frame) = inside.receive()? {
            let is_in =
                frame[..6] == stage.inside.own_mac && frame[12..14] == [8, 0] && frame[23] == 1;
            if is_in && frame[30..34] == client.octets() {
                // Errors are for other cases, which are played beside this one.
                ensure!(matches!(frame[34], 0 | 3 | 11), "ICMP type {} came in", frame[34]);
            }
        }
        Ok(())
    };
    pose(&mut ping)?;
    Ok(Box::new(move || pose(&mut ping)))
}

/// Source, destination, whether it is a request, and the identifier of a ping over IPv4.
fn echo(frame: &[u8]) -> Option<(Ipv4Addr, IpAddr, bool, u16)> {
    let ip = Ipv4Slice::from_slice(frame.get(14..).filter(|_| frame[12..14] == [8, 0])?).ok()?;
    let header = ip.header();
    let Icmpv4Header { icmp_type, .. } =
        Icmpv4Slice::from_slice(ip.payload().payload).ok()?.header();
    let (is_request, echo) = match icmp_type {
        Icmpv4Type::EchoRequest(echo) => (true, echo),
        Icmpv4Type::EchoReply(echo) => (false, echo),
        _ => return None,
    };
    Some((header.source_addr(), header.destination_addr().into(), is_request, echo.id))
}

/// All hops are seen, by errors that quote datagrams and pings.
pub(super) fn traceroute<'a>(stage: &'a Stage<'a>) -> Result<Rest<'a>> {
    let all = move || {
        for (hops, options) in [
            ([INSIDE, SERVER, FAR], &[][..]),
            ([INSIDE, SERVER, FAR], &["-I"]),
            ([SIX[1], SIX[3], FAR_SIX], &[]),
            ([SIX[1], SIX[3], FAR_SIX], &["-I"]),
        ] {
            let hops: Vec<Option<IpAddr>> = hops.iter().map(|hop| Some(ip(hop))).collect();
            let mut seen = Vec::new();
            until("every hop is seen", TIMEOUT, stage.interrupt, || {
                seen = programs::traceroute(
                    stage.inside.namespace,
                    hops[2].unwrap_or(ip(FAR)),
                    options,
                )?;
                Ok((seen == hops).then_some(()))
            })
            .with_context(|| format!("{options:?}: {seen:?} instead of {hops:?}"))?;
        }
        Ok(())
    };
    all()?;
    Ok(Box::new(all))
}

/// A router reports that segments are too large for the link behind it, and the client
/// heeds it (RFC 1191, RFC 8201).
pub(super) fn path_mtu<'a>(stage: &'a Stage<'a>, client: &str, server: &str) -> Result<Rest<'a>> {
    const BYTES: usize = 100_000;
    let (client, server) = stage.ends(client, server);
    let namespace = stage.inside.namespace;
    namespace.ip(if server.is_ipv4() { "route flush cache" } else { "-6 route flush cache" })?;
    let knows = move || -> Result<bool> {
        Ok(namespace
            .run(&format!("ip route get {}", server.ip()))?
            .contains(&format!("mtu {SMALL_MTU}")))
    };
    let listener = listen(&stage.far, server)?;
    let opener = begin(namespace, client, server)?;
    opened(&opener, stage.interrupt)?;
    let acceptor = accepted(&listener, stage.interrupt)?;
    exchange(&opener, &acceptor)?;
    ensure!(!knows()?, "nothing is known before anything large is sent");
    Ok(Box::new(move || {
        std::thread::scope(|scope| {
            let sender = scope.spawn(|| (&opener).write_all(&vec![7; BYTES]));
            let mut came = vec![0; BYTES];
            (&acceptor).read_exact(&mut came).context("a lot of data")?;
            ensure!(came.iter().all(|byte| *byte == 7), "data have changed");
            Ok(sender.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?)
        })?;
        ensure!(knows()?, "the client does not know the path's MTU");
        exchange(&opener, &acceptor)
    }))
}

/// The sender of a datagram to a closed port is told, outside and inside.
pub(super) fn port_unreachable<'a>(
    stage: &'a Stage<'a>,
    client: &str,
    server: &str,
) -> Result<Rest<'a>> {
    let pair = || -> Result<[UdpSocket; 2]> {
        let (client, server) = stage.ends(client, server);
        let one = stage.inside.namespace.enter(|| UdpSocket::bind(client))??;
        let other = stage.outside.namespace.enter(|| UdpSocket::bind(server))??;
        one.connect(server)?;
        for socket in [&one, &other] {
            socket.set_read_timeout(Some(TIMEOUT))?;
        }
        one.send(b"hello")?;
        let mut block = [0; 16];
        let (_, peer) = other.recv_from(&mut block)?;
        other.connect(peer)?;
        other.send(b"hello")?;
        one.recv(&mut block)?;
        for socket in [&one, &other] {
            socket.set_read_timeout(Some(Duration::from_millis(500)))?;
        }
        Ok([one, other])
    };
    let [outwards, closed_outside] = pair()?;
    let [closed_inside, inwards] = pair()?;
    Ok(Box::new(move || {
        drop((closed_outside, closed_inside));
        for (whose, socket) in [("the server's", outwards), ("the client's", inwards)] {
            until(&format!("{whose} port is unreachable"), TIMEOUT, stage.interrupt, || {
                let refused = socket.send(b"anybody").and_then(|_| socket.recv(&mut [0; 16]));
                Ok(refused
                    .is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
                    .then_some(()))
            })?;
        }
        Ok(())
    }))
}
