//! The status: what `holdfast status --json` prints, and the words in it.
//!
//! The .proto file declares the status; the box, its commands and tests use its types.

pub use crate::api::{
    Bfd, ControlApi, Election, Failover, FlowTable, Host, Leader, LocalStandby, Network, Pool,
    Port, Process, Protected, Retry, Rules, ServerPool, Statistic, StatisticValue, Status, Talker,
    Talkers,
};

/// Version of the object, in its field `version`.
pub const VERSION: u32 = 1;

/// The role of a worker that owns flow actors, in [`Process::role`].
pub const ROLE_RUNTIME: &str = "runtime";

/// The role that starts the manager, in [`Process::role`].
pub const ROLE_GUARD: &str = "guard";

/// The role that takes frames from the ports to the runtimes, in the manager's process,
/// in [`Process::role`].
pub const ROLE_SWITCH: &str = "switch";

/// The role that decides about failures and orders, in [`Process::role`].
pub const ROLE_COORDINATOR: &str = "coordinator";

/// The role that assigns numbers of pools, one by one, in [`Process::role`].
pub const ROLE_STATE_SERVER: &str = "state-server";

/// The state of a process that serves, in [`Process::state`].
pub const STATE_RUNNING: &str = "running";

/// The state of a process that was started and has not sent a message yet, in
/// [`Process::state`].
pub const STATE_STARTING: &str = "starting";

/// The state of a coordinator or state server that has ended and will be restarted, in
/// [`Process::state`]. The status shows its last reports meanwhile.
pub const STATE_AWAY: &str = "away";

/// The state of a coordinator that waits to be elected, in [`Process::state`]. The status
/// shows another one's last reports meanwhile.
pub const STATE_CANDIDATE: &str = "candidate";

/// The state of a runtime that was taken out of service, in [`Process::state`].
pub const STATE_DRAINED: &str = "drained";

/// The state of a place in which a runtime is started when its cluster grows, in
/// [`Process::state`].
pub const STATE_SPARE: &str = "spare";

/// The state of a host that serves ports, in [`Host::state`].
pub const STATE_SERVING: &str = "serving";

/// Counters, which only grow, in [`Statistic::kind`].
pub const KIND_COUNTERS: &str = "counters";

/// Gauges, which grow and shrink, in [`Statistic::kind`].
pub const KIND_GAUGE: &str = "gauge";

/// The runtimes partition the pool, in [`Pool::shared`].
pub const SHARED_PARTITIONED: &str = "partitioned";

/// A state server assigns its numbers, in [`Pool::shared`].
pub const SHARED_STATE_SERVER: &str = "state-server";

/// Any one process may fail, in [`Status::survives`].
pub const UNIT_PROCESS: &str = "process";

/// Any one host may fail, in [`Status::survives`].
pub const UNIT_HOST: &str = "host";

/// The form of [`api::Protected`](crate::api::Protected) in the object.
pub(crate) mod protected {
    use crate::api::Protected;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(crate) const WORDS: [(Protected, &str); 3] = [
        (Protected::Yes, "yes"),
        (Protected::No, "no"),
        (Protected::ReSynchronising, "re-synchronising"),
    ];

    pub(crate) fn serialize<S: Serializer>(value: &i32, serializer: S) -> Result<S::Ok, S::Error> {
        let word =
            WORDS.iter().find(|(known, _)| *known as i32 == *value).map_or("no", |(_, word)| word);
        word.serialize(serializer)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<i32, D::Error> {
        let word = String::deserialize(deserializer)?;
        Ok(WORDS.iter().find(|(_, known)| *known == word).map_or(0, |(known, _)| *known as i32))
    }
}

impl Status {
    /// The runtimes, in the order of the list.
    pub fn runtimes(&self) -> impl Iterator<Item = &Process> {
        self.processes.iter().filter(|process| process.role == ROLE_RUNTIME)
    }

    /// The box's guard, if there is one.
    pub fn guard(&self) -> Option<&Process> {
        self.processes.iter().find(|process| process.role == ROLE_GUARD)
    }

    /// The statistic with this name of this function.
    pub fn statistic(&self, function: &str, name: &str) -> Option<&Statistic> {
        self.statistics
            .iter()
            .find(|statistic| statistic.function == function && statistic.name == name)
    }

    /// The runtime with this node id.
    pub fn runtime(&self, id: u32) -> Option<&Process> {
        self.runtimes().find(|process| process.id == id)
    }

    /// The serving runtime that owns most flows, not counting `except`.
    pub fn busiest_runtime(&self, except: Option<u32>) -> Option<&Process> {
        self.runtimes()
            .filter(|process| process.state == STATE_RUNNING && Some(process.id) != except)
            .max_by_key(|process| process.flows)
    }

    /// The failure of this incarnation of this runtime, if it was seen.
    pub fn failover(&self, runtime: u32, incarnation: u64) -> Option<&Failover> {
        self.failovers
            .iter()
            .find(|failover| failover.runtime == runtime && failover.incarnation == incarnation)
    }

    /// The packets dropped for this reason.
    pub fn dropped(&self, reason: &str) -> u64 {
        self.drops.get(reason).copied().unwrap_or(0)
    }
}

impl Port {
    /// The device, with the port's VLAN there if it has one.
    pub fn place(&self) -> String {
        let ids: Vec<String> = self.vlan.iter().map(u32::to_string).collect();
        match ids.is_empty() {
            true => self.device.clone(),
            false => format!("{} vlan {}", self.device, ids.join(",")),
        }
    }
}

impl Protected {
    /// The word in the object.
    pub fn word(self) -> &'static str {
        protected::WORDS.iter().find(|(known, _)| *known == self).map_or("no", |(_, word)| word)
    }
}

impl FlowTable {
    /// The fill from which flows end early to make room, in 1/1000.
    pub const NEARLY_FULL: u32 = 900;

    /// See [`FlowTable::NEARLY_FULL`].
    pub fn is_nearly_full(&self) -> bool {
        self.fill_permille >= FlowTable::NEARLY_FULL
    }
}

impl Statistic {
    /// The number with this name, if reported.
    pub fn value(&self, name: &str) -> Option<i64> {
        self.values.iter().find(|value| value.name == name).map(|value| value.value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runtime(id: u32, flows: u64, state: &str) -> Process {
        Process { role: ROLE_RUNTIME.into(), id, state: state.into(), flows, ..Process::default() }
    }

    #[test]
    fn reads_what_the_contract_says_and_ignores_what_later_versions_add() {
        let text = r#"{"version":1,"protected":"re-synchronising","processes":[{"role":"runtime","id":16,"incarnation":2,"pid":7,"host":"h",
            "state":"running","flows":3,"packets":9,"drops":{"no_flow":1},"colour":"red"}],"drops":{"no_flow":1},
            "failovers":[{"runtime":16,"incarnation":1,"cause":"killed by signal 9","detected_at_ns":5,"detection_us":90,"flows":3}]}"#;
        let status: Status = serde_json::from_str(text).unwrap();
        assert_eq!(status.protected(), Protected::ReSynchronising);
        assert_eq!(status.dropped("no_flow"), 1);
        assert_eq!(status.dropped("fenced"), 0);
        assert_eq!(status.failover(16, 1).unwrap().recovered_us, None);
        assert!(status.failover(16, 2).is_none());
    }

    /// Absent fields and words stay as they were before the schema, because scripts read
    /// them.
    #[test]
    fn the_object_is_as_it_was() {
        let mut status = Status {
            processes: vec![runtime(16, 5, STATE_RUNNING)],
            ports: vec![Port::default()],
            ..Status::default()
        };
        for (protected, word) in [
            (Protected::Yes, "yes"),
            (Protected::No, "no"),
            (Protected::ReSynchronising, "re-synchronising"),
        ] {
            status.set_protected(protected);
            assert_eq!(serde_json::to_value(&status).unwrap()["protected"], word);
        }
        let keys = |value: &serde_json::Value| {
            value.as_object().unwrap().keys().cloned().collect::<Vec<_>>().join(" ")
        };
        let object = serde_json::to_value(&status).unwrap();
        let expected = "absent_flows copies_differed drops failovers fetched_states flow_tables hosts may_forget pools ports processes \
                        protected rules statistics survives version";
        assert_eq!(keys(&object), expected);
        assert_eq!(
            keys(&object["processes"][0]),
            "cluster drops flows host id incarnation packets pid role state"
        );
        let expected = "bfd consumed device driver drops forwarded lost mac mtu name originated received transmitted up vlan";
        assert_eq!(keys(&object["ports"][0]), expected);
        assert_eq!(serde_json::from_value::<Status>(object).unwrap(), status);
    }

    #[test]
    fn the_busiest_runtime_is_one_that_serves() {
        let processes = vec![
            runtime(16, 5, STATE_RUNNING),
            runtime(17, 9, "failed"),
            runtime(18, 2, STATE_RUNNING),
        ];
        let mut status = Status { processes, ..Status::default() };
        assert_eq!(status.busiest_runtime(None).unwrap().id, 16);
        assert_eq!(status.busiest_runtime(Some(16)).unwrap().id, 18);
        status.processes[0].role = "switch".into();
        assert_eq!(status.busiest_runtime(None).unwrap().id, 18);
    }
}
