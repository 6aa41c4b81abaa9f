//! What `install` says.

use std::collections::BTreeMap;

use hostloop_terminal::color::{GOOD, QUIET, TITLE, WARNING, paint};
use hostloop_terminal::humanize::count;
use serde_json::Value;

use super::apply::Counts;
use super::decide::InstallPlan;
use super::survey::Survey;
use crate::manifests::{Installed, ObjectKey};
use crate::output;

/// What was found, what follows from it, and what is applied.
pub(super) fn lines(plan: &InstallPlan, survey: &Survey) -> Vec<String> {
    let objects = plan.settings.objects();
    let daemon_set = objects.iter().find(|object| object["kind"] == "DaemonSet");
    let chosen = daemon_set
        .map(|daemon_set| Installed::of(daemon_set, None))
        .unwrap_or_default();
    let pools: Vec<String> = chosen.pools.iter().map(ToString::to_string).collect();
    let mut lines = vec![
        fact("Cluster", cluster(survey)),
        fact(
            "Kubelet",
            format!(
                "{} ({})",
                chosen.kubelet_dir.unwrap_or_default(),
                plan.kubelet
            ),
        ),
        fact("Pools", pools.join(" ")),
        fact("Snapshots", plan.snapshots.clone()),
        fact(
            "Image",
            image(chosen.image.unwrap_or_default(), survey.installed.as_ref()),
        ),
    ];
    if let Some(name) = &plan.settings.driver_name {
        lines.push(fact("Driver", name.clone()));
    }
    if let Some(class) = plan.settings.default_class {
        lines.push(fact("Default", format!("StorageClass {}", class.name())));
    }
    lines.extend(
        plan.warnings
            .iter()
            .map(|warning| paint(WARNING, &format!("! {warning}"))),
    );
    let attached = survey.installed.as_ref().and_then(|found| found.attach);
    if let Some(change) = attaching(attached, plan.settings.attach) {
        lines.push(fact("Attaching", change.to_owned()));
    }
    lines.push(fact("Applying", kinds(&plan.all_objects())));
    if plan.crds.kept > 0 {
        lines.push(fact("", paint(QUIET, &kept_crds(plan.crds.kept))));
    }
    lines
}

/// A line with a title.
fn fact(title: &str, text: String) -> String {
    format!("{} {text}", paint(TITLE, &format!("{title:<10}")))
}

fn cluster(survey: &Survey) -> String {
    let nodes = count(survey.nodes.len(), "node");
    let kubernetes = format!(
        "Kubernetes {}, {}, {nodes}",
        survey.server, survey.distribution
    );
    match survey.context.as_str() {
        "" => kubernetes,
        context => format!("{context}: {kubernetes}"),
    }
}

fn image(new: String, installed: Option<&Installed>) -> String {
    match installed.and_then(|installed| installed.image.as_ref()) {
        Some(old) if *old != new => format!("{new} (now {old})"),
        _ => new,
    }
}

/// The CRDs that are not touched.
fn kept_crds(crds: usize) -> String {
    match crds {
        1 => "1 CRD of the snapshot API is there already, and stays".to_owned(),
        n => format!("{n} CRDs of the snapshot API are there already, and stay"),
    }
}

/// What changes for volumes if the CSIDriver was deleted in order to choose again.
fn attaching(installed: Option<bool>, chosen: bool) -> Option<&'static str> {
    match (installed?, chosen) {
        (true, false) => Some("volumes are no longer attached"),
        (false, true) => Some("volumes are attached from now on"),
        _ => None,
    }
}

/// The objects by their kinds: "CSIDriver, 4 StorageClass".
fn kinds(objects: &[Value]) -> String {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for object in objects {
        *counts.entry(ObjectKey::of(object).kind).or_default() += 1;
    }
    let all = counts.iter().map(|(kind, n)| match n {
        1 => kind.clone(),
        n => format!("{n} {kind}"),
    });
    all.collect::<Vec<_>>().join(", ")
}

/// A thing that an older server lacks.
pub(super) fn left_out(line: &str) -> String {
    paint(WARNING, &format!("! left out: {line}"))
}

/// How many objects the API server did not check in a dry run.
pub(super) fn unchecked(objects: usize) -> String {
    let what = count(objects, "object");
    let line = format!("! {what} not checked: the kind or the namespace does not exist yet");
    paint(WARNING, &line)
}

/// What the application changed.
pub(super) fn applied(counts: Counts) -> String {
    let Counts {
        created,
        changed,
        unchanged,
    } = counts;
    let total = count(created + changed + unchanged, "object");
    format!(
        "{} {total}: {created} created, {changed} changed, {unchanged} unchanged",
        paint(GOOD, "✓")
    )
}

/// What was removed.
pub(super) fn removed(removed: &[ObjectKey]) -> String {
    let what = count(removed.len(), "object");
    let names = output::names(removed.iter().map(ObjectKey::to_string));
    format!(
        "{} {what} of components that are not asked for removed: {names}",
        paint(GOOD, "✓")
    )
}

/// The next command, for a driver with this other name.
pub(super) fn next(driver: Option<&str>) -> String {
    let flag = driver.map(|name| format!(" --driver-name {name}"));
    let command = format!("kubectl hostloop check --live{}", flag.unwrap_or_default());
    format!("hostloop is installed. Next: {}", paint(TITLE, &command))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    #[test]
    fn kinds_are_counted() {
        let of = |kind: &str| json!({"kind": kind});
        assert_eq!(
            kinds(&[of("Role"), of("CSIDriver"), of("Role")]),
            "CSIDriver, 2 Role"
        );
    }

    #[test]
    fn crds_of_others_stay() {
        assert_eq!(
            [1, 6].map(kept_crds),
            [
                "1 CRD of the snapshot API is there already, and stays",
                "6 CRDs of the snapshot API are there already, and stay"
            ]
        );
    }

    #[rstest]
    #[case::first_installation(None, true, None)]
    #[case::as_before(Some(true), true, None)]
    #[case::no_longer(Some(true), false, Some("volumes are no longer attached"))]
    #[case::from_now_on(Some(false), true, Some("volumes are attached from now on"))]
    fn a_change_of_attaching_is_said(
        #[case] installed: Option<bool>,
        #[case] chosen: bool,
        #[case] said: Option<&str>,
    ) {
        assert_eq!(attaching(installed, chosen), said);
    }

    #[test]
    fn what_is_removed_is_named() {
        let key = ObjectKey::new("apps/v1", "DaemonSet", "n", "d");
        let said = hostloop_terminal::terminal::plain(&removed(&[key]));
        let expected = "✓ 1 object of components that are not asked for removed: DaemonSet n/d";
        assert_eq!(said, expected);
    }

    #[test]
    fn the_next_command_has_another_name() {
        for (driver, command) in [
            (None, "kubectl hostloop check --live"),
            (Some("d"), "kubectl hostloop check --live --driver-name d"),
        ] {
            let said = hostloop_terminal::terminal::plain(&next(driver));
            assert!(said.ends_with(command), "{said}");
        }
    }

    #[test]
    fn a_changed_image_is_said() {
        let installed = Installed {
            image: Some("a:1".to_owned()),
            ..Installed::default()
        };
        assert_eq!(image("a:2".to_owned(), Some(&installed)), "a:2 (now a:1)");
        assert_eq!(image("a:1".to_owned(), Some(&installed)), "a:1");
        assert_eq!(image("a:1".to_owned(), None), "a:1");
    }
}
