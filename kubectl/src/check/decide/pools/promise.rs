//! How much more a pool can promise to volumes. The driver alone knows it exactly; what the nodes
//! report leads to nearly the same.

use hostloop_report::flags::RESERVE_PERCENT;
use hostloop_report::status::PoolReport;
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
pub(super) fn promisable(pool: &PoolReport) -> Option<u64> {
    let reserve = pool.size_bytes? / 100 * RESERVE_PERCENT;
    let room = pool.available_bytes?.saturating_add(pool.held_bytes?);
    Some(
        room.saturating_sub(reserve)
            .saturating_sub(pool.promised_bytes?),
    )
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;
    use crate::check::decide::testing::{good, object};

    #[rstest]
    #[case::empty(1000, 0, 0, 950)]
    #[case::promised(1000, 0, 700, 250)]
    #[case::written(600, 400, 700, 250)]
    #[case::all_promised(900, 50, 1000, 0)]
    fn room_for_promises(
        #[case] available: u64,
        #[case] held: u64,
        #[case] promised: u64,
        #[case] left: u64,
    ) {
        let pool = PoolReport {
            size_bytes: Some(1000),
            available_bytes: Some(available),
            held_bytes: Some(held),
            promised_bytes: Some(promised),
            ..PoolReport::default()
        };
        assert_eq!(promisable(&pool), Some(left));
        // As from an earlier version.
        let silent = PoolReport {
            held_bytes: None,
            ..pool
        };
        assert_eq!(promisable(&silent), None);
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
