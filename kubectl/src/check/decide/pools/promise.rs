//! How much more a pool can promise to volumes. The driver alone knows it exactly; what the nodes
//! report leads to nearly the same.

use std::collections::BTreeMap;

use hostloop_report::flags::RESERVE_PERCENT;
use hostloop_report::status::{PoolReport, Report};
use k8s_openapi::api::core::v1::Container;

use crate::check::decide::{driver_container, flag};
use crate::check::facts::Facts;
use crate::container_flags::flag_values;

/// Flags of the driver that change what it promises.
const SETTINGS: [&str; 3] = ["overcommit", "reserve", "capacity"];

/// True if the driver promises by its defaults, as [`promisable`] does.
pub(super) fn is_by_defaults(facts: &Facts) -> bool {
    let Ok(sets) = &facts.daemon_sets else {
        return false;
    };
    let mut containers = sets
        .iter()
        .filter_map(|set| driver_container(set.spec.as_ref()?.template.spec.as_ref()?));
    !containers.any(|container| {
        SETTINGS.iter().any(|name| flag(container, name).is_some()) || caps_a_pool(container)
    })
}

/// True if an option of a pool limits what the driver promises from it.
fn caps_a_pool(container: &Container) -> bool {
    flag_values(container, "pool").any(|pools| pools.contains(",capacity="))
}

/// Bytes that the pool can still promise: the available space and what its images hold, without
/// the reserve and what is promised already.
pub(super) fn promisable(pool: &PoolReport, report: &Report) -> Option<u64> {
    let reserve = pool.size_bytes? / 100 * RESERVE_PERCENT;
    let room = pool.available_bytes?.saturating_add(held(pool, report));
    Some(
        room.saturating_sub(reserve)
            .saturating_sub(pool.promised_bytes?),
    )
}

/// Bytes that the images of the pool hold at least. With reflinks each image counts its shared
/// blocks in full, so only the largest of each family counts: an image, its snapshots, and their
/// clones.
fn held(pool: &PoolReport, report: &Report) -> u64 {
    let volumes = report
        .volumes
        .iter()
        .filter(|volume| volume.pool == pool.name)
        .map(|volume| {
            (
                volume.id.as_str(),
                volume.source.as_deref(),
                volume.allocated_bytes,
            )
        });
    let snapshots = report
        .snapshots
        .iter()
        .filter(|snapshot| snapshot.pool == pool.name)
        .map(|snapshot| {
            (
                snapshot.id.as_str(),
                Some(snapshot.source.as_str()),
                snapshot.allocated_bytes,
            )
        });
    let images: Vec<_> = volumes.chain(snapshots).collect();
    let sources: BTreeMap<&str, Option<&str>> = images
        .iter()
        .map(|(id, source, _)| (*id, *source))
        .collect();
    let mut families: BTreeMap<&str, u64> = BTreeMap::new();
    for (id, _, allocated) in images {
        let allocated = allocated.unwrap_or(0);
        if pool.reflinks == Some(false) {
            families.insert(id, allocated);
        } else {
            let largest = families.entry(ancestor(id, &sources)).or_default();
            *largest = (*largest).max(allocated);
        }
    }
    families.values().sum()
}

/// The first image of a lineage, which may be gone.
fn ancestor<'a>(mut id: &'a str, sources: &BTreeMap<&'a str, Option<&'a str>>) -> &'a str {
    // The bound ends cycles in broken records.
    for _ in 0..sources.len() {
        match sources.get(id) {
            Some(Some(source)) => id = *source,
            _ => break,
        }
    }
    id
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;
    use crate::check::decide::testing::{good, object};
    use crate::test_objects::read;

    fn volume(id: &str, source: Option<&str>, allocated: u64) -> Value {
        json!({
            "id": id, "name": id, "pool": "default", "size_bytes": 0, "source": source,
            "allocated_bytes": allocated, "provisioning": "thin", "format": "ext4",
            "published_nodes": [], "loops": [], "mounts": [], "created_ns": 0,
        })
    }

    fn snapshot(id: &str, source: &str, allocated: u64) -> Value {
        json!({
            "id": id, "name": id, "pool": "default", "source": source, "source_exists": true,
            "size_bytes": 0, "allocated_bytes": allocated, "created_ns": 0,
        })
    }

    fn report(volumes: &Value, snapshots: &Value) -> Report {
        read(json!({
            "pools": [], "volumes": volumes, "snapshots": snapshots, "groups": [], "loops": [],
            "mounts": [], "orphans": [],
        }))
    }

    fn pool(reflinks: bool, available: u64, promised: u64) -> PoolReport {
        PoolReport {
            name: "default".to_owned(),
            reflinks: Some(reflinks),
            size_bytes: Some(1000),
            available_bytes: Some(available),
            promised_bytes: Some(promised),
            ..PoolReport::default()
        }
    }

    #[rstest]
    #[case::empty(true, 1000, 0, json!([]), json!([]), 950)]
    #[case::promised(true, 1000, 700, json!([]), json!([]), 250)]
    #[case::written(true, 600, 700, json!([volume("v", None, 400)]), json!([]), 250)]
    #[case::all_promised(true, 900, 1000, json!([volume("v", None, 50)]), json!([]), 0)]
    #[case::shared(
        true, 700, 600,
        json!([volume("v", None, 300), volume("w", Some("s"), 200)]),
        json!([snapshot("s", "v", 300)]),
        350
    )]
    #[case::copied(
        false, 200, 600,
        json!([volume("v", None, 300), volume("w", Some("s"), 200)]),
        json!([snapshot("s", "v", 300)]),
        350
    )]
    #[case::source_is_gone(
        true, 700, 600,
        json!([volume("w", Some("s"), 200), volume("x", Some("s"), 300)]),
        json!([]),
        350
    )]
    #[case::cycle(
        true, 700, 600,
        json!([volume("v", Some("w"), 300), volume("w", Some("v"), 300)]),
        json!([]),
        650
    )]
    fn room_for_promises(
        #[case] reflinks: bool,
        #[case] available: u64,
        #[case] promised: u64,
        #[case] volumes: Value,
        #[case] snapshots: Value,
        #[case] left: u64,
    ) {
        let pool = pool(reflinks, available, promised);
        assert_eq!(promisable(&pool, &report(&volumes, &snapshots)), Some(left));
    }

    #[test]
    fn other_pools_and_silent_ones() {
        let mut other = volume("v", None, 400);
        other["pool"] = json!("other");
        let report = report(&json!([other]), &json!([]));
        assert_eq!(promisable(&pool(true, 600, 0), &report), Some(550));
        assert_eq!(promisable(&PoolReport::default(), &report), None);
    }

    #[rstest]
    #[case::none("--reflinks", true)]
    #[case::overcommit("--overcommit=2", false)]
    #[case::reserve("--reserve=1Gi", false)]
    #[case::capacity("--capacity=default=5Gi", false)]
    #[case::pool("--pool=default=/p,image=9Gi", true)]
    #[case::capped_pool("--pool=default=/p,capacity=5Gi", false)]
    #[case::option_of_a_variable("--pool=default=/p$(POOL_OPTIONS)", false)]
    fn settings_of_the_driver(#[case] argument: &str, #[case] by_defaults: bool) {
        let mut facts = good();
        let env = json!([{"name": "POOL_OPTIONS", "value": ",inline,capacity=5Gi"}]);
        let container = json!({"name": "hostloop", "args": ["run", argument], "env": env});
        let set = json!({"spec": {"template": {"spec": {"containers": [container]}}}});
        facts.daemon_sets = Ok(vec![object(set)]);
        assert_eq!(is_by_defaults(&facts), by_defaults);
    }

    #[test]
    fn a_variable_caps_a_pool_too() {
        let mut facts = good();
        let env = json!([
            {"name": "POOL_OPTIONS", "value": ",capacity=5Gi"},
            {"name": "HOSTLOOP_POOL", "value": "default=/p$(POOL_OPTIONS)"},
        ]);
        let container = json!({"name": "hostloop", "args": ["run"], "env": env});
        let set = json!({"spec": {"template": {"spec": {"containers": [container]}}}});
        facts.daemon_sets = Ok(vec![object(set)]);
        assert!(!is_by_defaults(&facts));
    }
}
