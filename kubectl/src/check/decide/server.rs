//! The API server: its version, and optional APIs that it lacks.

use super::{Part, join, known};
use crate::check::facts::{Facts, Server};
use crate::check::line::Line;
use crate::manifests::Version;

/// How many seconds this machine's clock may be off before certificates and ages become doubtful.
const CLOCK_SECONDS: i64 = 10;

/// A kind that hostloop uses if the server serves it.
struct Optional {
    name: &'static str,
    group: &'static str,
    version: &'static str,
    resource: &'static str,
    /// The first Kubernetes that serves it by default.
    since: &'static str,
    /// What is missing without it.
    without: &'static str,
}

const OPTIONAL: [Optional; 2] = [
    Optional {
        name: "VolumeAttributesClass",
        group: "storage.k8s.io",
        version: "v1",
        resource: "volumeattributesclasses",
        since: "1.34",
        without: "attributes of a volume in use can't be changed",
    },
    Optional {
        name: "MutatingAdmissionPolicy",
        group: "admissionregistration.k8s.io",
        version: "v1",
        resource: "mutatingadmissionpolicies",
        since: "1.36",
        without: "components/place-claims can't be used",
    },
];

pub(super) fn lines(facts: &Facts) -> Vec<Line> {
    join([version(facts), optional(facts), clock(facts)])
}

fn version(facts: &Facts) -> Part {
    let Server {
        version, number, ..
    } = known("Version of the server", &facts.server)?;
    Ok(vec![if *number >= Version::OLDEST {
        Line::ok(format!("Kubernetes {version} is new enough"))
    } else {
        Line::failed(
            format!("Kubernetes {version} is too old"),
            format!(
                "hostloop needs {} or newer. Upgrade the cluster.",
                Version::OLDEST
            ),
        )
    }])
}

fn optional(facts: &Facts) -> Part {
    let served = known("Optional APIs", &facts.served)?;
    Ok(OPTIONAL
        .iter()
        .map(|api| {
            if served.has(api.group, api.resource, api.version) {
                Line::ok(format!("{} {} is served", api.name, api.version))
            } else {
                Line::skipped(format!(
                    "{} {} is left out: {} (Kubernetes {} and newer serve it)",
                    api.name, api.version, api.without, api.since
                ))
            }
        })
        .collect())
}

/// The clock of the person's machine. Its error would make every age below wrong.
fn clock(facts: &Facts) -> Part {
    // The version's line already says why the server is unknown.
    let ahead = facts
        .server
        .as_ref()
        .ok()
        .and_then(|server| server.ahead_seconds);
    Ok(match ahead {
        Some(ahead) if ahead.abs() > CLOCK_SECONDS => vec![Line::warning(
            format!(
                "This machine's clock differs from the API server's by {} s",
                ahead.abs()
            ),
            "Synchronize both clocks (NTP): certificates and tokens depend on them.",
        )],
        Some(_) => vec![Line::ok(
            "This machine's clock agrees with the API server's",
        )],
        None => Vec::new(),
    })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::check::decide::testing::{forbidden, good, marks};
    use crate::check::line::Mark::{self, *};

    #[rstest]
    #[case(1, 29, Failed)]
    #[case(1, 30, Passed)]
    #[case(1, 36, Passed)]
    #[case(2, 0, Passed)]
    fn versions(#[case] major: u32, #[case] minor: u32, #[case] mark: Mark) {
        let mut facts = good();
        if let Ok(server) = &mut facts.server {
            server.number = Version { major, minor };
        }
        assert_eq!(marks(&lines(&facts))[0], mark);
    }

    #[rstest]
    #[case(None, &[])]
    #[case(Some(10), &[Passed])]
    #[case(Some(-10), &[Passed])]
    #[case(Some(11), &[Warning])]
    #[case(Some(-3600), &[Warning])]
    fn clocks(#[case] ahead: Option<i64>, #[case] expected: &[Mark]) {
        let mut facts = good();
        if let Ok(server) = &mut facts.server {
            server.ahead_seconds = ahead;
        }
        assert_eq!(marks(&lines(&facts))[3..], *expected);
    }

    #[test]
    fn what_an_older_server_lacks_is_left_out() {
        let mut facts = good();
        facts.served = Ok(Default::default());
        let lines = lines(&facts);
        assert_eq!(marks(&lines), [Passed, Skipped, Skipped, Passed]);
        assert!(
            lines[1]
                .text
                .contains("VolumeAttributesClass v1 is left out"),
            "{lines:?}"
        );
        assert_eq!(marks(&super::lines(&forbidden())), [Skipped, Skipped]);
    }
}
