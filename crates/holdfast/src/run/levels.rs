//! The levels at which runtimes are protected: by a process beside each, by one another,
//! or by both.
//!
//! In: the configuration, and the coordinator's report on runtimes that protect one
//! another. Out: the status of all flows' protection.

use crate::config::{ChainPlan, Plan};
use holdfast_control::status::Protected;
use holdfast_node::message;
use holdfast_wire::NodeId;

/// The levels of this box; see the module.
pub(super) struct Levels {
    /// Runtimes with a local standby, because one of their chains asks for it.
    with_standby: Vec<NodeId>,
    /// Runtimes with a chain that has no other protection.
    only_standby: Vec<NodeId>,
    /// True if some runtime's flows have only replicas at others.
    has_only_replicas: bool,
    may_forget: u32,
}

/// The runtimes with a local standby.
pub(super) fn with_standby(plan: &Plan) -> Vec<NodeId> {
    plan.runtimes_of(|chain| chain.protection.has_local_standby)
}

impl Levels {
    pub(super) fn of(plan: &Plan) -> Levels {
        let promises = |chain: &ChainPlan| chain.protection.promises();
        let with_standby = with_standby(plan);
        let with_replicas = plan.runtimes_of(promises);
        Levels {
            only_standby: plan
                .runtimes_of(|chain| chain.protection.has_local_standby && !promises(chain)),
            has_only_replicas: with_replicas.iter().any(|runtime| !with_standby.contains(runtime)),
            with_standby,
            may_forget: plan
                .chains
                .iter()
                .map(|chain| chain.protection.may_forget())
                .max()
                .unwrap_or(0),
        }
    }

    /// See [`Status`](holdfast_control::status::Status).
    pub(super) fn may_forget(&self) -> u32 {
        self.may_forget
    }

    /// True if all protected flows would survive the end of a process. `remotely`: true
    /// if replicas would save the flows that have them; `locally`: the same for the local
    /// standbys of these runtimes.
    pub(super) fn protected(
        &self,
        remotely: message::Protected,
        locally: impl Fn(&[NodeId]) -> Protected,
    ) -> Protected {
        match remotely {
            // Chains of other runtimes may have only their local standby.
            message::Protected::Yes if self.only_standby.is_empty() => Protected::Yes,
            message::Protected::Yes => locally(&self.only_standby),
            message::Protected::Resynchronising => Protected::ReSynchronising,
            // Some flows have no runtime left for their replicas, whatever the local
            // standbys.
            message::Protected::No if self.has_only_replicas => Protected::No,
            // No chain is protected against the end of a runtime, or there is just one
            // runtime; but its process may be killed.
            message::Protected::No => locally(&self.with_standby),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config;

    const BOX: &str = "cluster: here
ports: { lan: { device: a, address: 10.0.0.1/24 }, wan: { device: b, address: 10.0.1.1/24 } }
chains:
  a: { functions: [firewall: { default: allow }], protection: A }
  b: { functions: [firewall: { default: allow }], protection: B, cluster: gold }
rules: [{ proto: tcp, chain: b }, { chain: a }]
runtimes: 2
clusters: { gold: { runtimes: 2 } }
";

    /// The reported protection with these protections of two chains, each with its own
    /// cluster, for these values of `remotely` and `locally`.
    fn said([a, b]: [&str; 2], remotely: message::Protected, locally: Protected) -> Protected {
        let text = BOX
            .replace("protection: A", &format!("protection: {a}"))
            .replace("protection: B", &format!("protection: {b}"));
        let plan =
            config::read("box.yaml", &text).unwrap_or_else(|mistake| panic!("{mistake}\n{text}"));
        Levels::of(&plan)
            .protected(remotely, |which| if which.is_empty() { Protected::No } else { locally })
    }

    const NONE: &str = "none";
    const LOCAL: &str = "{ preset: reinforce, level: local }";
    const REMOTE: &str = "reinforce";
    const BOTH: &str = "{ preset: reinforce, level: local+remote }";

    #[test]
    fn each_level_counts_for_the_runtimes_that_have_it() {
        use Protected::{No, ReSynchronising, Yes};
        use message::Protected as Remotely;
        for ([a, b], remotely, locally, is) in [
            ([NONE, NONE], Remotely::No, Yes, No),
            ([NONE, LOCAL], Remotely::No, Yes, Yes),
            ([NONE, LOCAL], Remotely::No, ReSynchronising, ReSynchronising),
            ([REMOTE, BOTH], Remotely::Yes, ReSynchronising, Yes),
            ([BOTH, BOTH], Remotely::No, Yes, Yes),
            ([LOCAL, REMOTE], Remotely::Yes, Yes, Yes),
            ([LOCAL, REMOTE], Remotely::Yes, ReSynchronising, ReSynchronising),
            ([LOCAL, REMOTE], Remotely::Resynchronising, Yes, ReSynchronising),
            // The cluster with replicas has one runtime left: standbys of the other
            // cluster do not help it.
            ([LOCAL, REMOTE], Remotely::No, Yes, No),
            ([BOTH, REMOTE], Remotely::No, Yes, No),
        ] {
            assert_eq!(
                said([a, b], remotely, locally),
                is,
                "{a} and {b}: {remotely:?}, {locally:?}"
            );
        }
    }
}
