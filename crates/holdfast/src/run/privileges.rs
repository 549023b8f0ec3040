//! What the processes of a box may do: what their work needs, from the moment when they begin it, and never more again.
//!
//! The guard keeps for itself and its managers what opening ports takes ([`FOR_PORTS`]), passes it on as ambient capabilities, so that an ordinary user who was given them will do, and puts
//! everything else out of reach, also for root. Every other role lets go of these too, once it has been given what it works with. Nobody gets anything by starting a program
//! (`PR_SET_NO_NEW_PRIVS`), and nobody's memory, in which keys and packets are, is dumped or looked into by others (`PR_SET_DUMPABLE`).

use rustix::process::DumpableBehavior;
use rustix::thread::{CapabilitySet, CapabilitySets};
use std::io;

/// Ports, their filters, and addresses below 1024 for BFD, UDP and the control API; see [`FOR_SPEED`].
const FOR_PORTS: CapabilitySet = CapabilitySet::NET_ADMIN
    .union(CapabilitySet::NET_RAW)
    .union(CapabilitySet::BPF)
    .union(CapabilitySet::NET_BIND_SERVICE)
    .union(FOR_SPEED);
/// Nothing depends on these: memory for devices that stays where it is, and a standby that is run as soon as it wakes up.
const FOR_SPEED: CapabilitySet = CapabilitySet::IPC_LOCK.union(CapabilitySet::SYS_NICE);

/// What a guard does before it starts anybody. A driver of DPDK may need anything that root can do: with one, nothing is let go.
pub(super) fn keep_for_ports(has_dpdk: bool) -> io::Result<()> {
    hide()?;
    if !has_dpdk {
        for other in CapabilitySet::all().difference(FOR_PORTS).iter() {
            // Refused to who has no right to it, and gets nothing by starting programs anyway, and by a kernel that does not know it.
            let _ = rustix::thread::remove_capability_from_bounding_set(other);
        }
        let kept = reduce_to(FOR_PORTS)?;
        for one in kept.iter() {
            rustix::thread::configure_capability_in_ambient_set(one, true)?;
        }
    }
    Ok(rustix::thread::set_no_new_privs(true)?)
}

/// What every role but the manager does when it has been given what it works with.
pub(super) fn let_go() -> io::Result<()> {
    hide()?;
    rustix::thread::clear_ambient_capability_set()?;
    reduce_to(FOR_SPEED).map(drop)
}

/// Neither a core dump nor another process of this user shows this one's memory. A program begins without that.
pub(super) fn hide() -> io::Result<()> {
    Ok(rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)?)
}

/// Lets everything go but these, as far as they are there. What is left.
fn reduce_to(kept: CapabilitySet) -> io::Result<CapabilitySet> {
    let left = rustix::thread::capabilities(None)?.permitted & kept;
    rustix::thread::set_capabilities(None, CapabilitySets { effective: left, permitted: left, inheritable: left })?;
    Ok(left)
}
