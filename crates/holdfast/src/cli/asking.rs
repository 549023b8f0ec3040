//! Commands that ask a running box: `status`, `trace`.

use holdfast_control::exit::{self, Failure};
use holdfast_control::status::{self, Election, Protected, Status, Talker};
use holdfast_control::table::print;
use holdfast_control::table::{Style, Table, Tone};
use holdfast_control::{Client, Target, object};
use std::time::{Duration, Instant};

/// The pause between two checks whether the box is safe.
const LOOK: Duration = Duration::from_millis(100);

pub(super) fn or_dash<T: ToString>(value: Option<T>) -> String {
    value.map_or("-".to_owned(), |value| value.to_string())
}

fn counted(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// Shows the status. With `timeout`, waits until the box is safe.
pub(super) fn status(
    target: &Target,
    timeout: Option<Duration>,
    json: bool,
) -> Result<(), Failure> {
    let client = Client::to(target)?;
    let began_at = Instant::now();
    let mut status = client.status()?;
    let is_safe = |status: &Status| status.protected() == Protected::Yes;
    while timeout.is_some_and(|timeout| began_at.elapsed() < timeout) && !is_safe(&status) {
        std::thread::sleep(LOOK);
        match client.status() {
            Ok(now) => status = now,
            // The manager may be restarting: ask again until the timeout.
            Err(failure) if [exit::UNAVAILABLE, exit::TIMEOUT].contains(&failure.code) => {}
            Err(failure) => return Err(failure),
        }
    }
    match json {
        true => print(&format!("{}\n", object(&status)))?,
        false => print(&status_text(&status, Style::of_stdout()))?,
    }
    match timeout {
        _ if is_safe(&status) => Ok(()),
        Some(timeout) => Err(Failure::new(
            exit::TIMEOUT,
            format!("it was not safe within {} s", timeout.as_secs()),
        )),
        // The printed answer is enough.
        None => Err(Failure::new(exit::NEGATIVE, "")),
    }
}

/// The fill of flow tables: of all switches together, and of those nearly full.
fn tables_text(status: &Status, style: Style) -> String {
    let of_switches = || status.flow_tables.iter().filter(|table| table.half_open.is_some());
    let sum = |of: fn(&status::FlowTable) -> u64| of_switches().map(of).sum::<u64>();
    let (used, size) = (sum(|table| table.used), sum(|table| table.size));
    if size == 0 {
        return String::new();
    }
    let forgotten: u64 = status.flow_tables.iter().filter_map(|table| table.forgotten).sum();
    let early =
        if forgotten == 0 { String::new() } else { format!(", {forgotten} ended early so far") };
    let half_open = sum(|table| table.half_open.unwrap_or(0));
    let full = status.flow_tables.iter().filter(|table| table.is_nearly_full());
    let full: Vec<String> = full
        .map(|table| format!("{} of node {}", percent(table.fill_permille), table.id))
        .collect();
    let warning = match full.is_empty() {
        true => String::new(),
        false => style.paint(
            &format!("; nearly full: {} (holdfast explain flow_tables)", full.join(", ")),
            Tone::Caution,
        ),
    };
    let fill = percent((used * 1000 / size) as u32);
    format!("flows: {used} of {size} ({fill}), {half_open} half open{early}{warning}\n")
}

fn percent(permille: u32) -> String {
    format!("{} %", permille / 10)
}

fn status_text(status: &Status, style: Style) -> String {
    let tone = match status.protected() {
        Protected::Yes => Tone::Good,
        Protected::ReSynchronising => Tone::Caution,
        Protected::No | Protected::Unspecified => Tone::Bad,
    };
    let protected = style.paint(status.protected().word(), tone);
    let weakness = match status.may_forget {
        0 => String::new(),
        packets => format!(
            " (weakly: a failure may undo up to {packets} packets of a flow, and what was under way)"
        ),
    };
    let unit = match (status.protected(), status.hosts.is_empty()) {
        (Protected::Yes, false) if status.survives == status::UNIT_HOST => ", whichever host fails",
        (Protected::Yes, false) => ", whichever process fails; not every host may",
        _ => "",
    };
    let mut text = format!("protected: {protected}{unit}{weakness}\n");
    if status.copies_differed > 0 {
        let count = counted(status.copies_differed as usize, "replica");
        text += &format!(
            "replicas: {count} not as the owner has the flow, made anew (holdfast explain replica_differs)\n"
        );
    }
    if status.absent_flows > 0 {
        let (flows, fetched) =
            (counted(status.absent_flows as usize, "flow"), status.fetched_states);
        text += &format!(
            "memory: {flows} with state at the state server alone, {fetched} fetched so far (holdfast explain absent_flows)\n"
        );
    }
    text += &tables_text(status, style);
    if !status.hosts.is_empty() {
        let host = |host: &status::Host| {
            let silent = |network: &&status::Network| !network.leads;
            let silent: Vec<&str> = host
                .networks
                .iter()
                .filter(silent)
                .map(|network| network.device.as_str())
                .collect();
            // The networks of a host that is away are silent anyway.
            let networks = match silent.is_empty() || host.state == status::STATE_AWAY {
                true => String::new(),
                false => format!(" (not by {})", silent.join(" or ")),
            };
            format!(
                "{}{} {}{networks}",
                host.name,
                if host.is_this { " (this one)" } else { "" },
                host.state
            )
        };
        text +=
            &format!("hosts: {}\n", status.hosts.iter().map(host).collect::<Vec<_>>().join(", "));
    }
    if let Some(rules) = &status.rules {
        let wait = if rules.in_force { "" } else { ", not in force everywhere yet" };
        text += &format!(
            "rules: version {}, {}{wait}\n",
            rules.version,
            counted(rules.count as usize, "rule")
        );
    }
    if let Some(election) = &status.election {
        text += &election_text(election, style);
    }
    if let Some(control) = &status.control {
        let refused: u64 = control.refused.values().sum();
        let reasons: Vec<String> =
            control.refused.iter().map(|(reason, count)| format!("{reason} {count}")).collect();
        let refused =
            if refused == 0 { String::new() } else { format!("; refused: {}", reasons.join(", ")) };
        let connections = counted(control.connections as usize, "connection");
        let calls = counted(control.calls as usize, "call");
        text += &format!("control API: {}, {connections}, {calls}{refused}\n", control.listen);
    }
    text += "\n";
    let ports = status.ports.iter().map(|port| {
        vec![
            port.name.clone(),
            port.place(),
            port.driver.clone(),
            port.mac.clone(),
            port.mtu.to_string(),
            if port.up { "up" } else { "down" }.to_owned(),
            port.received.to_string(),
            port.consumed.to_string(),
            port.transmitted.to_string(),
            port.forwarded.to_string(),
            port.drops.values().sum::<u64>().to_string(),
        ]
    });
    let columns = [
        "port",
        "device",
        "driver",
        "mac",
        "mtu",
        "state",
        "received",
        "consumed",
        "transmitted",
        "forwarded",
        "dropped",
    ];
    let ports = Table::of(&columns, ports);
    if !ports.is_empty() {
        text += &format!("{}\n", ports.text(style));
    }
    let lost = status.ports.iter().flat_map(|port| {
        port.lost
            .iter()
            .map(|(counter, frames)| vec![port.name.clone(), counter.clone(), frames.to_string()])
    });
    let lost = Table::of(&["port", "lost outside it", "frames"], lost);
    if !lost.is_empty() {
        text += &format!("{}\n", lost.text(style));
    }
    let time = |us: u64| {
        if us.is_multiple_of(1000) { format!("{} ms", us / 1000) } else { format!("{us} us") }
    };
    let watched =
        status.ports.iter().flat_map(|port| port.bfd.iter().map(move |bfd| (port, bfd))).map(
            |(port, bfd)| {
                vec![
                    bfd.peer.clone(),
                    port.name.clone(),
                    if bfd.dead { format!("{} (dead)", bfd.state) } else { bfd.state.clone() },
                    age(bfd.since_ms),
                    bfd.diagnostic.clone(),
                    bfd.remote_state.clone(),
                    time(bfd.transmit_us.into()),
                    or_dash(bfd.receive_us.map(|us| time(us.into()))),
                    or_dash(bfd.detection_us.map(time)),
                    bfd.downs.to_string(),
                ]
            },
        );
    let head = [
        "router",
        "port",
        "BFD",
        "for",
        "because",
        "there",
        "sends every",
        "hears every",
        "dead after",
        "went down",
    ];
    let watched = Table::of(&head, watched);
    if !watched.is_empty() {
        text += &format!("{}\n", watched.text(style));
    }
    let has_standbys = status.processes.iter().any(|process| process.local_standby.is_some());
    let processes = status.processes.iter().map(|process| {
        let dropped: u64 = process.drops.values().sum();
        let standby = has_standbys.then(|| {
            or_dash(process.local_standby.map(|standby| match standby.pid {
                0 => format!("none yet, {} before", standby.takeovers),
                pid => format!("{pid}, {} before", standby.takeovers),
            }))
        });
        let first = [
            process
                .name
                .as_ref()
                .map_or_else(|| process.role.clone(), |name| format!("{} {name}", process.role)),
            process.id.to_string(),
            process.incarnation.to_string(),
            or_dash((process.pid != 0).then_some(process.pid)),
        ];
        let last = [
            process.host.clone(),
            or_dash(process.cluster.as_ref()),
            process.state.clone(),
            process.flows.to_string(),
            process.packets.to_string(),
            or_dash(process.busy_permille.map(|busy| format!("{}.{} %", busy / 10, busy % 10))),
            dropped.to_string(),
        ];
        first.into_iter().chain(standby).chain(last).collect()
    });
    let retried = status.processes.iter().filter_map(|process| {
        let retry = process.retry.as_ref()?;
        let next = retry.next_ms.map(|next| format!("in {next} ms"));
        Some(vec![
            process.role.clone(),
            process.id.to_string(),
            retry.failures.to_string(),
            or_dash(next),
            retry.cause.clone(),
        ])
    });
    let retried = Table::of(&["tried again", "id", "short lives", "next", "cause"], retried);
    let mut head = vec![
        "role",
        "id",
        "incarnation",
        "pid",
        "host",
        "cluster",
        "state",
        "flows",
        "packets",
        "busy",
        "dropped",
    ];
    if has_standbys {
        head.insert(4, "standby");
    }
    text += &Table::of(&head, processes).text(style);
    if !retried.is_empty() {
        text += &format!("\n{}", retried.text(style));
    }
    let drops = Table::of(
        &["dropped for", "packets"],
        status.drops.iter().map(|(reason, count)| vec![reason.clone(), count.to_string()]),
    );
    if !drops.is_empty() {
        text += &format!("\n{}", drops.text(style));
    }
    let statistics = status.statistics.iter().flat_map(|statistic| {
        let name = format!("{}/{}.{}", statistic.chain, statistic.function, statistic.name);
        let row = move |value: &status::StatisticValue| {
            vec![
                name.clone(),
                statistic.kind.clone(),
                statistic.shared.clone(),
                value.name.clone(),
                value.value.to_string(),
            ]
        };
        statistic.values.iter().map(row)
    });
    let statistics = Table::of(&["statistic", "kind", "shared", "of", "value"], statistics);
    if !statistics.is_empty() {
        text += &format!("\n{}", statistics.text(style));
    }
    text += &talkers_text(status, style);
    let failovers = status.failovers.iter().map(|failover| {
        vec![
            failover.runtime.to_string(),
            failover.incarnation.to_string(),
            failover.cause.clone(),
            or_dash(failover.detection_us),
            or_dash(failover.recovered_us),
            failover.flows.to_string(),
            failover.recovered.to_string(),
            failover.lost.to_string(),
        ]
    });
    let head = [
        "failed",
        "incarnation",
        "cause",
        "detection_us",
        "recovered_us",
        "flows",
        "recovered",
        "lost",
    ];
    let failovers = Table::of(&head, failovers);
    if !failovers.is_empty() {
        text += &format!("\n{}", failovers.text(style));
    }
    text
}

/// The flows, hosts and ports with the most bytes: a table each.
fn talkers_text(status: &Status, style: Style) -> String {
    let Some(talkers) = &status.talkers else { return String::new() };
    let table = |of: &str, all: &[Talker], slack: u64| {
        let row = |talker: &Talker| {
            vec![talker.name.clone(), talker.packets.to_string(), talker.bytes.to_string()]
        };
        let table = Table::of(&[of, "packets", "bytes"], all.iter().map(row));
        let more = match slack {
            0 => String::new(),
            slack => format!("Each may have up to {slack} more bytes than shown.\n"),
        };
        if table.is_empty() { String::new() } else { format!("\n{}{more}", table.text(style)) }
    };
    table("top flows", &talkers.flows, 0)
        + &table("top hosts", &talkers.hosts, talkers.hosts_slack)
        + &table("top ports", &talkers.ports, talkers.ports_slack)
}

fn election_text(election: &Election, style: Style) -> String {
    let leader = match &election.leader {
        Some(leader) => {
            let process =
                if leader.pid == 0 { String::new() } else { format!(", process {}", leader.pid) };
            format!("{}{process} (incarnation {})", leader.host, leader.incarnation)
        }
        None => style.paint("nobody", Tone::Caution),
    };
    let silent = election
        .silent_ms
        .map(|ms| style.paint(&format!("; etcd has not answered for {}", age(ms)), Tone::Caution));
    let trouble = election.trouble.as_ref().map(|trouble| format!("; {trouble}"));
    format!("coordinator: {leader}{}{}\n", silent.unwrap_or_default(), trouble.unwrap_or_default())
}

/// A time with two digits and a unit.
pub(super) fn age(ms: u64) -> String {
    match ms {
        0..1_000 => format!("{ms} ms"),
        1_000..60_000 => format!("{}.{} s", ms / 1000, ms % 1000 / 100),
        60_000..3_600_000 => format!("{} min {} s", ms / 60_000, ms % 60_000 / 1000),
        _ => format!("{} h {} min", ms / 3_600_000, ms % 3_600_000 / 60_000),
    }
}

pub(super) fn trace(
    target: &Target,
    selector: &str,
    count: u32,
    wait: Duration,
    json: bool,
) -> Result<(), Failure> {
    let client = Client::to(target)?;
    let seen = client.trace(selector.to_owned(), count, wait, |step| match json {
        true => print(&format!("{}\n", object(step))),
        false => print(&format!("packet {}  {}  {}\n", step.packet, step.place, step.text)),
    })?;
    if seen == 0 && count > 0 {
        return Err(Failure::new(exit::TIMEOUT, "no packet matched in time"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::{Request, Server, listen_and_stop};
    use serde_json::json;
    use std::sync::Arc;

    #[test]
    fn status_is_a_table_with_what_happened_below() {
        let status: Status = serde_json::from_str(
            r#"{"version":1,"protected":"re-synchronising","processes":[{"role":"runtime","id":16,"incarnation":2,"pid":7,"host":"h","cluster":"gold",
                "state":"running","flows":3,"packets":12345,"busy_permille":77,"drops":{"no_flow":1,"fenced":2}}],"drops":{"no_flow":1},"rules":{"version":3,"count":2,"in_force":false},
                "failovers":[{"runtime":16,"incarnation":1,"cause":"killed by signal 9","detected_at_ns":5,"detection_us":90,"flows":3,
                "recovered":2,"lost":1}]}"#,
        )
        .unwrap();
        let expected = "protected: re-synchronising\n\
                        rules: version 3, 2 rules, not in force everywhere yet\n\n\
                        role     id  incarnation  pid  host  cluster  state    flows  packets  busy   dropped\n\
                        runtime  16            2    7  h     gold     running      3    12345  7.7 %        3\n\n\
                        dropped for  packets\n\
                        no_flow            1\n\n\
                        failed  incarnation  cause               detection_us  recovered_us  flows  recovered  lost\n    \
                        16            1  killed by signal 9            90             -      3          2     1\n";
        assert_eq!(status_text(&status, Style::PLAIN), expected);
    }

    /// Processes that keep ending have a table: how often, when they are started again,
    /// and how they ended.
    #[test]
    fn what_is_tried_again_is_shown_with_why() {
        let process = |role: &str, id: u16, retry: serde_json::Value| {
            json!({ "role": role, "id": id, "incarnation": 3, "pid": 0, "host": "h", "state": "away", "flows": 0, "packets": 0,
                "drops": {}, "retry": retry })
        };
        let status: Status = serde_json::from_value(json!({ "version": 1, "protected": "no", "processes": [
            process("coordinator", 1, json!({ "failures": 5, "next_ms": 350, "cause": "exited with code 1" })),
            process("runtime", 16, json!({ "failures": 1, "cause": "killed by signal 9" })),
            process("runtime", 17, serde_json::Value::Null),
        ] }))
        .unwrap();
        let text = status_text(&status, Style::PLAIN);
        let table: Vec<&str> =
            text.lines().skip_while(|line| !line.starts_with("tried again")).collect();
        assert_eq!(
            table,
            [
                "tried again  id  short lives  next       cause",
                "coordinator   1            5  in 350 ms  exited with code 1",
                "runtime      16            1  -          killed by signal 9",
            ]
        );
    }

    /// How full the tables of flows are is a line: of the switches together, and what is
    /// nearly full.
    #[test]
    fn full_tables_are_said() {
        let line = |used: u64, permille: u16, forgotten: u64| {
            let status: Status =
                serde_json::from_value(json!({ "version": 1, "protected": "yes", "processes": [], "flow_tables": [
                { "id": 1, "used": used, "size": 65_536, "fill_permille": used * 1000 / 65_536, "half_open": 3 },
                { "id": 16, "used": used, "size": 65_536, "fill_permille": permille, "forgotten": forgotten },
            ] }))
                .unwrap();
            status_text(&status, Style::PLAIN).lines().nth(1).unwrap().to_owned()
        };
        assert_eq!(line(600, 9, 0), "flows: 600 of 65536 (0 %), 3 half open");
        assert_eq!(
            line(59_500, 899, 7),
            "flows: 59500 of 65536 (90 %), 3 half open, 7 ended early so far; nearly full: 90 % of node 1 (holdfast explain flow_tables)"
        );
        assert_eq!(
            line(6_553, 900, 0),
            "flows: 6553 of 65536 (9 %), 3 half open; nearly full: 90 % of node 16 (holdfast explain flow_tables)"
        );
    }

    /// Statistics are a table with a number per line.
    #[test]
    fn statistics_are_lines() {
        let status: Status = serde_json::from_str(
            r#"{"version":1,"protected":"yes","processes":[],"statistics":[
                {"chain":"web","function":"monitor","name":"counters","kind":"counters","shared":"state-server","size":2,
                "values":[{"name":"flows","value":7},{"name":"packets","value":12345}]},
                {"chain":"web","function":"load_balancer","name":"flows","kind":"gauge","shared":"state-server","size":1,
                "values":[{"name":"0","value":-1}]}]}"#,
        )
        .unwrap();
        let text = status_text(&status, Style::PLAIN);
        let table: Vec<&str> =
            text.lines().skip_while(|line| !line.starts_with("statistic")).collect();
        assert_eq!(
            table,
            [
                "statistic                kind      shared        of       value",
                "web/monitor.counters     counters  state-server  flows        7",
                "web/monitor.counters     counters  state-server  packets  12345",
                "web/load_balancer.flows  gauge     state-server  0           -1",
            ]
        );
    }

    /// The flows, hosts and ports with the most bytes are a table each, and what may be
    /// missing is said.
    #[test]
    fn who_has_most_is_shown() {
        let status: Status = serde_json::from_value(json!({ "version": 1, "protected": "yes", "processes": [], "talkers": {
            "flows": [{ "name": "udp 10.0.0.2:5 > 203.0.113.10:53", "packets": 12, "bytes": 700 }],
            "hosts": [{ "name": "203.0.113.10", "packets": 20, "bytes": 1100 }, { "name": "10.0.0.2", "packets": 12, "bytes": 700 }],
            "ports": [{ "name": "udp 53", "packets": 20, "bytes": 1100 }],
            "ports_slack": 40,
        } }))
        .unwrap();
        let text = status_text(&status, Style::PLAIN);
        let tables: Vec<&str> = text.lines().skip_while(|line| !line.starts_with("top")).collect();
        assert_eq!(
            tables,
            [
                "top flows                         packets  bytes",
                "udp 10.0.0.2:5 > 203.0.113.10:53       12    700",
                "",
                "top hosts     packets  bytes",
                "203.0.113.10       20   1100",
                "10.0.0.2           12    700",
                "",
                "top ports  packets  bytes",
                "udp 53          20   1100",
                "Each may have up to 40 more bytes than shown.",
            ]
        );
    }

    /// Routers that are watched have a table; of one that is not heard there are no
    /// intervals to show.
    #[test]
    fn routers_are_shown_with_why_they_are_not_used() {
        let status: Status = serde_json::from_str(
            r#"{"version":1,"protected":"yes","processes":[],"ports":[{"name":"outside","device":"eth1","driver":"afxdp","mac":"m","mtu":1500,"up":true,
                "received":1,"transmitted":2,"bfd":[
                {"peer":"198.51.100.254","state":"Up","diagnostic":"none","remote_state":"Up","remote_diagnostic":"none","dead":false,
                "transmit_us":50000,"receive_us":3300,"detection_us":9900,"since_ms":61000,"downs":0},
                {"peer":"2001:db8::1","state":"Down","diagnostic":"control detection time expired","remote_state":"Down",
                "remote_diagnostic":"none","dead":true,"transmit_us":1000000,"since_ms":950,"downs":2,"last_down":"path down"}]}]}"#,
        )
        .unwrap();
        let text = status_text(&status, Style::PLAIN);
        let table: Vec<&str> =
            text.lines().skip_while(|line| !line.starts_with("router")).take(3).collect();
        assert_eq!(
            table,
            [
                "router          port     BFD          for        because                         there  sends every  hears every  dead after  went down",
                "198.51.100.254  outside  Up           1 min 1 s  none                            Up     50 ms        3300 us      9900 us             0",
                "2001:db8::1     outside  Down (dead)  950 ms     control detection time expired  Down   1000 ms      -            -                   2",
            ]
        );
    }

    /// Frames that the kernel or the device lost outside a port are in a table of their
    /// own, by port: they are no drops of the box.
    #[test]
    fn what_is_lost_outside_a_port_is_named() {
        let status: Status = serde_json::from_str(
            r#"{"version":1,"protected":"yes","processes":[],"ports":[{"name":"outside","device":"eth1","driver":"afpacket","mac":"m","mtu":1500,"up":true,
                "received":1,"transmitted":2,"lost":{"device_rx_dropped":3900000,"packet_socket_full":7}}]}"#,
        )
        .unwrap();
        let text = status_text(&status, Style::PLAIN);
        let table: Vec<&str> =
            text.lines().skip_while(|line| !line.contains("lost outside it")).take(3).collect();
        let expected = [
            "port     lost outside it      frames",
            "outside  device_rx_dropped   3900000",
            "outside  packet_socket_full        7",
        ];
        assert_eq!(table, expected);
        for counter in status.ports[0].lost.keys() {
            assert!(crate::explain::explain(counter).is_ok(), "{counter}");
        }
    }

    /// The control API is a line, with what it refused if that is anything.
    #[test]
    fn what_the_control_api_refused_is_in_one_line() {
        let status = |refused: &str| {
            let text = format!(
                r#"{{"version":1,"protected":"yes","processes":[],"control":{{"listen":"10.9.0.1:7443","connections":1,"calls":7,"refused":{refused}}}}}"#
            );
            status_text(&serde_json::from_str(&text).unwrap(), Style::PLAIN)
        };
        assert!(status("{}").contains("control API: 10.9.0.1:7443, 1 connection, 7 calls\n"));
        let text = status(r#"{"denied":2,"not_tls":1}"#);
        assert!(
            text.contains(
                "control API: 10.9.0.1:7443, 1 connection, 7 calls; refused: denied 2, not_tls 1\n"
            ),
            "{text}"
        );
    }

    /// The table has local standbys, with the number of dead processes in each place.
    /// Without local standbys there is no such column.
    #[test]
    fn local_standbys_are_shown_where_there_are_any() {
        let process = |id: u32, standby: &str| {
            format!(
                r#"{{"role":"runtime","id":{id},"incarnation":1,"pid":7,"host":"h","state":"running","flows":0,"packets":0{standby}}}"#
            )
        };
        let processes = [
            process(16, r#","local_standby":{"pid":8,"takeovers":2}"#),
            process(17, r#","local_standby":{"pid":0,"takeovers":1}"#),
            process(18, ""),
        ]
        .join(",");
        let text = format!(r#"{{"version":1,"protected":"yes","processes":[{processes}]}}"#);
        let expected = "protected: yes\n\n\
                        role     id  incarnation  pid  standby             host  cluster  state    flows  packets  busy  dropped\n\
                        runtime  16            1    7  8, 2 before         h           -  running      0        0     -        0\n\
                        runtime  17            1    7  none yet, 1 before  h           -  running      0        0     -        0\n\
                        runtime  18            1    7  -                   h           -  running      0        0     -        0\n";
        assert_eq!(status_text(&serde_json::from_str(&text).unwrap(), Style::PLAIN), expected);
    }

    /// A place in which nobody runs for now: the word says so, there is no process to
    /// name, and no failure is listed.
    #[test]
    fn a_spare_place_does_not_look_like_a_failure() {
        let status: Status = serde_json::from_str(
            r#"{"version":1,"protected":"yes","processes":[{"role":"runtime","id":18,"incarnation":1,"pid":0,"host":"h","cluster":"gold",
                "state":"spare","flows":0,"packets":0}]}"#,
        )
        .unwrap();
        let expected = "protected: yes\n\n\
                        role     id  incarnation  pid  host  cluster  state  flows  packets  busy  dropped\n\
                        runtime  18            1    -  h     gold     spare      0        0     -        0\n";
        assert_eq!(status_text(&status, Style::PLAIN), expected);
    }

    #[test]
    fn ages_are_as_people_say_them() {
        assert_eq!(
            [5, 1_250, 61_000, 7_260_000].map(age),
            ["5 ms", "1.2 s", "1 min 1 s", "2 h 1 min"]
        );
    }

    /// A box that answers with these words, one after the other, and with the last one
    /// from then on.
    fn box_that_says(words: &'static [&'static str]) -> (tempfile::TempDir, Server, Target) {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("box.sock");
        let (requests, asked) = std::sync::mpsc::channel();
        let server = listen_and_stop(&path, requests, Arc::new(|| {}), Arc::new(|| {})).unwrap();
        std::thread::spawn(move || {
            for (at, asked) in asked.into_iter().enumerate() {
                let protected = words[at.min(words.len() - 1)];
                let Request::Status(answer) = asked else { panic!("{asked:?}") };
                answer.give(
                    serde_json::from_value(json!({ "version": 1, "protected": protected }))
                        .unwrap(),
                );
            }
        });
        (directory, server, Target::local(&path))
    }

    /// The exit code says whether it is safe; who waits is told when it is, or that it
    /// was not in time.
    #[test]
    fn the_exit_code_is_the_answer() {
        let code = |words, timeout: Option<u64>| {
            let (_directory, _server, target) = box_that_says(words);
            status(&target, timeout.map(Duration::from_secs), true).map_err(|failure| failure.code)
        };
        assert_eq!(code(&["yes"], None), Ok(()));
        assert_eq!(code(&["no"], None), Err(exit::NEGATIVE));
        assert_eq!(code(&["re-synchronising", "yes"], None), Err(exit::NEGATIVE));
        assert_eq!(code(&["re-synchronising", "no", "yes"], Some(600)), Ok(()));
        assert_eq!(code(&["no"], Some(0)), Err(exit::TIMEOUT));
    }
}
