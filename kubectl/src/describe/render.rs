//! Formats what is known about a claim, a snapshot, a group or inline volumes.

use hostloop_api_objects::constants::REACH_KERNEL;
use hostloop_report::pool_files::{IMAGE, VOLUMES};
use hostloop_report::status::{Report, VolumeFault, VolumeReport, VolumeUser};
use hostloop_terminal::color::{BAD, QUIET, WARNING, paint};
use hostloop_terminal::columns::{LOOP, MOUNT, io, or_dash, yes_no};
use hostloop_terminal::humanize::{age, bytes};
use hostloop_terminal::page::{Cell, Page};
use hostloop_terminal::table::{numbers, prose, words};
use k8s_openapi::jiff::Timestamp;

use super::history::{Moment, history};
use super::{Facts, Target};
use crate::log_line::LoggedCall;
use crate::output::one_line;
use crate::status::{SnapshotRow, VolumeRow, not_known, reason};
use crate::volume_objects::is_reported_shared;

mod objects_table;

/// Formats the facts as lines. `width` is the terminal's, if there is one.
pub(super) fn text(facts: &Facts, width: Option<usize>) -> Vec<String> {
    let mut page = Page::new(width, facts.now_ns);
    for row in &facts.report.volumes {
        volume(facts, row, &mut page);
    }
    if let Target::Group(name) = &facts.target {
        group(facts, name, &mut page);
    }
    if let Target::Snapshot(_) | Target::Group(_) = facts.target {
        facts
            .report
            .snapshots
            .iter()
            .for_each(|row| snapshot(facts, row, &mut page));
    }
    objects_table::objects(facts, &mut page);
    on_node(facts, &mut page);
    calls(&facts.calls, &mut page);
    moments(&history(&facts.objects), &mut page);
    let nodes = facts.report.nodes.iter();
    let silent =
        nodes.filter_map(|node| Some(format!("node {}: {}", node.node, node.problem.as_ref()?)));
    not_known(
        facts.report.missing.iter().cloned().chain(silent),
        &mut page,
    );
    page.lines
}

/// Adds lines of a name and a value. Values that are not known have none.
fn pairs(page: &mut Page, pairs: &[(&str, Option<String>)]) {
    let known: Vec<(&str, &String)> = pairs
        .iter()
        .filter_map(|(name, value)| Some((*name, value.as_ref()?)))
        .collect();
    let width = known
        .iter()
        .map(|(name, _)| name.chars().count())
        .max()
        .unwrap_or(0);
    for (name, value) in known {
        let name = paint(QUIET, &format!("{name:<width$}"));
        page.lines.push(format!("  {name}  {value}"));
    }
}

/// The claim, or the inline volume.
fn volume(facts: &Facts, row: &VolumeRow, page: &mut Page) {
    let namespace = row.namespace.as_deref().unwrap_or_default();
    page.heading(&match &row.inline {
        Some(name) => format!(
            "Inline volume {name} of pod {namespace}/{}",
            row.pods.join(",")
        ),
        None => format!(
            "Claim {namespace}/{}",
            row.claim.as_deref().unwrap_or_default()
        ),
    });
    let stuck = row
        .stuck
        .as_ref()
        .map(|stuck| paint(BAD, &reason(stuck, facts.now_ns)));
    let state = match row.fault_mark() {
        Some(mark) => {
            let mark = one_line(&mark);
            paint(WARNING, &format!("{}, {mark}", row.state.as_str()))
        }
        None => row.state.as_str().to_owned(),
    };
    let object = facts.objects.claims.first();
    let spec = object.and_then(|claim| claim.spec.as_ref());
    let modes = spec
        .and_then(|spec| spec.access_modes.as_ref())
        .map(|modes| modes.join(", "));
    let on_disk = row
        .used_bytes
        .map(|used| format!(", {} on disk", bytes(used)));
    let sizes = row
        .size_bytes
        .map(|size| bytes(size) + &on_disk.unwrap_or_default());
    pairs(
        page,
        &[
            ("state", Some(state)),
            ("stuck", stuck),
            ("note", row.note.as_deref().map(one_line)),
            ("node", row.node.clone()),
            ("size", sizes),
            ("class", row.class.clone()),
            ("access", modes),
            ("mode", spec.and_then(|spec| spec.volume_mode.clone())),
            ("source", row.source.clone()),
            (
                "attributes class",
                spec.and_then(|spec| spec.volume_attributes_class_name.clone()),
            ),
            ("age", Some(age(row.created_ns, facts.now_ns))),
        ],
    );
}

/// The group itself; its snapshots follow.
fn group(facts: &Facts, name: &str, page: &mut Page) {
    let object = facts.objects.groups.first();
    let namespace = object.and_then(|group| group.metadata.namespace.as_deref());
    page.heading(&format!("Group {}/{name}", namespace.unwrap_or_default()));
    let status = object.and_then(|group| group.status.as_ref());
    pairs(
        page,
        &[
            (
                "ready",
                status.and_then(|status| status.ready_to_use).map(yes_no),
            ),
            ("snapshots", Some(facts.report.snapshots.len().to_string())),
        ],
    );
}

fn snapshot(facts: &Facts, row: &SnapshotRow, page: &mut Page) {
    let namespace = row.namespace.as_deref().unwrap_or_default();
    page.heading(&format!(
        "Snapshot {namespace}/{}",
        row.name.as_deref().unwrap_or_default()
    ));
    let stuck = row
        .stuck
        .as_ref()
        .map(|stuck| paint(BAD, &reason(stuck, facts.now_ns)));
    pairs(
        page,
        &[
            ("ready", row.ready.map(yes_no)),
            ("stuck", stuck),
            ("of", row.source.clone()),
            ("node", row.node.clone()),
            ("pool", row.pool.clone()),
            ("size", row.size_bytes.map(bytes)),
            ("on disk", row.used_bytes.map(bytes)),
            ("group", row.group.clone()),
            ("taken", row.consistency.as_deref().map(str::to_owned)),
            ("ID", row.handle.clone()),
            ("age", Some(age(row.created_ns, facts.now_ns))),
        ],
    );
}

/// What the node has: the record, the image, loop devices and mounts.
fn on_node(facts: &Facts, page: &mut Page) {
    let handles: Vec<&String> = facts
        .report
        .volumes
        .iter()
        .filter_map(|row| row.handle.as_ref())
        .collect();
    for node in &facts.nodes {
        let Ok(report) = &node.report else { continue };
        for volume in report
            .volumes
            .iter()
            .filter(|volume| handles.contains(&&volume.id))
        {
            record(&node.node, report, volume, facts.now_ns, page);
            if is_reported_shared(volume) {
                users(&node.node, volume, page);
            }
            kernel(report, volume, page);
        }
    }
}

fn record(node: &str, report: &Report, volume: &VolumeReport, now_ns: u64, page: &mut Page) {
    page.heading(&format!("Record on node {node}"));
    let pool = report.pools.iter().find(|pool| pool.name == volume.pool);
    let image = pool.and_then(|pool| pool.root.as_ref());
    let image = image.map(|root| root.join(VOLUMES).join(&volume.id).join(IMAGE));
    let frozen = volume
        .frozen_since_ns
        .map(|since| format!("for {}", age(since, now_ns)));
    let fault = volume.fault.as_ref();
    let fault = fault.map(|fault| fault_words(fault, now_ns));
    let for_all = if is_reported_shared(volume) {
        ", for all nodes that use it"
    } else {
        ""
    };
    let staged = volume
        .staged_as
        .as_deref()
        .map(|kind| match &volume.staged_at {
            Some(path) => format!("as {kind} at {}{for_all}", path.display()),
            None => format!("as {kind}{for_all}"),
        });
    let pool_state = pool.map(|pool| {
        let fs = pool.fs.as_deref().unwrap_or("unknown filesystem");
        format!("{} ({}, {}, {fs})", pool.name, pool.kind, pool.state)
    });
    pairs(
        page,
        &[
            ("ID", Some(volume.id.clone())),
            ("name", Some(volume.name.clone())),
            ("pool", pool_state.or(Some(volume.pool.clone()))),
            ("image", image.map(|path| path.display().to_string())),
            ("size", Some(bytes(volume.size_bytes))),
            ("on disk", volume.allocated_bytes.map(bytes)),
            ("allocation", Some(volume.provisioning.to_string())),
            ("filesystem", Some(volume.format.clone())),
            ("source", volume.source.clone()),
            (
                "reach",
                is_reported_shared(volume).then(|| REACH_KERNEL.to_owned()),
            ),
            (
                "published to",
                Some(or_dash(Some(volume.published_nodes.join(", ")))),
            ),
            ("staged", staged),
            ("I/O", volume.direct_io.map(io)),
            ("frozen", frozen.map(|frozen| paint(BAD, &frozen))),
            ("fault", fault.map(|fault| paint(WARNING, &fault))),
        ],
    );
}

/// The fault of a volume, and what is left of it.
fn fault_words(fault: &VolumeFault, now_ns: u64) -> String {
    let text = one_line(&fault.fault);
    match &*fault.state {
        "active" => format!("{text}, for {}", age(fault.since_ns, now_ns)),
        "waiting" => format!("{text}, once a pod uses the volume"),
        "stopped" => {
            format!("{text}, which has stopped the filesystem: delete the pods that use the volume")
        }
        state => format!("{text}, {}", one_line(state)),
    }
}

/// The nodes that use a volume that several can use. `node` has its pool.
fn users(node: &str, volume: &VolumeReport, page: &mut Page) {
    let users = volume.users.iter().map(|user| (user, user.node == node));
    let users: Vec<(&VolumeUser, bool)> = users.collect();
    let cells: [Cell<(&VolumeUser, bool)>; 4] = [
        (words("NODE"), |(user, _), _| user.node.clone()),
        (words("ATTACHED"), |(user, _), _| yes_no(user.published)),
        (words("IN USE"), |(user, _), _| yes_no(user.pins)),
        (words("HAS THE POOL"), |(_, is_owner), _| yes_no(*is_owner)),
    ];
    page.table("Used by", &cells, &users);
}

fn kernel(report: &Report, volume: &VolumeReport, page: &mut Page) {
    page.table(
        "Loop devices",
        &LOOP,
        report
            .loops
            .iter()
            .filter(|l| volume.loops.contains(&l.device)),
    );
    page.table(
        "Mounts",
        &MOUNT,
        report
            .mounts
            .iter()
            .filter(|m| volume.loops.contains(&m.device)),
    );
}

fn calls(calls: &[LoggedCall], page: &mut Page) {
    let cells: [Cell<LoggedCall>; 5] = [
        (words("TIME"), |call, _| time(call.time)),
        (words("CALL"), |call, _| call.method.clone()),
        (words("CODE"), |call, _| call.code.clone()),
        (numbers("MS"), |call, _| call.ms.clone()),
        (prose("ERROR", None), |call, _| {
            one_line(call.error.as_deref().unwrap_or_default())
        }),
    ];
    page.painted_table("Last calls", &cells, calls, |call: &LoggedCall| {
        (call.code != "OK").then_some(BAD)
    });
}

/// What happened, as a table.
pub(crate) fn moments(moments: &[Moment], page: &mut Page) {
    let cells: [Cell<Moment>; 3] = [
        (words("TIME"), |moment, _| {
            time(Timestamp::from_nanosecond(i128::from(moment.at_ns)).unwrap_or_default())
        }),
        (words("OBJECT"), |moment, _| moment.object.clone()),
        (prose("WHAT", None), |moment, _| one_line(&moment.what)),
    ];
    page.painted_table("History", &cells, moments, |moment: &Moment| {
        moment.is_bad.then_some(WARNING)
    });
}

fn time(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}
