//! The faults on request that each node can do, and why not the others.

use std::collections::BTreeMap;

use hostloop_report::node_faults::{NodeFaults, OfferedFault, PoolFaultState};

use super::fault_disk_pods;
use super::machines::unreported;
use crate::check::facts::Facts;
use crate::check::line::{Line, names};

pub(super) fn lines(facts: &Facts) -> Vec<Line> {
    let mut lines = unreported(&facts.machines, "Faults on request", |machine| {
        machine.faults.as_ref().err()
    });
    let known: Vec<(&str, &NodeFaults)> = facts
        .machines
        .iter()
        .filter_map(|(node, machine)| Some((node.as_str(), machine.faults.as_ref().ok()?)))
        .collect();
    let (on, off): (Vec<_>, Vec<_>) = known.into_iter().partition(|(_, faults)| faults.enabled);
    if !off.is_empty() {
        let nodes = names(off.iter().map(|(node, _)| *node));
        lines.push(Line::ok(format!(
            "Volumes and pools have no faults on request, because the drivers run without \
             --enable-faults: {nodes}"
        )));
    }
    lines.extend(offers(&on));
    lines.extend(on.iter().flat_map(|(node, faults)| in_force(node, faults)));
    lines.extend(fault_disk_pods::lines(facts));
    lines
}

/// The faults that can be asked for, and those that can't, by their reason.
fn offers(nodes: &[(&str, &NodeFaults)]) -> Vec<Line> {
    let (mut possible, mut impossible) = (BTreeMap::new(), BTreeMap::new());
    for (node, faults) in nodes {
        let place = format!("volumes on {node}");
        sort(&faults.claims, place, &mut possible, &mut impossible);
        let place = format!("volumes on fault disks of {node}");
        sort(&faults.fault_disks, place, &mut possible, &mut impossible);
        for pool in &faults.pools {
            let place = format!("pool {} on {node}", pool.pool);
            sort(&pool.faults, place, &mut possible, &mut impossible);
        }
    }
    let can = possible.into_iter().map(|(place, faults)| {
        let faults = faults.join(", ");
        Line::ok(format!(
            "Faults that can be asked for, of {place}: {faults}"
        ))
    });
    let cannot = together(impossible).into_iter().map(|refused| {
        Line::ok(format!(
            "No fault {} of {}: {}",
            refused.faults.join(" or "),
            names(refused.places),
            refused.why
        ))
    });
    can.chain(cannot).collect()
}

/// Faults that the same places can't have for the same reason.
struct RefusedFaults<'f> {
    faults: Vec<&'f str>,
    why: &'f str,
    places: Vec<String>,
}

fn together(impossible: Impossible<'_>) -> Vec<RefusedFaults<'_>> {
    let mut all: Vec<RefusedFaults<'_>> = Vec::new();
    for ((fault, why), places) in impossible {
        let known = all
            .iter_mut()
            .find(|known| known.why == why && known.places == places);
        match known {
            Some(known) => known.faults.push(fault),
            None => all.push(RefusedFaults {
                faults: vec![fault],
                why,
                places,
            }),
        }
    }
    all
}

/// The faults that can be asked for, by place.
type Possible<'f> = BTreeMap<String, Vec<&'f str>>;
/// The places that can't have a fault, by the fault and the reason.
type Impossible<'f> = BTreeMap<(&'f str, &'f str), Vec<String>>;

fn sort<'f>(
    faults: &'f [OfferedFault],
    place: String,
    possible: &mut Possible<'f>,
    impossible: &mut Impossible<'f>,
) {
    for offered in faults {
        let fault = offered.fault.as_str();
        match &offered.obstacle {
            None => possible.entry(place.clone()).or_default().push(fault),
            Some(why) => {
                let places = impossible.entry((fault, why.as_str())).or_default();
                places.push(place.clone());
            }
        }
    }
}

/// The pools that have a fault now.
fn in_force(node: &str, faults: &NodeFaults) -> Vec<Line> {
    let pools = faults.pools.iter();
    let active = pools.filter_map(|pool| {
        let now = pool.now.as_ref()?;
        let is_active = [PoolFaultState::Active, PoolFaultState::Failed].contains(&now.state);
        is_active.then(|| {
            Line::warning(
                format!("Pool {} on {node} has the fault {}", pool.pool, now.fault),
                format!(
                    "It ends in time, or by: kubectl hostloop fault node {node} clear {}",
                    pool.pool
                ),
            )
        })
    });
    active.collect()
}

#[cfg(test)]
mod tests {
    use hostloop_report::node_faults::{PoolFaultNow, PoolWithFaults};
    use rstest::rstest;

    use super::*;
    use crate::check::decide::testing::good;
    use crate::check::line::Mark;

    fn offered(fault: &str, obstacle: Option<&str>) -> OfferedFault {
        OfferedFault {
            fault: fault.to_owned(),
            obstacle: obstacle.map(str::to_owned),
        }
    }

    /// A node with faults of claims and of the pool `default`, which has one now in this state.
    fn node(state: Option<PoolFaultState>) -> NodeFaults {
        NodeFaults {
            enabled: true,
            claims: vec![
                offered("gone", None),
                offered("full", None),
                offered("readonly", Some("no /sys")),
            ],
            fault_disks: vec![
                offered("eio", Some("no server")),
                offered("slow", Some("no server")),
            ],
            served_disks: Some(Vec::new()),
            pools: vec![PoolWithFaults {
                pool: "default".to_owned(),
                faults: vec![offered("full", Some("shared")), offered("missing", None)],
                now: state.map(|state| PoolFaultNow {
                    fault: "missing,for=60s".to_owned(),
                    requested_ns: 1,
                    state,
                    message: String::new(),
                }),
            }],
        }
    }

    /// The lines about two nodes, of which the first one says this.
    fn said(first: NodeFaults) -> Vec<(Mark, String)> {
        let mut facts = good();
        if let Some(machine) = facts.machines.get_mut("n1") {
            machine.faults = Ok(first);
        }
        let lines = lines(&facts).into_iter();
        lines.map(|line| (line.mark, line.text)).collect()
    }

    #[test]
    fn each_node_says_what_it_can_do_and_why_not_the_others() {
        let texts: Vec<String> = said(node(None)).into_iter().map(|(_, text)| text).collect();
        assert_eq!(
            texts,
            [
                "Volumes and pools have no faults on request, because the drivers run without \
                 --enable-faults: n2",
                "Faults that can be asked for, of pool default on n1: missing",
                "Faults that can be asked for, of volumes on n1: gone, full",
                "No fault eio or slow of volumes on fault disks of n1: no server",
                "No fault full of pool default on n1: shared",
                "No fault readonly of volumes on n1: no /sys",
            ]
        );
    }

    #[rstest]
    #[case::has_one(Some(PoolFaultState::Active), true)]
    #[case::cannot_end(Some(PoolFaultState::Failed), true)]
    #[case::is_over(Some(PoolFaultState::Over), false)]
    #[case::was_refused(Some(PoolFaultState::Refused), false)]
    fn a_fault_in_force_is_a_warning(#[case] state: Option<PoolFaultState>, #[case] warns: bool) {
        let warnings = said(node(state))
            .into_iter()
            .filter(|(mark, _)| *mark == Mark::Warning);
        let texts: Vec<String> = warnings.map(|(_, text)| text).collect();
        let expected = "Pool default on n1 has the fault missing,for=60s";
        assert_eq!(texts, vec![expected; usize::from(warns)]);
    }
}
