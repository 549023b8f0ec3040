//! The programs that people try a network with: their arguments, and their output as
//! numbers.

use super::namespace::Namespace;
use super::process::Process;
use super::{Lab, nginx};
use anyhow::{Context, Result, anyhow, bail};
use std::net::{IpAddr, SocketAddr};
use std::process::Command;
use std::time::Duration;

/// Longest time a server may take to start.
const START_LIMIT: Duration = Duration::from_secs(10);

/// The result of `ping`: how many echo requests were sent and answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pings {
    /// Echo requests.
    pub sent: u32,
    /// Echo replies.
    pub received: u32,
}

/// Sends `count` echo requests of `bytes` payload bytes, `interval` apart. Lost replies
/// are no error here.
pub fn ping(
    from: &Namespace,
    to: IpAddr,
    count: u32,
    bytes: u32,
    interval: Duration,
) -> Result<Pings> {
    let mut command = from.command("ping");
    command.args(["-n", "-q", "-W", "1", "-c", &count.to_string(), "-s", &bytes.to_string()]);
    command.args(["-i", &format!("{:.3}", interval.as_secs_f64()), &to.to_string()]);
    read_pings(&output_even_if_failed(&mut command)?)
}

/// Sends `count` echo requests, `interval` apart. Returns how many were answered, and
/// their mean round-trip time, µs.
pub fn ping_times(
    from: &Namespace,
    to: IpAddr,
    count: u32,
    interval: Duration,
) -> Result<(Pings, f64)> {
    let mut command = from.command("ping");
    command.args(["-n", "-q", "-W", "1", "-c", &count.to_string()]);
    command.args(["-i", &format!("{:.3}", interval.as_secs_f64()), &to.to_string()]);
    let text = output_even_if_failed(&mut command)?;
    Ok((read_pings(&text)?, read_mean(&text)?))
}

/// Reads the mean from ping's summary, µs.
fn read_mean(text: &str) -> Result<f64> {
    let times = text.lines().find_map(|line| line.strip_prefix("rtt min/avg/max/mdev = "));
    let mean = times.and_then(|times| times.split('/').nth(1)?.parse::<f64>().ok());
    Ok(mean.ok_or_else(|| anyhow!("ping said:\n{text}"))? * 1e3)
}

/// Reads the counts from ping's summary.
pub fn read_pings(text: &str) -> Result<Pings> {
    let line = text
        .lines()
        .find(|line| line.contains("packets transmitted"))
        .ok_or_else(|| anyhow!("ping said:\n{text}"))?;
    let number_before = |word: &str| {
        let front = line.split(',').find(|part| part.contains(word))?;
        front.split_whitespace().next()?.parse().ok()
    };
    let sent = number_before("transmitted").ok_or_else(|| anyhow!("ping said: {line}"))?;
    let received = number_before("received").ok_or_else(|| anyhow!("ping said: {line}"))?;
    Ok(Pings { sent, received })
}

/// The sequence numbers of the replies that ping printed, in the order of arrival.
pub fn read_replies(text: &str) -> Vec<u32> {
    let number =
        |line: &str| line.split_once("icmp_seq=")?.1.split_whitespace().next()?.parse().ok();
    text.lines()
        .filter(|line| line.contains("bytes from") && line.contains(" time="))
        .filter_map(number)
        .collect()
}

/// The result of `traceroute`: the address that answered at each hop, `None` for silence.
pub fn traceroute(from: &Namespace, to: IpAddr, options: &[&str]) -> Result<Vec<Option<IpAddr>>> {
    let mut command = from.command("traceroute");
    command.args(["-n", "-q", "1", "-w", "2", "-m", "8"]).args(options).arg(to.to_string());
    read_hops(&output_even_if_failed(&mut command)?)
}

fn read_hops(text: &str) -> Result<Vec<Option<IpAddr>>> {
    if !text.starts_with("traceroute to") {
        bail!("traceroute said:\n{text}");
    }
    Ok(text
        .lines()
        .skip(1)
        .map(|line| line.split_whitespace().nth(1).and_then(|word| word.parse().ok()))
        .collect())
}

/// `dig`: the addresses that a name has according to a server, asked over UDP up to
/// `tries` times.
pub fn dig(from: &Namespace, server: SocketAddr, name: &str, tries: u32) -> Result<Vec<IpAddr>> {
    let mut command = from.command("dig");
    command.args([
        "+short",
        "+notcp",
        &format!("+tries={tries}"),
        "+time=2",
        "-p",
        &server.port().to_string(),
    ]);
    command.arg(format!("@{}", server.ip())).args([name, "A"]);
    let text = output_even_if_failed(&mut command)?;
    text.lines()
        .map(|line| line.trim().parse().with_context(|| format!("dig said:\n{text}")))
        .collect()
}

/// A DNS server that knows only `name`, as `answer`.
pub fn dns_server(
    lab: &Lab,
    namespace: &Namespace,
    address: SocketAddr,
    name: &str,
    answer: IpAddr,
) -> Result<Process> {
    let mut command = namespace.command("dnsmasq");
    command.args([
        "--keep-in-foreground",
        "--conf-file=/dev/null",
        "--no-hosts",
        "--no-resolv",
        "--bind-interfaces",
        "--user=root",
    ]);
    command.args(["--pid-file=", "--log-facility=-", &format!("--port={}", address.port())]);
    command.args([
        format!("--listen-address={}", address.ip()),
        format!("--address=/{name}/{answer}"),
    ]);
    let mut process = Process::start(command, "dnsmasq", lab.scratch())?;
    let what = format!("dnsmasq listens on {address}");
    process.wait_while_running(&what, START_LIMIT, lab.interrupt(), |_| {
        Ok(namespace.listens_udp(address.port())?.then_some(()))
    })?;
    Ok(process)
}

/// An iperf3 server with more options: with `--json` and `--one-off` it prints a report
/// that [`Iperf3::read`] reads, and ends.
pub fn iperf3_server(
    lab: &Lab,
    namespace: &Namespace,
    port: u16,
    options: &[&str],
) -> Result<Process> {
    let mut command = namespace.command("iperf3");
    command.args(["--server", "--forceflush", "--port", &port.to_string()]).args(options);
    let mut process = Process::start(command, "iperf3-server", lab.scratch())?;
    process.wait_while_running("iperf3 listens", START_LIMIT, lab.interrupt(), |_| {
        Ok(namespace.listens_tcp(port)?.then_some(()))
    })?;
    Ok(process)
}

/// The parameters of an iperf3 client.
#[derive(Debug, Clone, Copy)]
pub struct Iperf3 {
    /// The server.
    pub server: SocketAddr,
    /// UDP at this many bits per second; `None` for TCP at full speed.
    pub udp_bits_per_second: Option<u64>,
    /// Data flows from the server to the client.
    pub reverse: bool,
    /// Duration, s.
    pub seconds: u32,
}

/// The receiver's measurements of an iperf3 test.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Transfer {
    /// Payload bytes received.
    pub bytes: u64,
    /// Payload bits per second received.
    pub bits_per_second: f64,
    /// UDP: datagrams sent; 0 for TCP.
    pub datagrams: u64,
    /// UDP: datagrams sent and not received.
    pub lost: u64,
}

impl Iperf3 {
    /// Starts the client; [`Iperf3::read`] reads its output when it has ended.
    pub fn start(&self, lab: &Lab, namespace: &Namespace, name: &str) -> Result<Process> {
        let mut command = namespace.command("iperf3");
        command.args([
            "--json",
            "--connect-timeout",
            "5000",
            "--client",
            &self.server.ip().to_string(),
        ]);
        command.args([
            "--port",
            &self.server.port().to_string(),
            "--time",
            &self.seconds.to_string(),
        ]);
        if let Some(rate) = self.udp_bits_per_second {
            // 1200 bytes fit every path; without --length iperf3 asks the path for its
            // MTU.
            command.args(["--udp", "--length", "1200", "--bitrate", &rate.to_string()]);
        }
        if self.reverse {
            command.arg("--reverse");
        }
        Process::start(command, name, lab.scratch())
    }

    /// Runs the client to its end.
    pub fn run(&self, lab: &Lab, namespace: &Namespace, name: &str) -> Result<Transfer> {
        let mut process = self.start(lab, namespace, name)?;
        Iperf3::read(
            &process.finish(Duration::from_secs(u64::from(self.seconds) + 30), lab.interrupt())?,
        )
    }

    /// Reads the report of a client, or of a server that prints as much.
    pub fn read(text: &str) -> Result<Transfer> {
        let report: serde_json::Value =
            serde_json::from_str(text).with_context(|| format!("iperf3 said:\n{text}"))?;
        // An interrupted client has ended as intended, and either side reports its
        // measurements so far.
        if let Some(error) =
            report["error"].as_str().filter(|error| !error.ends_with("the client has terminated"))
        {
            bail!("iperf3: {error}");
        }
        let end = &report["end"];
        if let Some(bytes) = end["sum_received"]["bytes"].as_u64().filter(|_| end["sum"].is_null())
        {
            let rate = end["sum_received"]["bits_per_second"].as_f64().unwrap_or(0.0);
            return Ok(Transfer { bytes, bits_per_second: rate, datagrams: 0, lost: 0 });
        }
        // The sums of a UDP test count sent datagrams, and give the lost ones apart.
        let sum = &end["sum"];
        let field = |name: &str| {
            sum[name].as_u64().ok_or_else(|| anyhow!("iperf3 said nothing about {name}:\n{text}"))
        };
        let (bytes, datagrams, lost) = (field("bytes")?, field("packets")?, field("lost_packets")?);
        let arrived = if datagrams == 0 { 0.0 } else { 1.0 - lost as f64 / datagrams as f64 };
        let rate = sum["bits_per_second"].as_f64().unwrap_or(0.0) * arrived;
        Ok(Transfer {
            bytes: (bytes as f64 * arrived) as u64,
            bits_per_second: rate,
            datagrams,
            lost,
        })
    }
}

/// The measurements of wrk.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct WebLoad {
    /// Requests answered.
    pub requests: u64,
    /// Requests answered per second.
    pub requests_per_second: f64,
    /// Socket errors: connect, read, write; broken connections.
    pub socket_errors: u64,
    /// Requests that took longer than the time-out.
    pub timeouts: u64,
    /// Answers other than 2xx and 3xx.
    pub bad_answers: u64,
}

/// Starts `wrk`; [`read_wrk`] reads its output when it has ended.
pub fn wrk(
    lab: &Lab,
    namespace: &Namespace,
    url: &str,
    connections: u32,
    seconds: u32,
) -> Result<Process> {
    let mut command = namespace.command("wrk");
    command.args(["--threads", "1", "--connections", &connections.to_string(), "--timeout", "10s"]);
    command.args(["--duration", &format!("{seconds}s"), url]);
    Process::start(command, "wrk", lab.scratch())
}

/// Reads the report of wrk.
pub fn read_wrk(text: &str) -> Result<WebLoad> {
    let line_with = |word: &str| text.lines().find(|line| line.contains(word));
    let first_number =
        |line: &str| line.split_whitespace().find_map(|word| word.parse::<f64>().ok());
    let requests = line_with(" requests in ")
        .and_then(first_number)
        .ok_or_else(|| anyhow!("wrk said:\n{text}"))?;
    let rate = line_with("Requests/sec:")
        .and_then(first_number)
        .ok_or_else(|| anyhow!("wrk said:\n{text}"))?;
    let errors = line_with("Socket errors:").unwrap_or_default();
    let errors_of = |kind: &str| -> u64 {
        let part = errors.split([',', ':']).find(|part| part.trim().starts_with(kind));
        part.and_then(|part| part.split_whitespace().last()?.parse().ok()).unwrap_or(0)
    };
    let bad =
        line_with("Non-2xx").and_then(|line| line.rsplit(' ').next()?.parse().ok()).unwrap_or(0);
    Ok(WebLoad {
        requests: requests as u64,
        requests_per_second: rate,
        socket_errors: ["connect", "read", "write"].iter().map(|kind| errors_of(kind)).sum(),
        timeouts: errors_of("timeout"),
        bad_answers: bad,
    })
}

/// Waits until a TCP server at `address` accepts a connection from inside `namespace`.
pub fn wait_for_tcp(lab: &Lab, namespace: &Namespace, address: SocketAddr) -> Result<()> {
    let probe = nginx::connect_probe(namespace, address);
    super::until(&format!("{address} accepts connections"), START_LIMIT, lab.interrupt(), probe)
}

/// Standard output for any exit code: these programs fail when the network loses packets,
/// and loss is a result here.
fn output_even_if_failed(command: &mut Command) -> Result<String> {
    let output =
        command.stdin(std::process::Stdio::null()).output().context("starting a program")?;
    let (stdout, stderr) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if stdout.is_empty() && !stderr.is_empty() {
        bail!("{:?} said: {stderr}", command.get_args().collect::<Vec<_>>());
    }
    Ok(stdout.into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ping_is_read() {
        let text = "PING 10.0.0.1 (10.0.0.1) 56(84) bytes of data.\n\n--- 10.0.0.1 ping statistics ---\n\
                    20 packets transmitted, 19 received, 5% packet loss, time 1900ms\nrtt min/avg/max/mdev = 0.1/0.1/0.1/0.0 ms\n";
        assert_eq!(read_pings(text).unwrap(), Pings { sent: 20, received: 19 });
        assert!((read_mean(text).unwrap() - 100.0).abs() < 0.01);
        let with_errors =
            "3 packets transmitted, 0 received, +3 errors, 100% packet loss, time 2040ms\n";
        assert_eq!(read_pings(with_errors).unwrap(), Pings { sent: 3, received: 0 });
        assert!(
            read_mean(with_errors).is_err()
                && read_pings("connect: Network is unreachable").is_err()
        );
        let replies = "PING 192.0.2.1 (192.0.2.1) 56(84) bytes of data.\n\
                       64 bytes from 192.0.2.1: icmp_seq=1 ttl=63 time=0.3 ms\n\
                       From 10.0.0.1 icmp_seq=2 Destination Host Unreachable\n\
                       64 bytes from 192.0.2.1: icmp_seq=12 ttl=63 time=0.2 ms\n";
        assert_eq!(read_replies(replies), [1, 12]);
    }

    #[test]
    fn traceroute_is_read() {
        let text = "traceroute to 198.51.100.11 (198.51.100.11), 8 hops max, 60 byte packets\n 1  10.0.0.1  0.050 ms\n 2  *\n 3  198.51.100.11  0.1 ms\n";
        let hops = read_hops(text).unwrap();
        assert_eq!(
            hops,
            vec![Some("10.0.0.1".parse().unwrap()), None, Some("198.51.100.11".parse().unwrap())]
        );
        assert!(read_hops("connect: Network is unreachable").is_err());
    }

    #[test]
    fn iperf3_is_read() {
        let tcp = r#"{"end":{"sum_sent":{"bytes":10},"sum_received":{"bytes":1000,"bits_per_second":8000.0}}}"#;
        assert_eq!(
            Iperf3::read(tcp).unwrap(),
            Transfer { bytes: 1000, bits_per_second: 8000.0, datagrams: 0, lost: 0 }
        );
        let udp = r#"{"end":{"sum":{"bytes":1000,"bits_per_second":8000.0,"lost_packets":1,"packets":4},"sum_received":{"bytes":1}}}"#;
        assert_eq!(
            Iperf3::read(udp).unwrap(),
            Transfer { bytes: 750, bits_per_second: 6000.0, datagrams: 4, lost: 1 }
        );
        let ended =
            tcp.replace("{\"end\"", r#"{"error":"interrupt - the client has terminated","end""#);
        assert_eq!(Iperf3::read(&ended).unwrap(), Iperf3::read(tcp).unwrap());
        assert_eq!(
            Iperf3::read(r#"{"error":"unable to connect"}"#).unwrap_err().to_string(),
            "iperf3: unable to connect"
        );
        assert!(Iperf3::read("nonsense").is_err());
    }

    #[test]
    fn wrk_is_read() {
        let text = "Running 5s test @ http://203.0.113.10/\n  1 threads and 100 connections\n  Thread Stats   Avg      Stdev     Max   +/- Stdev\n\
                    \x20   Latency     1.0ms   1.0ms  10.0ms   90.00%\n  12345 requests in 5.01s, 2.50MB read\n\
                    \x20 Socket errors: connect 1, read 2, write 3, timeout 4\n  Non-2xx or 3xx responses: 5\n\
                    Requests/sec:   2464.07\nTransfer/sec:      0.50MB\n";
        let load = read_wrk(text).unwrap();
        assert_eq!(
            (load.requests, load.socket_errors, load.timeouts, load.bad_answers),
            (12345, 6, 4, 5)
        );
        assert!((load.requests_per_second - 2464.07).abs() < 0.01);
        let good = read_wrk("  7 requests in 1s, 1MB read\nRequests/sec: 7.0\n").unwrap();
        assert_eq!((good.socket_errors, good.timeouts, good.bad_answers), (0, 0, 0));
        assert!(read_wrk("unable to connect to 203.0.113.10:80").is_err());
    }
}
