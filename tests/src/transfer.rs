//! Transfers that last as long as a test wants: a download of a file that is never
//! fetched to its end, and iperf3. A test ends them when it has seen enough, and checks
//! the bytes that have arrived.

use crate::network::{GIVE_UP, Network, SERVER};
use crate::{TIMEOUT, network};
use anyhow::{Context, Result, ensure};
use holdfast_control::status::Status;
use holdfast_lab::download::{Download, Plan};
use holdfast_lab::nginx::{self, Site};
use holdfast_lab::process::Process;
use holdfast_lab::programs::{self, Iperf3, Transfer};
use holdfast_lab::{Interrupt, Namespace, until};
use rustix::fs::MemfdFlags;
use rustix::process::Signal;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Bytes of the file: more than any test needs at its pace. A download of all of it fails
/// the test.
const FILE_BYTES: usize = 256 << 20;
/// The file's name at a site.
const FILE_NAME: &str = "long";
/// The file is in memory, one for all tests, and ends with this process.
static FILE: Mutex<Option<File>> = Mutex::new(None);
/// Bytes that must have arrived before a test causes a failure.
const UNDER_WAY: u64 = 500_000;
/// The port of iperf3.
const IPERF3_PORT: u16 = 5201;

/// A path of the file, which is made at the first call.
fn file() -> Result<String> {
    let mut file = FILE.lock().unwrap_or_else(PoisonError::into_inner);
    if file.is_none() {
        let mut made = File::from(rustix::fs::memfd_create("holdfast-tests", MemfdFlags::CLOEXEC)?);
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let mut block = vec![0; 1 << 20];
        for _ in 0..FILE_BYTES / block.len() {
            for word in block.chunks_exact_mut(8) {
                // xorshift64: no two blocks are alike, so a lost, doubled or swapped
                // block shows in the sum.
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                word.copy_from_slice(&state.to_le_bytes());
            }
            made.write_all(&block)?;
        }
        *file = Some(made);
    }
    let file = file.as_ref().context("it was made above")?;
    Ok(format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd()))
}

/// A running download.
#[derive(Debug)]
pub struct LongDownload {
    download: Download,
    seen: u64,
}

impl LongDownload {
    /// Fetches this site's file from a server at this pace; returns when the download is
    /// under way.
    pub fn start(
        client: &Namespace,
        site: &Site,
        server: &str,
        bytes_per_second: u64,
        stalled_after: Duration,
        interrupt: &Interrupt,
    ) -> Result<LongDownload> {
        let link = site.directory().join(FILE_NAME);
        if !link.is_symlink() {
            std::os::unix::fs::symlink(file()?, link)?;
        }
        let url = format!("http://{server}/{FILE_NAME}");
        let plan = Plan { url, bytes_per_second: Some(bytes_per_second), stalled_after };
        let download = Download::start(client, &plan)?;
        let is_under_way =
            || Ok((download.received() > UNDER_WAY.min(bytes_per_second / 4)).then_some(()));
        until("the download is under way", TIMEOUT, interrupt, is_under_way)?;
        let seen = download.received();
        Ok(LongDownload { download, seen })
    }

    /// Like `start`, in the office.
    pub fn start_in(
        network: &Network,
        server: &str,
        bytes_per_second: u64,
    ) -> Result<LongDownload> {
        let (client, interrupt) = (&network.topology.client, network.lab.interrupt());
        LongDownload::start(client, &network.site, server, bytes_per_second, GIVE_UP, interrupt)
    }

    /// Waits until more bytes have arrived than at the last call, or since the start.
    pub fn goes_on(&mut self, interrupt: &Interrupt) -> Result<()> {
        until("the download goes on", TIMEOUT, interrupt, || {
            Ok((self.download.received() > self.seen).then_some(()))
        })?;
        self.seen = self.download.received();
        Ok(())
    }

    /// Waits for more bytes, and ends the download.
    ///
    /// # Errors
    /// The download was over already, or a byte differs from the sent one.
    pub fn finish(mut self, interrupt: &Interrupt) -> Result<()> {
        self.seen = self.download.received();
        self.goes_on(interrupt)?;
        ensure!(
            !self.download.is_over()?,
            "the download was over before the last failure: nothing was shown"
        );
        let outcome = self.download.stop(TIMEOUT, interrupt)?;
        let sum = nginx::sum_of(File::open(file()?)?.take(outcome.bytes))?;
        ensure!(
            outcome.error.is_none() && outcome.sum == sum,
            "of {} bytes some are others: {outcome:?}",
            outcome.bytes
        );
        Ok(())
    }
}

/// iperf3 between client and server in the office. Each transfer has a server of its own,
/// which reports the result if it is the receiver.
#[derive(Debug)]
pub struct LongIperf3 {
    client: Process,
    server: Process,
    reverse: bool,
}

impl LongIperf3 {
    /// Starts a transfer at this rate, by UDP or TCP; `reverse` is from the server to the
    /// client.
    pub fn start(
        network: &Network,
        is_udp: bool,
        bits_per_second: u64,
        reverse: bool,
    ) -> Result<LongIperf3> {
        let server = programs::iperf3_server(
            &network.lab,
            &network.topology.server,
            IPERF3_PORT,
            &["--json", "--one-off"],
        )?;
        let mut command = network.topology.client.command("iperf3");
        command.args([
            "--json",
            "--connect-timeout",
            "5000",
            "--client",
            SERVER,
            "--port",
            &IPERF3_PORT.to_string(),
        ]);
        command.args(["--time", "0", "--bitrate", &bits_per_second.to_string()]);
        // 1200 bytes fit every path; without --length iperf3 asks the path for its MTU.
        command.args(if is_udp { &["--udp", "--length", "1200"][..] } else { &[] });
        command.args(reverse.then_some("--reverse"));
        let client = Process::start(command, "iperf3", network.lab.scratch())?;
        let flows = |status: &Status| status.runtimes().map(|process| process.flows).sum::<u64>();
        network.running.wait_for(
            "the flows are there",
            TIMEOUT,
            network.lab.interrupt(),
            |status| flows(status) >= 2,
        )?;
        let mut transfer = LongIperf3 { client, server, reverse };
        transfer.goes_on(network)?;
        Ok(transfer)
    }

    /// Waits until the box has had more packets.
    pub fn goes_on(&mut self, network: &Network) -> Result<()> {
        network::wait_for_packets(network, 100)?;
        ensure!(
            self.client.try_wait()?.is_none(),
            "iperf3 has ended: {}",
            self.client.last_words()
        );
        Ok(())
    }

    /// Ends the transfer; returns the receiver's measurements.
    ///
    /// # Errors
    /// The transfer was over already, or there is no report.
    pub fn finish(mut self, network: &Network) -> Result<Transfer> {
        self.goes_on(network)?;
        // On SIGINT the client tells its server and counts what has arrived.
        self.client.signal(Signal::INT)?;
        self.client.wait(TIMEOUT, network.lab.interrupt())?;
        let receiver = if self.reverse { &mut self.client } else { &mut self.server };
        if !self.reverse {
            receiver.wait(TIMEOUT, network.lab.interrupt())?;
        }
        Iperf3::read(&receiver.stdout())
    }
}
