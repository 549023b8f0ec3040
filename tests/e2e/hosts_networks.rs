//! A box of three hosts on two networks, when one network, or one host's link to it,
//! fails.

use anyhow::{Result, ensure};
use holdfast_control::status::{self, Status};
use holdfast_lab::Interrupt;
use holdfast_lab::hosts::Cut;
use holdfast_lab::requirements::*;
use holdfast_lab::until;
use holdfast_tests::TIMEOUT;
use holdfast_tests::cluster::{Cluster, Second, WITNESS};
use holdfast_tests::network::VIRTUAL;
use holdfast_tests::runner::{Test, cluster};

pub(crate) fn tests() -> Vec<Test> {
    vec![
        cluster("a_network_that_fails_gives_no_host_up", 40, &[NGINX, NFT], |interrupt| {
            goes_around(Second::Ethernet, interrupt)
        }),
        cluster("another_kind_of_network_takes_over", 50, &[NGINX, NFT], |interrupt| {
            goes_around(Second::Udp, interrupt)
        })
        .deep("what becomes of a host's networks is the same whatever they are made of"),
    ]
}

/// The host time-out, ms: long enough that the machine's other load matters little.
const HOST_MS: u64 = 1_500;
const CONNECTIONS: usize = 40;
const FLOWS: usize = 20;

/// Whether a host's networks, as another host sees them, lead there, and which is used.
fn networks(status: &Status, host: &str) -> Option<([bool; 2], Option<usize>)> {
    let networks = &status.hosts.iter().find(|other| other.name == host)?.networks;
    let leads = networks.iter().map(|network| network.leads).collect::<Vec<_>>().try_into().ok()?;
    Some((leads, networks.iter().position(|network| network.used)))
}

/// The serving host loses the first network, in either direction or both, and then its
/// device. All traffic takes the second network, no host is given up, and no connection
/// notices. When the first network is back it is used again. Only a host without both is
/// away.
fn goes_around(second: Second, interrupt: &Interrupt) -> Result<()> {
    let cluster = Cluster::start_twice_joined(second, HOST_MS, interrupt)?;
    let [first, second] = cluster.serving()?;
    let is = |cluster: &Cluster, wanted: ([bool; 2], Option<usize>)| {
        for (from, to) in [(WITNESS, first), (second, first), (second, WITNESS)] {
            let wanted = if to == WITNESS { ([true; 2], Some(0)) } else { wanted };
            cluster.wait_for(from, &format!("{to} is reached as {wanted:?}"), |status| {
                networks(status, to) == Some(wanted)
            })?;
        }
        Ok::<_, anyhow::Error>(())
    };
    is(&cluster, ([true; 2], Some(0)))?;
    let held = cluster.hold(VIRTUAL, CONNECTIONS)?;
    let (_echo, stream) = cluster.stream(FLOWS, 500)?;
    cluster.wait_safe()?;
    let serving = cluster.namespace(first)?.clone();
    for way in ["from", "to", "both", "device"] {
        // Frames from the serving host do not arrive: the others hear it by the second
        // network alone, and it hears them by both.
        let from_others = match way {
            "from" => cluster.hosts.cut(first, Cut::From).map(|()| ([true; 2], Some(0)))?,
            "to" => cluster.hosts.cut(first, Cut::To).map(|()| ([false, true], Some(1)))?,
            "both" => cluster.hosts.cut(first, Cut::Both).map(|()| ([false, true], Some(1)))?,
            _ => serving.ip("link set fab0 down").map(|_| ([false, true], Some(1)))?,
        };
        is(&cluster, from_others)?;
        let from_there = if way == "to" { ([true; 2], Some(0)) } else { ([false, true], Some(1)) };
        cluster.wait_for(first, "it goes around too", |status| {
            networks(status, second) == Some(from_there)
        })?;
        let returned = stream.datagrams().returned;
        until("datagrams return", TIMEOUT, interrupt, || {
            Ok((stream.datagrams().returned > returned + 750).then_some(()))
        })?;
        match way {
            "device" => serving.ip("link set fab0 up").map(drop)?,
            _ => cluster.hosts.heal()?,
        }
        is(&cluster, ([true; 2], Some(0)))?;
        cluster.wait_for(first, "it is used again", |status| {
            networks(status, second) == Some(([true; 2], Some(0)))
        })?;
    }
    let status = cluster.wait_safe()?;
    let datagrams = stream.finish();
    ensure!(
        status.failovers.is_empty()
            && status.hosts.iter().all(|host| host.state != status::STATE_AWAY),
        "{status:?}"
    );
    ensure!(
        datagrams.flows_alive == FLOWS && (datagrams.doubled, datagrams.changed) == (0, 0),
        "{datagrams:?}"
    );
    ensure!(datagrams.longest_silence_us < HOST_MS * 1_000, "{datagrams:?}");
    let alive = held.verify(interrupt)?.alive;
    ensure!(alive == CONNECTIONS, "{alive} of {CONNECTIONS} connections");
    // A host without both networks counts as dead.
    cluster.hosts.cut(first, Cut::Both)?;
    cluster.hosts.cut_spare(first, Cut::Both)?;
    cluster.wait_away(WITNESS, first)?;
    cluster.wait_serving(second, second)?;
    cluster.hosts.heal()?;
    cluster.wait_safe()?;
    let alive = held.verify(interrupt)?.alive;
    ensure!(alive == CONNECTIONS, "{alive} of {CONNECTIONS} connections");
    cluster.stop()
}
