//! Formats what is known about a claim.

use hostloop_controllers::snapshots::DeletionPolicy;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;

use super::history::{Moment, history};
use super::{Facts, Target};
use crate::inspect::status::color::{BAD, QUIET, WARNING, paint};
use crate::inspect::status::humanize::{age, bytes};
use crate::inspect::status::page::{Page, or_dash, size};
use crate::inspect::status::report::{Report, VolumeReport};
use crate::inspect::status::table::{numbers, words};
use crate::kubectl::log_line::Call;
use crate::kubectl::output::one_line;
use crate::kubectl::status::{SnapshotRow, Stuck, VolumeRow};
use crate::kubectl::volume_objects::phase;
use crate::storage::Provisioning;

/// Formats the facts as lines. `width` is the terminal's, if there is one.
pub(super) fn text(facts: &Facts, width: Option<usize>) -> Vec<String> {
    let mut page = Page::new(width);
    for row in &facts.report.volumes {
        claim(facts, row, &mut page);
    }
    if let Target::Snapshot(_) = facts.target {
        facts.report.snapshots.iter().for_each(|row| snapshot(facts, row, &mut page));
    }
    objects(facts, &mut page);
    on_node(facts, &mut page);
    calls(&facts.calls, &mut page);
    moments(&history(&facts.objects), &mut page);
    let mut unknown = facts.report.missing.clone();
    unknown.extend(
        facts
            .report
            .nodes
            .iter()
            .filter_map(|node| Some(format!("node {}: {}", node.node, node.problem.as_ref()?))),
    );
    if !unknown.is_empty() {
        page.heading("Not known");
        page.lines.extend(unknown.iter().map(|u| format!("  {}", paint(WARNING, &one_line(u)))));
    }
    page.lines
}

/// Adds lines of a name and a value. Values that are not known have none.
fn pairs(page: &mut Page, pairs: &[(&str, Option<String>)]) {
    let known = || pairs.iter().filter_map(|(name, value)| Some((*name, value.as_ref()?)));
    let width = known().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
    for (name, value) in known() {
        let name = paint(QUIET, &format!("{name:<width$}"));
        page.lines.push(format!("  {name}  {value}"));
    }
}

fn claim(facts: &Facts, row: &VolumeRow, page: &mut Page) {
    let namespace = row.namespace.as_deref().unwrap_or_default();
    let name = row.claim.as_deref().unwrap_or_default();
    page.heading(&format!("Claim {namespace}/{name}"));
    let stuck = row.stuck.as_ref().map(|stuck| reason(stuck, facts.now_ns));
    let object = facts.objects.claims.first();
    let spec = object.and_then(|claim| claim.spec.as_ref());
    let modes = spec.and_then(|spec| spec.access_modes.as_ref()).map(|modes| modes.join(", "));
    let on_disk = row.used_bytes.map(|used| format!(", {} on disk", bytes(used)));
    let sizes = row.size_bytes.map(|size| bytes(size) + &on_disk.unwrap_or_default());
    pairs(
        page,
        &[
            ("state", Some(row.state.as_str().to_owned())),
            ("stuck", stuck),
            ("note", row.note.as_deref().map(one_line)),
            ("node", row.node.clone()),
            ("size", sizes),
            ("class", row.class.clone()),
            ("access", modes),
            ("mode", spec.and_then(|spec| spec.volume_mode.clone())),
            ("source", row.source.clone()),
            ("attributes class", spec.and_then(|spec| spec.volume_attributes_class_name.clone())),
            ("age", Some(age(row.created_ns, facts.now_ns))),
        ],
    );
}

/// Why something is stuck, and for how long.
fn reason(stuck: &Stuck, now_ns: u64) -> String {
    let since = stuck.since_ns.map(|since| format!(" ({} ago)", age(since, now_ns)));
    paint(BAD, &format!("{}{}", one_line(&stuck.why), since.unwrap_or_default()))
}

fn snapshot(facts: &Facts, row: &SnapshotRow, page: &mut Page) {
    let namespace = row.namespace.as_deref().unwrap_or_default();
    page.heading(&format!("Snapshot {namespace}/{}", row.name.as_deref().unwrap_or_default()));
    let ready = row.ready.map(|ready| if ready { "yes" } else { "no" }.to_owned());
    pairs(
        page,
        &[
            ("ready", ready),
            ("stuck", row.stuck.as_ref().map(|stuck| reason(stuck, facts.now_ns))),
            ("of", row.source.clone()),
            ("node", row.node.clone()),
            ("pool", row.pool.clone()),
            ("size", row.size_bytes.map(bytes)),
            ("on disk", row.used_bytes.map(bytes)),
            ("group", row.group.clone()),
            ("ID", row.handle.clone()),
            ("age", Some(age(row.created_ns, facts.now_ns))),
        ],
    );
}

fn objects(facts: &Facts, page: &mut Page) {
    let objects = &facts.objects;
    let mut rows: Vec<Vec<String>> = Vec::new();
    let mut add = |kind: &str, name: String, state: String, uid: Option<String>| {
        rows.push(vec![kind.to_owned(), name, or_dash(Some(one_line(&state))), or_dash(uid)]);
    };
    for claim in &objects.claims {
        let phase = claim.status.as_ref().and_then(|status| status.phase.clone());
        add("PersistentVolumeClaim", claim.name_any(), or_dash(phase), claim.uid());
    }
    for volume in &objects.volumes {
        let phase = volume.status.as_ref().and_then(|status| status.phase.clone());
        let policy = volume.spec.as_ref();
        let policy = policy.and_then(|spec| spec.persistent_volume_reclaim_policy.clone());
        let state = format!("{}, policy {}", or_dash(phase), or_dash(policy));
        add("PersistentVolume", volume.name_any(), state, volume.uid());
    }
    for attachment in &objects.attachments {
        let attached = attachment.status.as_ref().is_some_and(|status| status.attached);
        let word = if attached { "attached" } else { "not attached" };
        let state = format!("{word} to {}", attachment.spec.node_name);
        add("VolumeAttachment", attachment.name_any(), state, attachment.uid());
    }
    for pod in &objects.pods {
        let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_ref());
        let node = node.map(|node| format!(" on {node}")).unwrap_or_default();
        add("Pod", pod.name_any(), format!("{}{node}", phase(pod)), pod.uid());
    }
    for snapshot in &facts.report.snapshots {
        let state = match (&snapshot.stuck, snapshot.ready) {
            (Some(stuck), _) => format!("stuck: {}", stuck.why),
            (None, Some(true)) => format!("ready, {} on disk", size(snapshot.used_bytes)),
            (None, _) => "being taken".to_owned(),
        };
        let name = or_dash(snapshot.name.clone());
        let uid = objects.snapshots.iter().find(|s| s.name_any() == name);
        add("VolumeSnapshot", name, state, uid.and_then(ResourceExt::uid));
    }
    for content in &objects.contents {
        let handle = content.status.as_ref().and_then(|status| status.snapshot_handle.clone());
        let policy = match content.spec.deletion_policy {
            DeletionPolicy::Delete => "Delete",
            DeletionPolicy::Retain => "Retain",
        };
        let state = format!("{}, policy {policy}", or_dash(handle));
        add("VolumeSnapshotContent", content.name_any(), state, content.uid());
    }
    let columns = [words("KIND"), words("NAME"), words("STATE"), words("UID")];
    page.table("Objects", &columns, &rows);
}

/// What the node has: the record, the image, loop devices and mounts.
fn on_node(facts: &Facts, page: &mut Page) {
    let Some(handle) = facts.report.volumes.iter().find_map(|row| row.handle.as_ref()) else {
        return;
    };
    for node in &facts.nodes {
        let Ok(report) = &node.report else { continue };
        let volume = report.volumes.iter().find(|volume| volume.id == *handle);
        if let Some(volume) = volume {
            record(&node.node, report, volume, facts.now_ns, page);
            kernel(report, volume, page);
        }
    }
}

fn record(node: &str, report: &Report, volume: &VolumeReport, now_ns: u64, page: &mut Page) {
    page.heading(&format!("Record on node {node}"));
    let pool = report.pools.iter().find(|pool| pool.name == volume.pool);
    let image = pool.and_then(|pool| pool.root.as_ref());
    let image = image.map(|root| root.join("volumes").join(&volume.id).join("image"));
    let frozen = volume.frozen_since_ns.map(|since| format!("for {}", age(since, now_ns)));
    let staged = volume.staged_as.as_deref().map(|kind| match &volume.staged_at {
        Some(path) => format!("as {kind} at {}", path.display()),
        None => format!("as {kind}"),
    });
    let allocation = match volume.provisioning {
        Provisioning::Thin => "thin",
        Provisioning::Thick => "thick",
    };
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
            ("allocation", Some(allocation.to_owned())),
            ("filesystem", Some(volume.format.clone())),
            ("source", volume.source.clone()),
            ("published to", Some(or_dash(Some(volume.published_nodes.join(", "))))),
            ("staged", staged),
            ("direct I/O", volume.direct_io.map(|d| if d { "yes" } else { "no" }.to_owned())),
            ("frozen", frozen.map(|frozen| paint(BAD, &frozen))),
        ],
    );
}

fn kernel(report: &Report, volume: &VolumeReport, page: &mut Page) {
    let loops = report.loops.iter().filter(|l| volume.loops.contains(&l.device)).map(|l| {
        vec![
            l.device.display().to_string(),
            bytes(l.size_bytes),
            l.block_size.to_string(),
            if l.direct_io { "direct" } else { "buffered" }.to_owned(),
            if l.read_only { "ro" } else { "rw" }.to_owned(),
            l.object.clone(),
        ]
    });
    let columns = [
        words("DEVICE"),
        numbers("SIZE"),
        numbers("BLOCK"),
        words("I/O"),
        words("MODE"),
        words("OBJECT"),
    ];
    page.table("Loop devices", &columns, &loops.collect::<Vec<_>>());
    let mounts = report.mounts.iter().filter(|m| volume.loops.contains(&m.device)).map(|m| {
        vec![
            m.device.display().to_string(),
            if m.kind == "device" { "(node)" } else { &m.fs }.to_owned(),
            if m.read_only { "ro" } else { "rw" }.to_owned(),
            m.path.display().to_string(),
        ]
    });
    let columns = [words("DEVICE"), words("FS"), words("MODE"), words("PATH")];
    page.table("Mounts", &columns, &mounts.collect::<Vec<_>>());
}

fn calls(calls: &[Call], page: &mut Page) {
    let rows = calls.iter().map(|call| {
        vec![
            time(call.time),
            call.method.clone(),
            call.code.clone(),
            call.ms.clone(),
            one_line(call.error.as_deref().unwrap_or_default()),
        ]
    });
    let columns =
        [words("TIME (UTC)"), words("CALL"), words("CODE"), numbers("MS"), words("ERROR")];
    page.painted_table("Last calls", &columns, &rows.collect::<Vec<_>>(), |row| {
        (calls[row].code != "OK").then_some(BAD)
    });
}

fn moments(moments: &[Moment], page: &mut Page) {
    let rows = moments.iter().map(|moment| {
        let at = Timestamp::from_nanosecond(i128::from(moment.at_ns)).unwrap_or_default();
        vec![time(at), moment.object.clone(), one_line(&moment.what)]
    });
    let columns = [words("TIME (UTC)"), words("OBJECT"), words("WHAT")];
    page.painted_table("History", &columns, &rows.collect::<Vec<_>>(), |row| {
        moments[row].is_bad.then_some(WARNING)
    });
}

fn time(at: Timestamp) -> String {
    at.strftime("%Y-%m-%d %H:%M:%S").to_string()
}
