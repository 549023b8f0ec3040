//! A box of three equal hosts, one of which has the elected coordinator: it dies with its
//! host, is stopped, is cut off, and etcd goes away. No connection breaks, and the next
//! failure is recovered too.

use anyhow::{Context, Result, ensure};
use holdfast_control::status::{Leader, Process, Protected, STATE_CANDIDATE, Status};
use holdfast_lab::hosts::Cut;
use holdfast_lab::process::signal_pid;
use holdfast_lab::requirements::*;
use holdfast_lab::{Interrupt, until};
use holdfast_tests::TIMEOUT;
use holdfast_tests::cluster::{Cluster, EQUALS};
use holdfast_tests::network::VIRTUAL;
use holdfast_tests::runner::{Test, cluster};
use holdfast_tests::verdict::ensure_unbroken;
use rustix::process::Signal;

pub(crate) fn tests() -> Vec<Test> {
    vec![
        cluster(
            "hosts_that_lead_die_one_after_the_other",
            15,
            &[NGINX, NFT, ETCD],
            hosts_that_lead_die_one_after_the_other,
        ),
        cluster("who_leads_stands_still", 13, &[NGINX, NFT, ETCD], who_leads_stands_still),
        cluster("who_leads_is_cut_off", 23, &[NGINX, NFT, ETCD], who_leads_is_cut_off),
        cluster("etcd_is_away", 9, &[NGINX, NFT, ETCD], etcd_is_away),
    ]
}

/// Any host but this one.
fn other(than: &str) -> &'static str {
    EQUALS.into_iter().find(|name| *name != than).unwrap_or(EQUALS[0])
}

/// A host's own coordinator, leading or not.
fn own_coordinator(status: &Status, host: &str) -> Option<Process> {
    status
        .processes
        .iter()
        .find(|one| one.role == "coordinator" && one.host == host && one.pid != 0)
        .cloned()
}

/// True if both are the same leader. A host that does not reach etcd hears of the leader,
/// but does not know its process.
fn is_same(one: &Leader, other: &Leader) -> bool {
    (&one.host, one.incarnation) == (&other.host, other.incarnation)
}

/// The leader, once every flow would survive a host and every host names the same leader.
fn safe_leader(cluster: &Cluster) -> Result<Leader> {
    cluster.wait_safe()?;
    until("every host knows who leads", TIMEOUT, cluster.lab.interrupt(), || {
        let leader_on = |name: &str| {
            Ok(cluster.on(name)?.status()?.election.and_then(|election| election.leader))
        };
        let known = EQUALS.into_iter().map(leader_on).collect::<Result<Vec<_>>>()?;
        let leader = known.iter().flatten().find(|leader| leader.pid != 0).cloned();
        Ok(leader.filter(|leader| {
            known.iter().all(|other| other.as_ref().is_some_and(|other| is_same(leader, other)))
        }))
    })
}

/// Kills the busiest runtime of the living hosts, and checks that its flows are recovered
/// without a loss.
fn lose_a_runtime(cluster: &Cluster, dead: Option<&str>) -> Result<()> {
    let mut runtimes: Vec<Process> = Vec::new();
    for host in EQUALS.into_iter().filter(|host| Some(*host) != dead) {
        let what = "a failure of a process would be survived";
        let status = cluster.wait_for(host, what, |status| status.protected() == Protected::Yes)?;
        runtimes.extend(status.runtimes().filter(|one| one.host == host && one.pid != 0).cloned());
    }
    let victim = runtimes.into_iter().max_by_key(|one| one.flows).context("there are runtimes")?;
    signal_pid(victim.pid, Signal::KILL)?;
    let status = cluster.wait_for(&victim.host, "its flows are recovered", |status| {
        status
            .failover(victim.id, victim.incarnation)
            .is_some_and(|failover| failover.recovered_us.is_some())
    })?;
    let failover =
        status.failover(victim.id, victim.incarnation).context("it was there a moment ago")?;
    ensure!(failover.lost == 0 && failover.flows > 0, "{failover:?}");
    Ok(())
}

/// The leading host dies with all its processes: another host leads, and every host names
/// it. A runtime that is killed after that is recovered, new connections are let in, and
/// the dead host comes back as a candidate. The same then happens to the new leader.
fn hosts_that_lead_die_one_after_the_other(interrupt: &Interrupt) -> Result<()> {
    let mut cluster = Cluster::start_equals(interrupt)?;
    let held = cluster.hold(VIRTUAL, 100)?;
    let mut held_later = Vec::new();
    for round in 0..2 {
        let old = safe_leader(&cluster)?;
        let observer = other(&old.host);
        cluster.kill(&old.host)?;
        let new = cluster.wait_leader(observer, old.incarnation)?;
        ensure!(new.host != old.host, "round {round}: {new:?} after {old:?}");
        ensure_unbroken(&held, interrupt)
            .with_context(|| format!("round {round}: {} is dead", old.host))?;
        lose_a_runtime(&cluster, Some(&old.host))?;
        ensure_unbroken(&held, interrupt)
            .with_context(|| format!("round {round}: and so is a runtime"))?;
        held_later.push(cluster.hold(VIRTUAL, 20)?);
        let back =
            EQUALS.into_iter().find(|name| *name == old.host).context("it is one of them")?;
        cluster.begin(back)?;
        cluster.wait_for(back, "it is a candidate again", |status| {
            own_coordinator(status, back).is_some_and(|own| own.state == STATE_CANDIDATE)
                && status
                    .election
                    .as_ref()
                    .and_then(|election| election.leader.as_ref())
                    .is_some_and(|seen| is_same(seen, &new))
        })?;
    }
    cluster.wait_safe()?;
    ensure_unbroken(&held, interrupt)?;
    held_later.iter().try_for_each(|later| ensure_unbroken(later, interrupt))?;
    drop((held, held_later));
    cluster.stop()
}

/// The leading process is stopped: a later one leads. Its whole host is stopped next:
/// another host's coordinator leads and gives that host up. When the host wakes up, no
/// host listens to it and it becomes a candidate.
fn who_leads_stands_still(interrupt: &Interrupt) -> Result<()> {
    let cluster = Cluster::start_equals(interrupt)?;
    let held = cluster.hold(VIRTUAL, 60)?;
    let old = safe_leader(&cluster)?;
    signal_pid(old.pid, Signal::STOP)?;
    let new = cluster.wait_leader(other(&old.host), old.incarnation)?;
    let old = safe_leader(&cluster)?;
    ensure!(is_same(&old, &new), "{old:?} leads after {new:?}");
    lose_a_runtime(&cluster, None)?;
    let old = safe_leader(&cluster)?;
    let observer = other(&old.host);
    cluster.signal(&old.host, Signal::STOP)?;
    let new = cluster.wait_leader(observer, old.incarnation)?;
    ensure!(new.host != old.host, "{new:?} after {old:?}");
    cluster.wait_away(observer, &old.host)?;
    ensure_unbroken(&held, interrupt).context("its host is stopped")?;
    cluster.signal(&old.host, Signal::CONT)?;
    cluster.wait_for(&old.host, "it is a candidate", |status| {
        own_coordinator(status, &old.host).is_some_and(|own| own.state == STATE_CANDIDATE)
    })?;
    let now = safe_leader(&cluster)?;
    ensure!(is_same(&now, &new), "{now:?} leads after {new:?}");
    ensure_unbroken(&held, interrupt).context("it has woken up")?;
    drop(held);
    cluster.stop()
}

/// The leading host reaches the other hosts, but not etcd: it stops leading, with no
/// other effect. A leader then reaches etcd, but not the hosts: it resigns, and the next
/// leader gives its host up.
fn who_leads_is_cut_off(interrupt: &Interrupt) -> Result<()> {
    let cluster = Cluster::start_equals(interrupt)?;
    let held = cluster.hold(VIRTUAL, 60)?;
    let old = safe_leader(&cluster)?;
    let before = cluster.on(&old.host)?.status()?.failovers.len();
    cluster.hosts.cut_management(&old.host)?;
    let new = cluster.wait_leader(other(&old.host), old.incarnation)?;
    ensure!(new.host != old.host, "{new:?} after {old:?}");
    let status = cluster.wait_for(&old.host, "it says that etcd is silent", |status| {
        status.election.as_ref().is_some_and(|election| election.silent_ms.is_some())
    })?;
    ensure!(status.failovers.len() == before, "{status:?}");
    safe_leader(&cluster)?;
    lose_a_runtime(&cluster, None)?;
    cluster.hosts.heal()?;
    for cut in [Cut::From, Cut::Both] {
        let old = safe_leader(&cluster)?;
        let observer = other(&old.host);
        cluster.hosts.cut(&old.host, cut)?;
        let new = cluster
            .wait_leader(observer, old.incarnation)
            .with_context(|| format!("{} is cut: {cut:?}", old.host))?;
        ensure!(new.host != old.host, "{new:?} after {old:?}");
        cluster.wait_away(observer, &old.host)?;
        ensure_unbroken(&held, interrupt)
            .with_context(|| format!("{} is cut: {cut:?}", old.host))?;
        cluster.hosts.heal()?;
        let now = safe_leader(&cluster)?;
        ensure!(is_same(&now, &new), "{now:?} leads after {new:?}");
        ensure_unbroken(&held, interrupt).with_context(|| format!("{} is back", old.host))?;
    }
    drop(held);
    cluster.stop()
}

/// etcd is stopped: no coordinator leads, existing connections go on, and new ones are
/// opened. With etcd back a coordinator leads, and has no host to give up.
fn etcd_is_away(interrupt: &Interrupt) -> Result<()> {
    let cluster = Cluster::start_equals(interrupt)?;
    let held = cluster.hold(VIRTUAL, 60)?;
    let old = safe_leader(&cluster)?;
    let before = cluster.on(EQUALS[0])?.status()?.failovers.len();
    let etcd = cluster.etcd.as_ref().context("they elect")?;
    etcd.signal(Signal::STOP)?;
    for name in EQUALS {
        cluster.wait_for(name, "it says that etcd is away, and nobody leads", |status| {
            own_coordinator(status, name).is_some_and(|own| own.state == STATE_CANDIDATE)
                && status.protected() != Protected::Yes
                && status.election.as_ref().is_some_and(|election| election.silent_ms.is_some())
        })?;
    }
    let new = cluster.hold(VIRTUAL, 20)?;
    ensure_unbroken(&held, interrupt)?;
    ensure_unbroken(&new, interrupt)?;
    etcd.signal(Signal::CONT)?;
    cluster.wait_leader(EQUALS[0], old.incarnation)?;
    cluster.wait_safe()?;
    let status = cluster.on(EQUALS[0])?.status()?;
    ensure!(status.failovers.len() == before, "nobody has failed: {status:?}");
    lose_a_runtime(&cluster, None)?;
    ensure_unbroken(&held, interrupt)?;
    ensure_unbroken(&new, interrupt)?;
    drop((held, new));
    cluster.stop()
}
