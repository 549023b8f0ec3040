//! Between the messages of the control API and the objects that commands print.
//!
//! The fields have the same names, so serde does it; what this file does is what is not the same: lists in pieces, refusals, versions.

use super::api::{Applied, ApplyReply, Flow, ListFlowsReply, Refused, apply_reply};
use crate::VERSION;
use crate::exit;
use crate::flows::Flows;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tonic::Status as Refusal;

/// An object as a message.
pub fn message<T: DeserializeOwned>(object: Value) -> Result<T, Refusal> {
    serde_json::from_value(object).map_err(|error| Refusal::internal(format!("the answer is no message: {error}")))
}

/// A message as an object with a version.
pub fn object(message: &impl Serialize) -> Value {
    let mut object = serde_json::to_value(message).unwrap_or_default();
    object["version"] = VERSION.into();
    object
}

/// A list in pieces of this length; at least one, of which the last one says whether there is more, unless more follows.
pub fn flows(list: Flows, goes_on: bool, length: usize) -> Result<Vec<ListFlowsReply>, Refusal> {
    let truncated = list.truncated && !goes_on;
    let flows: Vec<Flow> = message(serde_json::to_value(list.flows).unwrap_or_default())?;
    let mut replies: Vec<ListFlowsReply> =
        flows.chunks(length).map(|flows| ListFlowsReply { flows: flows.to_vec(), truncated: false }).collect();
    if replies.is_empty() {
        replies.push(ListFlowsReply::default());
    }
    if let Some(last) = replies.last_mut() {
        last.truncated = truncated;
    }
    Ok(replies)
}

/// The flows of a piece.
pub fn listed(reply: ListFlowsReply) -> Result<Vec<crate::flows::Flow>, serde_json::Error> {
    serde_json::from_value(serde_json::to_value(reply.flows)?)
}

/// What became of a configuration.
pub fn applied(answer: Value) -> Result<ApplyReply, Refusal> {
    let result = match answer.get("refused") {
        Some(_) => apply_reply::Result::Refused(message(answer)?),
        None => apply_reply::Result::Applied(message(answer)?),
    };
    Ok(ApplyReply { result: Some(result) })
}

/// The same as an object.
pub fn application(reply: ApplyReply) -> Option<Value> {
    Some(match reply.result? {
        apply_reply::Result::Applied(Applied { dry_run, changed, rules }) => {
            let rules = rules.unwrap_or_default();
            json!({ "version": VERSION, "dry_run": dry_run, "changed": changed, "rules": rules })
        }
        apply_reply::Result::Refused(Refused { error, refused }) => {
            json!({ "version": VERSION, "error": error, "code": exit::CONFIGURATION, "refused": refused })
        }
    })
}

#[cfg(test)]
mod tests {
    use super::super::api;
    use super::*;
    use crate::status::{self, Protected};
    use std::collections::BTreeMap;

    /// Everything that a status can say, in words that differ: a field that is added there and not in the .proto file does not come back.
    fn status() -> status::Status {
        let drops = BTreeMap::from([("no_flow".to_owned(), 7), ("fenced".to_owned(), 8)]);
        status::Status {
            version: status::VERSION,
            protected: Protected::ReSynchronising,
            survives: "host".into(),
            hosts: vec![status::Host {
                name: "left".into(),
                state: "serving".into(),
                is_this: true,
                networks: vec![status::Network { device: "eth7".into(), leads: true, used: true }],
            }],
            may_forget: 3,
            pools: vec![status::Pool {
                chain: "web".into(),
                function: "nat".into(),
                name: "ports".into(),
                shared: "state-server".into(),
                size: 80,
                held: 81,
                at_hand: 82,
                server: Some(status::ServerPool { free: 83, at_hand: 84, held: 85, resting: 86 }),
            }],
            statistics: vec![status::Statistic {
                chain: "web".into(),
                function: "balancer".into(),
                name: "flows".into(),
                kind: "gauge".into(),
                shared: "partitioned".into(),
                size: 87,
                values: vec![status::StatisticValue { name: "0".into(), value: -(1 << 40) }],
            }],
            copies_differed: 4,
            absent_flows: 5,
            fetched_states: 6,
            flow_tables: vec![status::FlowTable {
                id: 17,
                used: 91,
                size: 92,
                fill_permille: 93,
                half_open: Some(94),
                forgotten: Some(95),
            }],
            ports: vec![status::Port {
                name: "inside".into(),
                device: "eth0".into(),
                driver: "afxdp".into(),
                mac: "02:00:00:00:00:01".into(),
                mtu: 9000,
                up: true,
                received: 1 << 40,
                transmitted: 5,
                consumed: 31,
                forwarded: 32,
                originated: 33,
                drops: drops.clone(),
                lost: BTreeMap::from([("device_rx_dropped".to_owned(), 29)]),
                bfd: vec![status::Bfd {
                    peer: "198.51.100.254".into(),
                    state: "Down".into(),
                    diagnostic: "control detection time expired".into(),
                    remote_state: "Init".into(),
                    remote_diagnostic: "none".into(),
                    dead: true,
                    transmit_us: 24,
                    receive_us: Some(25),
                    detection_us: Some(26),
                    since_ms: 27,
                    downs: 28,
                    last_down: Some("path down".into()),
                }],
            }],
            rules: Some(status::Rules { version: 2, count: 3, in_force: true }),
            election: Some(status::Election {
                leader: Some(status::Leader { host: "right".into(), pid: 9, incarnation: 10 }),
                silent_ms: Some(11),
                trouble: Some("none".into()),
            }),
            processes: vec![status::Process {
                role: "runtime".into(),
                id: 16,
                incarnation: u64::from(u32::MAX) + 1,
                pid: 12,
                host: "left".into(),
                name: Some("east".into()),
                cluster: Some("gold".into()),
                state: "running".into(),
                flows: 13,
                packets: 14,
                busy_permille: Some(77),
                drops: drops.clone(),
                local_standby: Some(status::LocalStandby { pid: 78, takeovers: 79 }),
                retry: Some(status::Retry { failures: 96, next_ms: Some(97), cause: "exited with code 1".into() }),
            }],
            drops,
            failovers: vec![status::Failover {
                runtime: 16,
                incarnation: 15,
                cause: "killed by signal 9".into(),
                detected_at_ns: 16,
                detection_us: Some(17),
                recovered_us: None,
                flows: 18,
                recovered: 19,
                lost: 20,
            }],
            control: Some(status::ControlApi {
                listen: "10.9.0.1:7443".into(),
                connections: 21,
                calls: 22,
                refused: BTreeMap::from([("denied".to_owned(), 23)]),
            }),
        }
    }

    #[test]
    fn a_status_is_the_same_on_both_sides() {
        let full = serde_json::to_value(status()).unwrap();
        assert_eq!(object(&message::<api::Status>(full.clone()).unwrap()), full);
        let bare = status::Status { rules: None, election: None, control: None, protected: Protected::No, ..status() };
        let bare = serde_json::to_value(bare).unwrap();
        assert_eq!(object(&message::<api::Status>(bare.clone()).unwrap()), bare);
    }

    #[test]
    fn flows_are_the_same_in_pieces_and_whole() {
        let flow = |port: u16| {
            json!({ "protocol": 6, "source": format!("10.0.0.2:{port}"), "destination": "[2001:db8::1]:80",
            "translated_source": "198.51.100.4:1024", "translated_destination": "198.51.100.11:80", "chain": "web",
            "state": "established", "owner": 16, "replica": null, "epoch": 1, "age_ms": 5, "packets": [1, 2], "bytes": [3, 4] })
        };
        for (count, pieces) in [(0, 1), (1, 1), (4, 2), (5, 3)] {
            let all = json!({ "version": 1, "flows": (1..=count).map(flow).collect::<Vec<_>>(), "truncated": count == 5 });
            let all: Flows = serde_json::from_value(all).unwrap();
            let replies = flows(all.clone(), false, 2).unwrap();
            assert_eq!(replies.len(), pieces);
            assert_eq!(replies.last().map(|reply| reply.truncated), Some(all.truncated));
            let going_on = flows(all.clone(), true, 2).unwrap();
            assert!(going_on.iter().all(|reply| !reply.truncated), "that there are more is said at the end");
            let flows: Vec<_> = replies.into_iter().flat_map(|reply| listed(reply).unwrap()).collect();
            assert_eq!(flows, all.flows);
        }
    }

    #[test]
    fn what_became_of_a_configuration_is_the_same_on_both_sides() {
        let rule = json!({ "selector": "tcp to any port 80", "chain": "web" });
        let good = json!({ "version": 1, "dry_run": true, "changed": true,
            "rules": { "before": 1, "now": 2, "added": [rule], "removed": [], "flows": "for new ones" } });
        let bad = json!({ "version": 1, "error": "f:1:2: no", "code": 78,
            "refused": [{ "line": 1, "column": 2, "width": 3, "message": "no", "path": "state", "kind": "restart", "flows": "as before" }] });
        for answer in [good, bad] {
            assert_eq!(application(applied(answer.clone()).unwrap()), Some(answer));
        }
    }
}
