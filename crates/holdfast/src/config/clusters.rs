//! Virtual clusters: the runtimes that serve each chain.

use super::chains::ChainPlan;
use super::mistake::{Mistake, listed, suggestion};
use super::names;
use super::raw::{Config, RuntimesConfig};
use super::source::Spot;

/// The displayed name of the cluster of chains that name none.
pub const DEFAULT_CLUSTER: &str = "default";
/// Maximum number of runtimes of one host.
const MAX_RUNTIMES: u16 = 64;
const DEFAULT_RUNTIMES: u16 = 3;

/// A virtual cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cluster {
    /// The cluster's name.
    pub name: String,
    /// Runtimes at the start.
    pub runtimes: u16,
    /// Maximum number of runtimes.
    pub max: u16,
    /// The chains that the cluster serves, counted from 0.
    pub chains: Vec<u16>,
}

/// Reads the clusters that have chains; the default one, if it has any, is the first.
pub(super) fn read(
    config: &Config,
    built: &[ChainPlan],
    root: Spot<'_>,
) -> Result<Vec<Cluster>, Mistake> {
    let names = || config.clusters.keys().map(String::as_str);
    for (wanted, chain) in config
        .chains
        .iter()
        .filter_map(|(name, chain)| chain.cluster.as_ref().map(|wanted| (wanted, name)))
    {
        if !config.clusters.contains_key(wanted) {
            let (near, known) = (suggestion(wanted, names()), listed(names()));
            let known =
                if config.clusters.is_empty() { "`clusters` names none".to_owned() } else { known };
            let spot = root.key("chains").key(chain).key("cluster");
            return Err(spot.mistake(format!("there is no cluster `{wanted}`: {known}{near}")));
        }
    }
    let of = |wanted: Option<&str>| -> Vec<u16> {
        let chains = config.chains.values().zip(0u16..);
        chains
            .filter(|(chain, _)| chain.cluster.as_deref() == wanted)
            .map(|(_, number)| number)
            .collect()
    };
    let mut clusters = Vec::new();
    let shared = of(None);
    if !shared.is_empty() {
        let runtimes = runtimes(config.runtimes, root.key("runtimes"))?;
        let (_, max) = range(config.runtimes);
        clusters.push(Cluster { name: DEFAULT_CLUSTER.to_owned(), runtimes, max, chains: shared });
    } else if config.runtimes.is_some() {
        return Err(root.name("runtimes").mistake(
            "every chain asks for a cluster of its own: nobody would use these runtimes",
        ));
    }
    for (cluster, settings) in &config.clusters {
        let spot = root.key("clusters").name(cluster);
        names::check(cluster, "a cluster's", spot)?;
        if cluster == DEFAULT_CLUSTER {
            return Err(spot.mistake(
                "`default` is the cluster of all chains that ask for none: its runtimes are written at the top, as `runtimes`",
            ));
        }
        let chains = of(Some(cluster));
        if chains.is_empty() {
            return Err(spot.mistake(format!(
                "no chain asks for `cluster: {cluster}`: nobody would use its runtimes"
            )));
        }
        let runtimes =
            runtimes(settings.runtimes, root.key("clusters").key(cluster).key("runtimes"))?;
        let (_, max) = range(settings.runtimes);
        clusters.push(Cluster { name: cluster.clone(), runtimes, max, chains });
    }
    scaling(config, root)?;
    let total: u32 = clusters.iter().map(|cluster| u32::from(cluster.max)).sum();
    if total > u32::from(MAX_RUNTIMES) {
        return Err(root.name("clusters").mistake(format!(
            "at most {MAX_RUNTIMES} runtimes are possible on one host, not {total}"
        )));
    }
    for (number, chain) in (0u16..).zip(built) {
        let least = chain.protection.least_runtimes();
        let short = clusters
            .iter()
            .find(|cluster| cluster.chains.contains(&number) && cluster.runtimes < least);
        if let Some(cluster) = short {
            let whose = if cluster.name == DEFAULT_CLUSTER {
                String::new()
            } else {
                format!(" in cluster `{}`", cluster.name)
            };
            return Err(root.key("chains").key(&chain.name).key("protection").mistake(format!(
                "under this protection other runtimes take over the flows of one that fails, so at least {least} are needed{whose}: `runtimes: {{ min: {least} }}`"
            )));
        }
    }
    Ok(clusters)
}

/// Checks that the load for growth lies well above the load for shrinkage: a steady load
/// would otherwise cause both in turn.
fn scaling(config: &Config, root: Spot<'_>) -> Result<(), Mistake> {
    let scaling = &config.scaling;
    let spot = root.key("scaling");
    if !(10..=3_600_000).contains(&scaling.period_ms) {
        return Err(spot.key("period_ms").mistake("between 10 ms and an hour are possible"));
    }
    if !(1..=100).contains(&scaling.busy_percent) {
        return Err(spot.key("busy_percent").mistake("a percentage between 1 and 100"));
    }
    if scaling.idle_percent >= scaling.busy_percent {
        let text = "must be less than `busy_percent`: a steady load would start a runtime and stop it again";
        return Err(spot.key("idle_percent").mistake(text));
    }
    if scaling.move_flows == 0 {
        return Err(spot.key("move_flows").mistake("at least one flow at a time"));
    }
    if !(1..=100_000).contains(&scaling.calm_periods) {
        return Err(spot.key("calm_periods").mistake("between 1 and 100000 periods are possible"));
    }
    Ok(())
}

/// Reads `runtimes`; `spot` is its value.
fn runtimes(written: Option<RuntimesConfig>, spot: Spot<'_>) -> Result<u16, Mistake> {
    let Some(written) = written else { return Ok(DEFAULT_RUNTIMES) };
    let range = written.range();
    if range.count.is_some() && (range.min.is_some() || range.max.is_some()) {
        return Err(spot
            .name("count")
            .mistake("`count` says exactly how many: leave out `min` and `max`"));
    }
    let (key, min) = match (range.count, range.min) {
        (Some(count), _) => ("count", count),
        (None, Some(min)) => ("min", min),
        (None, None) => {
            return Err(
                spot.mistake("how many runtimes? `runtimes: 3`, or `runtimes: { min: 2, max: 4 }`")
            );
        }
    };
    if min == 0 || min > MAX_RUNTIMES {
        return Err(spot
            .key(key)
            .mistake(format!("between 1 and {MAX_RUNTIMES} runtimes are possible, not {min}")));
    }
    match range.max {
        Some(max) if max < min => {
            Err(spot.key("max").mistake(format!("`max` is {max}, less than `min`, which is {min}")))
        }
        Some(max) if max > MAX_RUNTIMES => Err(spot
            .key("max")
            .mistake(format!("between 1 and {MAX_RUNTIMES} runtimes are possible, not {max}"))),
        _ => Ok(min),
    }
}

/// The least and the most runtimes.
pub(super) fn range(written: Option<RuntimesConfig>) -> (u16, u16) {
    let range = written.map(|written| written.range()).unwrap_or_default();
    let least = range.count.or(range.min).unwrap_or(DEFAULT_RUNTIMES);
    (least, range.max.unwrap_or(least))
}
