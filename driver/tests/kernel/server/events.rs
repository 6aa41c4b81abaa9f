//! The events of the program, as `hostloop events` prints them.

use std::os::unix::fs::PermissionsExt;

use hostloop_proto::csi;
use serde_json::Value;

use super::program::Program;
use super::rig::mountable;

pub(super) const UID: &str = "0c1d2e3f-1111-4222-8333-444455556666";

/// The steps of each call in a volume's life. Steps in the middle that depend on the machine are
/// left out.
pub(super) const LIFE: [(&str, &[&str]); 6] = [
    ("CreateVolume", &["image", "mkfs", "sync", "record"]),
    (
        "NodeStageVolume",
        &["record", "loop attach", "mount", "record"],
    ),
    ("NodePublishVolume", &["bind mount"]),
    ("NodeUnpublishVolume", &["unmount"]),
    ("NodeUnstageVolume", &["unmount", "record"]),
    ("DeleteVolume", &["trash", "free"]),
];

fn lines(text: &str) -> Vec<Value> {
    text.lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

pub(super) async fn live(program: &Program) {
    let channel = program.channel().await;
    let mut controller = csi::controller_client::ControllerClient::new(channel.clone());
    let mut node = csi::node_client::NodeClient::new(channel);
    let name = format!("pvc-{UID}");
    let capability = Some(mountable());
    let request = csi::CreateVolumeRequest {
        name,
        volume_capabilities: vec![mountable()],
        ..Default::default()
    };
    let volume_id = program.create_volume(request).await;
    let path = |name: &str| program.path(name).to_str().unwrap().to_owned();
    let (staging_target_path, target_path) = (path("stage"), path("target"));
    std::fs::create_dir(&staging_target_path).unwrap();
    let staged = node.node_stage_volume(csi::NodeStageVolumeRequest {
        volume_id: volume_id.clone(),
        staging_target_path: staging_target_path.clone(),
        volume_capability: capability.clone(),
        ..Default::default()
    });
    staged.await.unwrap();
    let published = node.node_publish_volume(csi::NodePublishVolumeRequest {
        volume_id: volume_id.clone(),
        staging_target_path: staging_target_path.clone(),
        target_path: target_path.clone(),
        volume_capability: capability,
        ..Default::default()
    });
    published.await.unwrap();
    let unpublished = node.node_unpublish_volume(csi::NodeUnpublishVolumeRequest {
        volume_id: volume_id.clone(),
        target_path,
    });
    unpublished.await.unwrap();
    let unstaged = node.node_unstage_volume(csi::NodeUnstageVolumeRequest {
        volume_id: volume_id.clone(),
        staging_target_path,
    });
    unstaged.await.unwrap();
    let deleted = controller.delete_volume(csi::DeleteVolumeRequest {
        volume_id,
        ..Default::default()
    });
    deleted.await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_life_of_a_volume_is_in_its_events_as_in_the_log() {
    let mut program = Program::new();
    program.start(&["--log-format", "json"]);
    let socket = program.path("csi.events.sock");
    assert_eq!(
        std::fs::metadata(&socket).unwrap().permissions().mode() & 0o777,
        0o600
    );
    live(&program).await;

    let events = lines(&program.events(&["--json"]));
    let (header, events) = events.split_first().unwrap();
    assert_eq!(header["events"], "hostloop.events/v1");
    assert_eq!(
        (&header["process"], &header["node"]),
        (&"node".into(), &"n1".into())
    );
    assert!(
        events.iter().all(|event| event["trace"] == UID),
        "{events:#?}"
    );
    let numbers: Vec<_> = events
        .iter()
        .map(|event| event["seq"].as_u64().unwrap())
        .collect();
    assert_eq!(numbers, (0..events.len() as u64).collect::<Vec<_>>());

    let ended = events
        .iter()
        .filter(|event| event["kind"] == "call" && event["us"].is_u64());
    let ended: Vec<&Value> = ended.collect();
    let log = lines(&program.log("log"));
    let logged: Vec<&Value> = log
        .iter()
        .filter(|line| line["message"] == "call")
        .collect();
    assert_eq!((ended.len(), logged.len()), (LIFE.len(), LIFE.len()));
    for ((call, line), (name, steps)) in ended.iter().zip(logged).zip(LIFE) {
        assert_eq!((&call["name"], &call["code"]), (&name.into(), &"OK".into()));
        assert_eq!(
            (&line["method"], &line["about"]),
            (&call["name"], &call["about"])
        );
        let (ms, logged) = (
            call["us"].as_f64().unwrap() / 1e3,
            line["ms"].as_f64().unwrap(),
        );
        assert!(
            (ms - logged).abs() < 5.0,
            "{name}: {ms} ms, and {logged} ms in the log"
        );
        let inside = events.iter().filter(|event| event["parent"] == call["id"]);
        let inside: Vec<&Value> = inside.collect();
        let total: f64 = inside.iter().map(|step| step["us"].as_f64().unwrap()).sum();
        assert!(total / 1e3 <= ms, "{name}: its steps take {total} us");
        let mut names: Vec<&str> = inside.iter().map(|s| s["name"].as_str().unwrap()).collect();
        names.retain(|name| steps.contains(name));
        names.dedup();
        assert_eq!(names, steps, "{name}");
    }
    let volume = &ended[0]["answer"]["volume_id"];
    assert_eq!(ended[1]["request"]["volume_id"], *volume);
    let text = program.events(&[]);
    assert!(
        text.contains("  call  NodeStageVolume  ") && text.contains("  phase  mkfs  "),
        "{text}"
    );

    program.stop();
    assert!(!socket.exists());
}

#[test]
fn a_socket_that_cannot_be_served_stops_no_driver_unless_it_was_asked_for() {
    let mut program = Program::new();
    std::fs::write(program.path("csi.events.sock"), "a file").unwrap();
    program.start(&[]);
    program.stop();
    assert!(
        program.log("log").contains("events are not served"),
        "{}",
        program.log("log")
    );

    let asked = format!("unix://{}", program.path("csi.events.sock").display());
    let mut command = program.command("log", &["--events-socket", &asked]);
    assert!(!command.status().unwrap().success());
    assert!(
        program.log("log").contains("is not a socket"),
        "{}",
        program.log("log")
    );
}
