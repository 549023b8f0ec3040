//! Drop reasons, and their counters.

crate::events! {
    /// Why a packet was dropped.
    pub enum DropReason, "drop reason", "packets" {
        Truncated "truncated" "The frame is shorter than a header that it announces. Look at the sender or the link.";
        BadLength "bad_length" "An IP length field contradicts itself or the frame.";
        BadVersion "bad_version" "The IP version does not match the EtherType.";
        BadTransport "bad_transport" "A TCP or UDP length field contradicts the packet.";
        BadChecksum "bad_checksum" "The IPv4 header or transport checksum is wrong. If it happens on every packet, turn off checksum offload at the sender's device.";
        BadFragment "bad_fragment" "A fragment that is empty, beyond 65,535 bytes, overlapping, or of a length that cannot be reassembled.";
        HeadersTooDeep "headers_too_deep" "More than two VLAN tags or too many IPv6 extension headers.";
        UnknownEthertype "unknown_ethertype" "Not IPv4, IPv6 or ARP; the box is a router and forwards nothing else.";
        UnknownVlan "unknown_vlan" "The frame's VLAN is none of the ports' on its device (`vlan`), or the frame has no tag and every port there has one; or a function chose a VLAN that is not among the `flow_vlans` of the port where the packet leaves. A port's own counter has it if its device has VLANs, and then the first port's by name.";
        NotForUs "not_for_us" "The destination MAC address is another station's.";
        FrameTooLarge "frame_too_large" "Larger than the outgoing port's MTU, and not to be fragmented (IPv4 with DF, IPv6), or larger than an arena buffer. Offloads (TSO, GRO) left on make such frames.";
        BadSource "bad_source" "The source address cannot be one: multicast, broadcast, loopback, unspecified, or the destination itself (land).";
        AddressConflict "address_conflict" "Another station says by ARP or neighbour discovery that it has an address of the box; the box says again that it is here, at most every ten seconds. Find the station by its MAC address (`tcpdump -e arp`).";
        SourceRoute "source_route" "IPv4 source routes and IPv6 routing headers of types 0, 2, 3 and 4, and of unknown types with segments left, are refused (RFC 7126, RFC 5095): what they lead to is another destination than the one that rules see.";
        Multicast "multicast" "Multicast and broadcast are not forwarded.";
        LinkLocal "link_local" "A link-local address does not leave its link.";
        TtlExceeded "ttl_exceeded" "The TTL or hop limit ran out here; an ICMP time exceeded was sent, within its rate limit.";
        NoRouteToHost "no_route" "No connected network, route or gateway leads to the destination.";
        NeighborUnresolved "neighbor_unresolved" "The next hop did not answer ARP or neighbour solicitation.";
        Local "local" "For one of the box's own addresses, which answer only ARP, neighbour discovery and ping. Other senders are told that nobody listens (a TCP reset, ICMP port or protocol unreachable, ICMPv6 parameter problem), within rates.";
        NoRule "no_rule" "No service-chain rule matches. Add a rule without conditions to catch the rest.";
        NoRuntime "no_runtime" "No runtime is serving, so no flow can be opened.";
        RouteTableFull "route_table_full" "The switch has as many flows as it was given room for (limits.flows).";
        FlowTableFull "flow_table_full" "The runtime has as many flows as it was given room for (limits.flows).";
        ReplyKeyTaken "reply_key_taken" "Replies to the packet could not be told from those of another flow, which was first: two services lead to one backend port for one client port. It goes on when that flow has ended; `nat` or `source_nat` on the way gives each a port of its own.";
        NoFlow "no_flow" "A packet of a flow that this runtime does not have, and that may not open one.";
        FragmentUnknown "fragment_unknown" "A fragment whose first fragment never came, or came too late.";
        FragmentTableFull "fragment_table_full" "Too many datagrams are being reassembled at once.";
        PolicyDenied "policy_denied" "A rule of a firewall, of `http` or of `ips`, or its default, denies or rejects it; or `http` was given what is no HTTP, or does not fit, on this connection.";
        StateInvalid "state_invalid" "The packet does not fit its connection's state (TCP flags or sequence window, an ICMP error that quotes nothing known).";
        PoolEmpty "pool_empty" "The NAT pool has no free port. Add addresses to the pool or lower the timeouts.";
        QuotaExceeded "quota_exceeded" "A limit per host or flow is reached.";
        RateExceeded "rate_exceeded" "More than a `rate_limiter` lets pass.";
        NoMapping "no_mapping" "To a NAT address, but no mapping leads inside.";
        NoBackend "no_backend" "The load balancer has no usable backend.";
        NotTranslatable "not_translatable" "The function cannot translate this kind of packet, and fails closed.";
        FunctionDenied "function_denied" "A function of the chain dropped it for a reason of its own.";
        FunctionPanicked "function_panicked" "A function panicked on this packet; its flow was rolled back.";
        Quarantined "quarantined" "Two runtimes ended, one after the other, while they had this packet in hand. It is in the capture beside the control socket (`*.quarantine.pcapng`), and no third one gets it; its flow is closed. Report it, with the capture, to whoever wrote the chain's functions.";
        ParkedOverflow "parked_overflow" "Too many packets wait for the same flow's state or lease.";
        ParkedTooLong "parked_too_long" "What the packet waited for did not come in time.";
        HeldOverflow "held_overflow" "Too many packets wait for a commit or for a recovery.";
        RecoveryTimeout "recovery_timeout" "The flow's recovery did not finish in time.";
        Fenced "fenced" "Sent by a process after its role had moved to another; it may not release packets.";
        StaleEpoch "stale_epoch" "Belongs to an older owner of its flow.";
        StaleDuplicate "stale_duplicate" "The same packet came before.";
        LostInFailure "lost_in_failure" "Was inside a process when that failed, or on its way out before the switch's next incarnation knew its flow; or a reply that may be to either of two flows, of which nobody knows any more whose packets left.";
        Malformed "malformed_fabric" "A frame on the fabric that is not as the protocol says.";
        Unauthenticated "unauthenticated" "A frame on the fabric that does not prove that it comes from this cluster: forged, damaged, sealed under a key that this node does not have, or with a key where the other side has none. If it goes on, compare the files that `fabric.key` names on all hosts.";
        Replayed "replayed" "A sealed frame on the fabric that came before, or so late that nobody can tell. The network doubled it, or somebody plays it back. Where two networks join the hosts, a few came by both.";
        UnknownNode "unknown_node" "A frame on the fabric for a node that is not there.";
        QueueFull "queue_full" "The receiving process or port does not keep up.";
        ArenaEmpty "arena_empty" "All packet buffers are in use.";
        PortDown "port_down" "The outgoing port is down.";
        ShuttingDown "shutting_down" "The box is stopping.";
        ReplicaDiffers "replica_differs" "A flow's copy was not as its owner says that it should be. The owner was told and sent the whole flow again. If it happens more than once, look at the host's memory, and report it.";
        Unsealed "unsealed" "A packet from the hosts' network that no host has sealed, while this one has a key. Somebody else sends there, or a host has no `fabric.key`: compare the files of all hosts.";
        WrongCluster "wrong_cluster" "A packet on the hosts' network that another cluster's host has sealed. Two boxes share that network: give each its own, or look at `cluster` in the files of all hosts.";
        UnknownHost "unknown_host" "Something on the hosts' network from a host, or from an address, that the configuration does not name; or a host's own packet that came back to it. Compare `hosts` in the files of all hosts.";
        UnknownKey "unknown_key" "A packet on the hosts' network that was sealed under a key which this host does not have. While keys change, give every host the new key behind the current one before any host has it in front.";
        OldLife "old_life" "A packet on the hosts' network that was sealed in an earlier incarnation of its host. A few are normal when a manager or a host has been started again: they were on their way. If it goes on, somebody plays them back.";
        Unannounced "unannounced" "A packet on the hosts' network that was sealed in an incarnation of its host which that host has not told this one of yet. A few are normal when a host begins. If it goes on, the hosts do not hear each other's messages, or somebody forges packets.";
        NextHopDown "next_hop_down" "Every route to the destination leads through a router that was alive and is not heard any more (BFD). `holdfast status` says since when; a second route to the same network, through another router, would be used meanwhile.";
        BfdMalformed "bfd_malformed" "A BFD control packet from a configured router that is not as RFC 5880 says.";
        BfdNoSession "bfd_no_session" "A BFD control packet from a configured router that names another session than the one with it. A few are normal when either side has been started again.";
        BfdUnauthenticated "bfd_unauthenticated" "A BFD control packet that is not signed as the configuration asks: compare `key` of the port's `bfd` with the router's. Without a key here, the router must not sign either.";
        BfdReplayed "bfd_replayed" "A signed BFD control packet whose number came before, or is far ahead. A few are normal when the router has been started again; if it goes on, somebody plays them back.";
        LogFull "log_full" "The log of what a runtime was sent is full: nothing has been saved by its standby for a while, or packets come faster than it saves. Look at `holdfast status` for who is re-synchronising; a larger `log_mib` bridges longer times.";
        ReleasedBefore "released_before" "Came a second time after a failure. It was processed again to make its flow what it was, or was part of the copy already: what it had led to had left before, or was lost inside the failed process.";
        InputMissing "input_missing" "A flow was taken over, and a packet that its failed owner had processed is in no log any more. The flow would have forgotten what had left of it, so it is lost, and `status` counts it. Two failures followed each other before everything was safe again; if that is not so, report it.";
        FlowClosed "flow_closed" "Of a flow that was closed because one of its packets ended two runtimes (`quarantined`). A minute after that it may begin anew.";
        Suspect "suspect" "A runtime ended while it had this packet in hand, and no other one was safe enough to try it: had it ended too, flows would have been lost with it.";
        Damaged "damaged" "A frame from another host that is not as it was sent: its checksum is wrong. Look at the network between the hosts, and at their memory; or one of them has a `fabric.key` and another has none, or runs another version.";
        ForeignFrame "foreign_frame" "A frame on the hosts' network that no host has sent. Something else lives there: a network of its own is better.";
        SpoofedSource "spoofed_source" "The source address is not one that can be behind the port: no route to it leads by that port (RFC 3704, feasible path), or it is an address of a NAT pool or a service of the box itself. Where sources come by ports by which no route leads to them, add that route, or say `reverse_path: off` at the port.";
        LocalFragment "local_fragment" "A fragment for one of the box's own addresses whose datagram was not put together: others did not come within a minute, or it is longer than a buffer (some 2,600 bytes), in too many pieces, or one of too many at a time.";
        HalfOpenLimit "half_open_limit" "Its source has as many half-open flows as one source may have (limits.half_open_per_source): flows that nobody has answered, or of TCP whose initiator has not gone on. It floods, scans, or asks whoever does not answer. Of several switches each counts its own. A host behind which there are many others may need more.";
    }
}

impl DropReason {
    /// The reason with this name.
    pub fn from_name(name: &str) -> Option<DropReason> {
        DropReason::ALL.iter().copied().find(|reason| reason.name() == name)
    }

    /// The reason with this number.
    pub fn from_index(index: usize) -> Option<DropReason> {
        DropReason::ALL.get(index).copied()
    }
}

impl From<crate::Malformed> for DropReason {
    fn from(malformed: crate::Malformed) -> DropReason {
        match malformed {
            crate::Malformed::Truncated => DropReason::Truncated,
            crate::Malformed::BadLength => DropReason::BadLength,
            crate::Malformed::BadVersion => DropReason::BadVersion,
            crate::Malformed::TooDeep => DropReason::HeadersTooDeep,
            crate::Malformed::BadTransport => DropReason::BadTransport,
            crate::Malformed::BadFragment => DropReason::BadFragment,
        }
    }
}

/// A counter per reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DropCounters([u64; DropReason::ALL.len()]);

impl Default for DropCounters {
    fn default() -> DropCounters {
        DropCounters([0; DropReason::ALL.len()])
    }
}

impl DropCounters {
    /// Counts one drop.
    #[inline]
    pub fn count(&mut self, reason: DropReason) {
        self.0[reason as usize] += 1;
    }

    /// The drops for this reason.
    pub fn get(&self, reason: DropReason) -> u64 {
        self.0[reason as usize]
    }

    /// The drops for all reasons.
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// The reasons that occurred, with their counts.
    pub fn iter(&self) -> impl Iterator<Item = (DropReason, u64)> + '_ {
        DropReason::ALL
            .iter()
            .map(|&reason| (reason, self.get(reason)))
            .filter(|&(_, count)| count > 0)
    }

    /// Adds another part's counts.
    pub fn add(&mut self, other: &DropCounters) {
        for (mine, theirs) in self.0.iter_mut().zip(&other.0) {
            *mine += theirs;
        }
    }

    /// Adds `count` drops for one reason (a report from another process).
    pub fn add_count(&mut self, reason: DropReason, count: u64) {
        self.0[reason as usize] += count;
    }
}
