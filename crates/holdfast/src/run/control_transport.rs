//! The control transport between runtimes and the state server, as configured. A
//! transport that cannot be opened is reported once: control messages then use the
//! fabric, which is always there.

use super::devices;
use crate::config::{ServerTransport, StateServers};
use holdfast_io::control_transport::libfabric::{self, LibfabricTransport};
use holdfast_io::control_transport::shared_memory::{SharedMemoryTransport, Side};
use holdfast_io::control_transport::{ControlTransport, Driver};
use holdfast_io::wait::sleep;
use rustix::fd::BorrowedFd;

/// The configured transport, in a process that may fork before it is opened.
pub(super) enum ConfiguredTransport {
    Fabric,
    SharedMemory(Side),
    Libfabric(String),
}

impl ConfiguredTransport {
    /// The configured transport, with slow preparations done.
    pub(super) fn prepare(servers: &StateServers, side: Side) -> ConfiguredTransport {
        match (servers.transport, &servers.provider) {
            (ServerTransport::SharedMemory, _) => ConfiguredTransport::SharedMemory(side),
            (ServerTransport::Libfabric, Some(provider)) => match libfabric::prepare(provider) {
                Ok(()) => ConfiguredTransport::Libfabric(provider.clone()),
                Err(why) => {
                    say(&why);
                    ConfiguredTransport::Fabric
                }
            },
            (ServerTransport::Fabric | ServerTransport::Libfabric, _) => {
                ConfiguredTransport::Fabric
            }
        }
    }

    /// Opens the transport, in the process that works.
    pub(super) fn open(&self) -> Opened {
        let driver: Result<Box<dyn Driver>, String> = match self {
            ConfiguredTransport::Fabric => return Opened(None),
            ConfiguredTransport::SharedMemory(side) => match SharedMemoryTransport::new(*side) {
                Ok(driver) => Ok(Box::new(driver)),
                Err(error) => Err(error.to_string()),
            },
            ConfiguredTransport::Libfabric(provider) => {
                match LibfabricTransport::new(provider, devices::say) {
                    Ok(driver) => Ok(Box::new(driver)),
                    Err(why) => Err(why),
                }
            }
        };
        Opened(driver.map_err(|why| say(&why)).ok())
    }
}

fn say(why: &str) {
    devices::say(&format!("control messages of the state server go on the fabric: {why}"));
}

/// An open transport beside the fabric, if any. For this process only.
pub(super) struct Opened(Option<Box<dyn Driver>>);

impl Opened {
    /// The transport for a turn.
    pub(super) fn words(&mut self) -> Option<&mut (dyn ControlTransport + 'static)> {
        self.0.as_deref_mut().map(|driver| driver as &mut dyn ControlTransport)
    }

    /// Publishes the turn's messages: the turn is committed.
    pub(super) fn publish(&mut self) {
        if let Some(driver) = &mut self.0 {
            driver.publish();
        }
    }

    /// True if unread messages have come.
    pub(super) fn has_input(&mut self) -> bool {
        self.0.as_mut().is_some_and(|driver| driver.has_input())
    }

    /// Sleeps until `other` is readable, a message has come, or `nanoseconds` have
    /// passed; not at all if a message has come meanwhile.
    pub(super) fn sleep(&mut self, other: BorrowedFd<'_>, nanoseconds: u64) {
        let Some(driver) = &mut self.0 else { return sleep(&[other], nanoseconds) };
        if driver.prepare_sleep() {
            let nanoseconds = nanoseconds.min(driver.longest_sleep());
            match driver.wait_fd() {
                Some(own) => sleep(&[other, own], nanoseconds),
                None => sleep(&[other], nanoseconds),
            }
        }
        driver.awake();
    }
}
