//! The machines: loop devices, filesystem tools, clocks. The node pods report them.

use std::collections::BTreeMap;
use std::path::Path;

use hostloop_api_objects::constants::FS_TYPE;
use hostloop_report::machine::MachineReport;

use super::unknown;
use crate::check::facts::{ClockOffset, Facts, Machine, Unknown};
use crate::check::line::{Line, names};

/// From this difference on, times in records and conditions mislead.
const CLOCK_WARNING: u64 = 5;
/// From this difference on, tokens and certificates may be rejected.
const CLOCK_FAILED: u64 = 60;

pub(super) fn lines(facts: &Facts) -> Vec<Line> {
    let known: Vec<(&str, &MachineReport)> = facts
        .machines
        .iter()
        .filter_map(|(node, machine)| Some((node.as_str(), machine.report.as_ref().ok()?)))
        .collect();
    let mut lines = unreported(&facts.machines, "Machine", |machine| {
        machine.report.as_ref().err()
    });
    if known.is_empty() {
        return lines;
    }
    lines.extend(loop_devices(&known));
    lines.extend(leftover_loops(&known));
    lines.extend(filesystems(&known, facts));
    lines.extend(clocks(&facts.machines));
    lines
}

/// A line for each reason why nodes did not report something.
pub(super) fn unreported<'a>(
    machines: &'a BTreeMap<String, Machine>,
    subject: &str,
    why: impl Fn(&'a Machine) -> Option<&'a Unknown>,
) -> Vec<Line> {
    let unknown = machines
        .iter()
        .filter_map(|(node, machine)| Some((node.as_str(), why(machine)?)));
    by_reason(subject, unknown)
}

/// A line for each reason why something about nodes is not known.
pub(super) fn by_reason<'a>(
    subject: &str,
    unknowns: impl IntoIterator<Item = (&'a str, &'a Unknown)>,
) -> Vec<Line> {
    let mut reasons: BTreeMap<String, (&Unknown, Vec<&str>)> = BTreeMap::new();
    for (node, why) in unknowns {
        reasons
            .entry(why.to_string())
            .or_insert((why, Vec::new()))
            .1
            .push(node);
    }
    let lines = reasons.into_values().map(|(why, nodes)| {
        let subject = format!("{subject} of {}", names(nodes));
        match why {
            // Proxies between this program and the API server may not carry these requests.
            Unknown::Failed(why) => Line::warning(
                format!("{subject}: {why}"),
                "The program in the node's pod could not be run. Is it of the same version?",
            ),
            why => unknown(&subject, why),
        }
    });
    lines.collect()
}

fn loop_devices(machines: &[(&str, &MachineReport)]) -> Vec<Line> {
    let (good, bad): (Vec<_>, Vec<_>) = machines
        .iter()
        .partition(|(_, report)| report.missing.is_empty());
    let mut lines = Vec::new();
    if !good.is_empty() {
        let nodes = names(good.iter().map(|(node, _)| *node));
        lines.push(Line::ok(format!("Loop devices can be used: {nodes}")));
    }
    lines.extend(bad.into_iter().map(|(node, report)| {
        Line::failed(
            format!("Node {node} lacks {}", report.missing.join("; ")),
            format!(
                "Load the kernel's module on the node: modprobe loop. Then delete {node}'s pod."
            ),
        )
    }));
    lines
}

/// Loop devices that deleted clusters have left. Nodes of one machine report the same ones.
fn leftover_loops(machines: &[(&str, &MachineReport)]) -> Vec<Line> {
    let mut found: BTreeMap<(&Path, &str), Vec<&str>> = BTreeMap::new();
    for (node, report) in machines {
        for left in &report.leftover_loops {
            found
                .entry((&left.device, &left.file))
                .or_default()
                .push(node);
        }
    }
    let lines = found.into_iter().map(|((device, file), nodes)| {
        let device = device.display();
        Line::warning(
            format!(
                "{device} of {} holds {file}, which no pool here knows",
                names(nodes)
            ),
            format!(
                "If the cluster of that file is gone for good, free its space on the machine: \
                 losetup -d {device}"
            ),
        )
    });
    lines.collect()
}

fn filesystems(machines: &[(&str, &MachineReport)], facts: &Facts) -> Vec<Line> {
    let mut missing: BTreeMap<(&str, &str), Vec<&str>> = BTreeMap::new();
    for (node, report) in machines {
        for fs in &report.filesystems {
            if let Some(why) = &fs.missing {
                missing.entry((&fs.name, why)).or_default().push(node);
            }
        }
    }
    if missing.is_empty() {
        let all = machines.first().map(|(_, report)| &report.filesystems);
        let all = all.into_iter().flatten().map(|fs| fs.name.as_str());
        return vec![Line::ok(format!(
            "Filesystems can be made and mounted: {}",
            names(all)
        ))];
    }
    let used = fs_types(facts);
    let lines = missing.into_iter().map(|((fs, why), nodes)| {
        let text = format!("{fs} is not offered on {}: {why}", names(nodes));
        let advice = format!("Load the kernel's module on the node: modprobe {fs}");
        if used.contains(&fs) {
            Line::failed(text, format!("{advice}. A StorageClass asks for {fs}."))
        } else {
            Line::warning(text, format!("{advice}. No StorageClass asks for {fs}."))
        }
    });
    lines.collect()
}

/// The filesystems that the driver's StorageClasses name. The driver's default is ext4.
fn fs_types(facts: &Facts) -> Vec<&str> {
    let classes = facts
        .classes
        .iter()
        .flatten()
        .filter(|c| c.provisioner == facts.driver);
    let named = classes.map(|class| {
        let parameters = class.parameters.as_ref();
        let fs = parameters.and_then(|p| p.get(FS_TYPE));
        fs.map_or("ext4", String::as_str)
    });
    named.collect()
}

fn clocks(machines: &BTreeMap<String, Machine>) -> Vec<Line> {
    let known: Vec<(&str, ClockOffset)> = machines
        .iter()
        .filter_map(|(node, m)| Some((node.as_str(), m.clock?)))
        .collect();
    let mut lines: Vec<Line> = known
        .iter()
        .filter_map(|(node, offset)| clock(node, *offset))
        .collect();
    if lines.is_empty() && !known.is_empty() {
        let nodes = names(known.iter().map(|(node, _)| *node));
        lines.push(Line::ok(format!(
            "Clocks agree with the API server's: {nodes}"
        )));
    }
    lines
}

fn clock(node: &str, offset: ClockOffset) -> Option<Line> {
    // A slow request makes the measurement uncertain, not the clock wrong.
    let surely = offset
        .seconds
        .unsigned_abs()
        .saturating_sub(offset.error.as_secs());
    let way = if offset.seconds > 0 {
        "ahead of"
    } else {
        "behind"
    };
    let text = format!(
        "The clock of {node} is {} s {way} the API server's",
        offset.seconds.unsigned_abs()
    );
    let advice = "Synchronize the node's clock (NTP): tokens, certificates and the times of \
                  snapshots depend on it.";
    match surely {
        s if s >= CLOCK_FAILED => Some(Line::failed(text, advice)),
        s if s >= CLOCK_WARNING => Some(Line::warning(text, advice)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use hostloop_report::machine::FilesystemReport;
    use hostloop_report::machine::LeftoverLoop;
    use rstest::rstest;

    use super::*;
    use crate::check::decide::testing::{good, machine, marks};
    use crate::check::line::Mark::{self, *};

    fn with(change: impl Fn(&mut MachineReport)) -> Facts {
        let mut facts = good();
        let mut machine = machine();
        change(machine.report.as_mut().unwrap());
        facts.machines.insert("n1".into(), machine);
        facts
    }

    #[test]
    fn a_node_without_loop_devices_has_its_own_line() {
        let lines = lines(&with(|report| {
            report.missing.push("loop devices: ENOENT".into())
        }));
        assert_eq!(marks(&lines), [Passed, Failed, Passed, Passed]);
        assert_eq!(lines[1].text, "Node n1 lacks loop devices: ENOENT");
    }

    #[test]
    fn devices_of_deleted_clusters_are_named_once() {
        let left = LeftoverLoop {
            device: "/dev/loop3".into(),
            file: "/p/image (deleted)".into(),
        };
        let mut facts = with(|report| report.leftover_loops.push(left.clone()));
        facts
            .machines
            .insert("n2".into(), facts.machines["n1"].clone());
        let lines = lines(&facts);
        assert_eq!(marks(&lines), [Passed, Warning, Passed, Passed]);
        assert!(
            lines[1]
                .text
                .contains("/dev/loop3 of n1, n2 holds /p/image"),
            "{lines:?}"
        );
        assert!(
            lines[1]
                .advice
                .as_ref()
                .unwrap()
                .ends_with("losetup -d /dev/loop3"),
            "{lines:?}"
        );
    }

    #[rstest]
    #[case("xfs", Failed)]
    #[case("btrfs", Warning)]
    fn a_missing_filesystem_fails_if_a_class_names_it(#[case] fs: &str, #[case] mark: Mark) {
        let gone = FilesystemReport {
            name: fs.into(),
            missing: Some("no module".into()),
        };
        let mut facts = with(|report| report.filesystems.push(gone.clone()));
        let class = &mut facts.classes.as_mut().unwrap()[0];
        class.parameters =
            Some([("csi.storage.k8s.io/fstype".to_owned(), "xfs".to_owned())].into());
        let lines = lines(&facts);
        assert_eq!(marks(&lines), [Passed, mark, Passed]);
        assert_eq!(
            lines[1].text,
            format!("{fs} is not offered on n1: no module")
        );
    }

    #[rstest]
    #[case(0, 0, Passed)]
    #[case(4, 0, Passed)]
    #[case(-5, 0, Warning)]
    #[case(8, 4, Passed)]
    #[case(59, 0, Warning)]
    #[case(-60, 0, Failed)]
    fn clock_offsets(#[case] seconds: i64, #[case] error: u64, #[case] mark: Mark) {
        let mut facts = good();
        let error = Duration::from_secs(error);
        let clock = Some(ClockOffset { seconds, error });
        facts.machines = [("n1".to_owned(), Machine { clock, ..machine() })].into();
        assert_eq!(marks(&clocks(&facts.machines)), [mark]);
    }

    #[test]
    fn nodes_without_a_report_share_a_line() {
        let mut facts = good();
        let why = Unknown::Forbidden("create pods/exec".into());
        for node in ["n1", "n2"] {
            let machine = Machine {
                report: Err(why.clone()),
                ..machine()
            };
            facts.machines.insert(node.into(), machine);
        }
        let lines = lines(&facts);
        assert_eq!(marks(&lines), [Skipped]);
        assert!(
            lines[0].text.starts_with("Machine of n1, n2: skipped"),
            "{lines:?}"
        );
    }
}
