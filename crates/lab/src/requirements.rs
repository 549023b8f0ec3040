//! The privileges and programs that a laboratory needs, and the remedy if something is
//! missing.

use std::fmt;
use std::path::PathBuf;

/// Bits of `CapEff` in `/proc/self/status`.
const CAP_NET_ADMIN: u32 = 12;
const CAP_NET_RAW: u32 = 13;
const CAP_SYS_ADMIN: u32 = 21;

/// A missing privilege or program, with its remedy in the text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Missing {
    /// The privilege to make namespaces.
    Privilege,
    /// A program, and the Debian package that contains it.
    Program {
        /// Name of the executable.
        program: &'static str,
        /// Package to install.
        package: &'static str,
    },
}

impl Missing {
    /// The exit code for this error (sysexits: 77 permission, 69 unavailable).
    pub fn exit_code(&self) -> u8 {
        match self {
            Missing::Privilege => 77,
            Missing::Program { .. } => 69,
        }
    }
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Missing::Privilege => f.write_str(
                "network namespaces need root (CAP_NET_ADMIN, CAP_NET_RAW and CAP_SYS_ADMIN): run it with sudo, a container with --privileged",
            ),
            Missing::Program { program, package } => {
                write!(f, "`{program}` is not installed: run `make setup`, or `apt-get install {package}`")
            }
        }
    }
}

impl std::error::Error for Missing {}

/// A program of the laboratory: its executable and its Debian package.
pub type Program = (&'static str, &'static str);

/// For namespaces and links.
pub const IP: Program = ("ip", "iproute2");
/// For offloads.
pub const ETHTOOL: Program = ("ethtool", "ethtool");
/// For cutting links.
pub const NFT: Program = ("nft", "nftables");
/// Web server.
pub const NGINX: Program = ("nginx", "nginx-light");
/// Web client.
pub const CURL: Program = ("curl", "curl");
/// Bulk transfer.
pub const IPERF3: Program = ("iperf3", "iperf3");
/// Web load.
pub const WRK: Program = ("wrk", "wrk");
/// Echo requests.
pub const PING: Program = ("ping", "iputils-ping");
/// Path tracing.
pub const TRACEROUTE: Program = ("traceroute", "traceroute");
/// DNS client.
pub const DIG: Program = ("dig", "bind9-dnsutils");
/// The store in which coordinators elect one.
pub const ETCD: Program = ("etcd", "etcd-server");
/// DNS server.
pub const DNSMASQ: Program = ("dnsmasq", "dnsmasq-base");

/// A shell over a network.
pub const SSH: Program = ("ssh", "openssh-client");
/// Its server, which also brings `ssh-keygen`.
pub const SSHD: Program = ("sshd", "openssh-server");
/// An HTTPS server that needs no file but its certificate.
pub const OPENSSL: Program = ("openssl", "openssl");

/// Checks the privilege, then the programs; the error is the first thing missing.
pub fn require(programs: &[Program]) -> Result<(), Missing> {
    if !is_privileged() {
        return Err(Missing::Privilege);
    }
    match programs.iter().find(|(program, _)| find(program).is_none()) {
        Some(&(program, package)) => Err(Missing::Program { program, package }),
        None => Ok(()),
    }
}

/// True if this process may make namespaces, devices and raw sockets.
pub fn is_privileged() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    has_capabilities(&status, &[CAP_NET_ADMIN, CAP_NET_RAW, CAP_SYS_ADMIN])
}

fn has_capabilities(status: &str, wanted: &[u32]) -> bool {
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let Some(bits) = effective.and_then(|text| u64::from_str_radix(text.trim(), 16).ok()) else {
        return false;
    };
    wanted.iter().all(|bit| bits & (1 << bit) != 0)
}

/// Finds an executable on the path, or in Debian's directories for root.
pub fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin", "/usr/bin", "/bin"].map(PathBuf::from))
        .map(|directory| directory.join(program))
        .find(|candidate| candidate.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities_are_read_from_the_process_status() {
        let root = "Name:\tx\nCapEff:\t000001ffffffffff\n";
        let container = "CapEff:\t00000000a80425fb\n";
        let all = [CAP_NET_ADMIN, CAP_NET_RAW, CAP_SYS_ADMIN];
        assert!(has_capabilities(root, &all));
        assert!(!has_capabilities(container, &all), "a plain container has NET_RAW only");
        assert!(has_capabilities(container, &[CAP_NET_RAW]));
        assert!(!has_capabilities("", &all));
    }

    #[test]
    fn a_missing_program_names_its_package() {
        assert!(find("sh").is_some());
        assert!(find("no-such-program-anywhere").is_none());
        let missing = Missing::Program { program: "wrk", package: "wrk" };
        assert!(missing.to_string().contains("apt-get install wrk"));
        assert_eq!((missing.exit_code(), Missing::Privilege.exit_code()), (69, 77));
    }
}
