//! Frames that the kernel and the device lost outside a port, by the counter that has
//! them.

use std::collections::BTreeMap;

holdfast_wire::events! {
    /// A counter of the kernel's or the device's.
    pub enum Loss, "counter of frames lost outside a port", "frames" {
        PacketSocketFull "packet_socket_full" "Frames for which an AF_PACKET port's socket had no room, because the box did not fetch them in time: more comes than it can take.";
        XdpDropped "xdp_dropped" "Frames that the kernel could not put into an AF_XDP port's memory: the box did not fetch the earlier ones in time, or a frame was too long.";
        XdpRingFull "xdp_ring_full" "Frames for which an AF_XDP port's ring had no room, because the box did not fetch them in time: more comes than it can take.";
        XdpInvalid "xdp_invalid" "Frames that an AF_XDP port gave to the kernel, or was given, with a description that the kernel refused: please report it.";
        DeviceRxDropped "device_rx_dropped" "Frames that came in by the port's device and that the kernel dropped before anybody had them, as `ip -s link` counts them, without those that an AF_XDP port's socket had no room for, which have counters of their own: most often its queue for them was full, because the processors did not keep up. `sysctl net.core.netdev_max_backlog` is how long that is.";
        DeviceRxMissed "device_rx_missed" "Frames that the port's device had no room for, because the kernel did not fetch them in time: `ethtool -G` makes its rings longer. Of a DPDK port: because the box did not fetch them in time, so that more comes than it can take.";
        DeviceRxErrors "device_rx_errors" "Damaged frames, as the port's device counts them: a bad cable, or an end that sends longer frames than the device takes.";
        DeviceTxDropped "device_tx_dropped" "Frames that the port's device did not take or send, tries counted that were repeated, as `ip -s link` counts them: what is behind it does not keep up.";
        DeviceTxErrors "device_tx_errors" "Frames that the port's device could not send, as it counts them.";
    }
}

/// Frames that were lost outside the port.
pub type Losses = BTreeMap<Loss, u64>;

/// Counts what has been lost, if anything.
pub(super) fn lose(into: &mut Losses, loss: Loss, count: u64) {
    if count > 0 {
        *into.entry(loss).or_default() += count;
    }
}
