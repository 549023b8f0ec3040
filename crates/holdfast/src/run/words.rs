//! The ways of control messages between runtimes and the state server, as the configuration says. What cannot be opened is said once: they go on the fabric then, which is always there.

use super::devices;
use crate::config::{ServerTransport, StateServers};
use holdfast_io::wait::sleep;
use holdfast_io::words::libfabric::{self, LibfabricWords};
use holdfast_io::words::shared_memory::{SharedMemoryWords, Side};
use holdfast_io::words::{Driver, Words};
use rustix::fd::BorrowedFd;

/// Which way it is to be, in a process that may make others before any of them opens it.
pub(super) enum Way {
    Fabric,
    SharedMemory(Side),
    Libfabric(String),
}

impl Way {
    /// The configuration's. What takes long is done here.
    pub(super) fn prepare(servers: &StateServers, side: Side) -> Way {
        match (servers.transport, &servers.provider) {
            (ServerTransport::SharedMemory, _) => Way::SharedMemory(side),
            (ServerTransport::Libfabric, Some(provider)) => match libfabric::prepare(provider) {
                Ok(()) => Way::Libfabric(provider.clone()),
                Err(why) => {
                    say(&why);
                    Way::Fabric
                }
            },
            (ServerTransport::Fabric | ServerTransport::Libfabric, _) => Way::Fabric,
        }
    }

    /// Opens it, in the process that works.
    pub(super) fn open(&self) -> Opened {
        let driver: Result<Box<dyn Driver>, String> = match self {
            Way::Fabric => return Opened(None),
            Way::SharedMemory(side) => match SharedMemoryWords::new(*side) {
                Ok(driver) => Ok(Box::new(driver)),
                Err(error) => Err(error.to_string()),
            },
            Way::Libfabric(provider) => match LibfabricWords::new(provider, devices::say) {
                Ok(driver) => Ok(Box::new(driver)),
                Err(why) => Err(why),
            },
        };
        Opened(driver.map_err(|why| say(&why)).ok())
    }
}

fn say(why: &str) {
    devices::say(&format!("control messages of the state server go on the fabric: {why}"));
}

/// A way beside the fabric, if there is one. It belongs to this process.
pub(super) struct Opened(Option<Box<dyn Driver>>);

impl Opened {
    /// For a turn.
    pub(super) fn words(&mut self) -> Option<&mut (dyn Words + 'static)> {
        self.0.as_deref_mut().map(|driver| driver as &mut dyn Words)
    }

    /// The turn holds.
    pub(super) fn publish(&mut self) {
        if let Some(driver) = &mut self.0 {
            driver.publish();
        }
    }

    /// True if something has come that nobody has taken.
    pub(super) fn has_input(&mut self) -> bool {
        self.0.as_mut().is_some_and(|driver| driver.has_input())
    }

    /// Sleeps until `other` is readable, something has come here, or so many ns have passed: not at all, if something has come meanwhile.
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
