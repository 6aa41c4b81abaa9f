//! Mount options that a class may set, and others.

use std::sync::Arc;

use hostloop_driver::node::Error;
use hostloop_driver::storage::Access;
use hostloop_proto::csi;
use hostloop_proto::csi::VolumeHealthErrorType::Degraded;

use super::*;

pub(crate) fn a_class_with_options_that_reach_other_devices_makes_nothing<K: TestKernel>() {
    let rig = Rig::<K>::new();
    for (fs, named, flags) in [
        ("xfs", "rtdev", &["rtdev=/dev/null"][..]),
        ("xfs", "logdev", &["noatime", "nouuid,logdev=/dev/null"]),
        ("btrfs", "device", &["device=/dev/null"]),
        ("ext4", "journal_path", &["journal_path=/dev/null"]),
        ("ext4", "journal_dev", &["ro,journal_dev=259"]),
        // The default filesystem.
        ("", "rtdev", &["rtdev=/dev/null"]),
    ] {
        let capability = with_flags(mount(fs), flags);
        let request = csi::CreateVolumeRequest {
            volume_capabilities: vec![mount(fs), capability.clone()],
            ..create_request("new")
        };
        let before = rig.kernel.changes();
        match rig.try_create(request) {
            Err(Error::Invalid(refused)) => {
                assert_eq!(refused.field, "volume_capabilities[1].mount.mount_flags");
                assert!(
                    refused.why.starts_with(&format!("\"{named}\"")),
                    "{refused}"
                );
                assert!(
                    !refused.why.contains("null"),
                    "flags may be secrets: {refused}"
                );
            }
            other => panic!("{fs} {flags:?}: {other:?}"),
        }
        assert_eq!(rig.kernel.changes(), before, "{fs} {flags:?}");
        let made = rig.created(create_request_for(&format!("{fs}-{named}"), mount(fs)));
        let request = csi::ValidateVolumeCapabilitiesRequest {
            volume_id: made,
            volume_capabilities: vec![capability],
            ..Default::default()
        };
        let answer = rig
            .controller
            .validate_volume_capabilities(request)
            .unwrap();
        assert_eq!(answer.confirmed, None);
        assert!(answer.message.contains(named), "{}", answer.message);
    }
}

/// An earlier version accepted the options, or an administrator wrote them into the object.
pub(crate) fn a_volume_that_has_other_options_is_mounted_and_says_so<K: TestKernel>() {
    let rig = Rig::<K>::new();
    let capability = with_flags(mount("ext4"), &["noload", "noatime"]);
    let new = create_request_for("new", capability.clone());
    refused!(rig.try_create(new), Error::Invalid(_));
    let made = rig.created(create_request_for("old", mount("ext4")));
    let id = rig.record(&made).id;
    rig.update(id, |record| {
        let Access::Mount { flags, .. } = &mut Arc::make_mut(&mut record.capabilities)[0].access
        else {
            panic!("a mount");
        };
        *flags = ["noload", "noatime"].map(str::to_owned).to_vec();
    });
    let again = create_request_for("old", capability.clone());
    assert_eq!(rig.created(again), made, "a repeated call");

    let reasons = |staged: bool| {
        let health = rig.health(&made).unwrap();
        let expected = (Degraded, "MountOptionsRefused".to_owned());
        assert_eq!(health.contains(&expected), staged, "{health:?}");
    };
    reasons(false);
    rig.stage(&made, "a", &capability).unwrap();
    rig.publish(&made, "a", "p", &capability, false).unwrap();
    assert!(rig.mount_at("p").options.has("noatime"));
    reasons(true);
    let request = csi::ControllerGetVolumeHealthRequest {
        volume_id: made.clone(),
        ..Default::default()
    };
    let health = rig
        .controller
        .controller_get_volume_health(request)
        .unwrap();
    let messages = health
        .volume_health
        .unwrap()
        .health_statuses
        .into_iter()
        .map(|it| it.message);
    let message = messages.collect::<Vec<_>>().join(" ");
    assert!(
        message.contains("noload") && !message.contains("noatime"),
        "{message}"
    );
    rig.unpublish(&made, "p").unwrap();
    rig.unstage(&made, "a").unwrap();

    rig.stage(&made, "a", &mount("ext4")).unwrap();
    reasons(false);
    rig.unstage(&made, "a").unwrap();
    rig.assert_clean(&made);
}
