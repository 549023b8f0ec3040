//! Privileges of a box's processes: each keeps what its work needs and can never regain
//! more.
//!
//! The guard keeps the capabilities that opening ports takes ([`FOR_PORTS`]) for itself
//! and its managers. The guard passes them on as ambient capabilities, so that an
//! ordinary user who was granted them can run a box. The guard drops all others, also as
//! root, unless a port uses DPDK. Every other role keeps only [`FOR_SPEED`] once it has
//! its descriptors. Starting a program grants no privileges (`PR_SET_NO_NEW_PRIVS`). The
//! memory of a process, which holds keys and packets, is neither dumped nor open to other
//! processes (`PR_SET_DUMPABLE`). Runtimes and state servers make only the system calls
//! of their work (seccomp).

use crate::config::Plan;
use holdfast_control::exit::{self, Failure};
use rustix::process::DumpableBehavior;
use rustix::thread::{CapabilitySet, CapabilitySets};
use std::io;

/// Ports, their filters, and addresses below 1024 for BFD, UDP and the control API; see
/// [`FOR_SPEED`].
const FOR_PORTS: CapabilitySet = CapabilitySet::NET_ADMIN
    .union(CapabilitySet::NET_RAW)
    .union(CapabilitySet::BPF)
    .union(CapabilitySet::NET_BIND_SERVICE)
    .union(FOR_SPEED);
/// A box works without these: locked memory for devices, and a standby that is scheduled
/// as soon as it wakes up.
const FOR_SPEED: CapabilitySet = CapabilitySet::IPC_LOCK.union(CapabilitySet::SYS_NICE);

/// Drops the guard's other privileges before it starts a process. A driver of DPDK may
/// need anything that root can do: with one, the guard keeps all capabilities.
pub(super) fn keep_for_ports(has_dpdk: bool) -> io::Result<()> {
    hide()?;
    if !has_dpdk {
        for other in CapabilitySet::all().difference(FOR_PORTS).iter() {
            // The kernel refuses this to a process without CAP_SETPCAP, which gains
            // nothing by starting programs anyway, and for a capability that it does not
            // know.
            let _ = rustix::thread::remove_capability_from_bounding_set(other);
        }
        let kept = reduce_to(FOR_PORTS)?;
        for one in kept.iter() {
            rustix::thread::configure_capability_in_ambient_set(one, true)?;
        }
    }
    Ok(rustix::thread::set_no_new_privs(true)?)
}

/// Drops the capabilities for ports, in every role but the manager, once it has its
/// descriptors.
pub(super) fn let_go() -> io::Result<()> {
    hide()?;
    rustix::thread::clear_ambient_capability_set()?;
    reduce_to(FOR_SPEED).map(drop)
}

/// Restricts a runtime or state server, and the processes that it makes, to the system
/// calls of its work, unless the configuration says otherwise. To be called once
/// everything is open, before the first frame.
pub(super) fn restrict_calls(plan: &Plan) -> Result<(), Failure> {
    if !plan.seccomp {
        return Ok(());
    }
    holdfast_io::restrict(plan.state_servers.provider.is_some()).map_err(|error| {
        Failure::new(
            exit::of_system(&error),
            format!("the filter of system calls: {error}: `seccomp: false` does without it"),
        )
    })
}

/// Keeps core dumps and other processes of this user away from this process's memory.
/// Executing a program undoes it.
pub(super) fn hide() -> io::Result<()> {
    Ok(rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)?)
}

/// Drops all capabilities but `kept`. Returns those of them that the process has.
fn reduce_to(kept: CapabilitySet) -> io::Result<CapabilitySet> {
    let left = rustix::thread::capabilities(None)?.permitted & kept;
    rustix::thread::set_capabilities(
        None,
        CapabilitySets { effective: left, permitted: left, inheritable: left },
    )?;
    Ok(left)
}
