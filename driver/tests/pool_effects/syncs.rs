//! How often each call of a volume's life waits for the disk.

use hostloop_driver::kernel::fake::Model;
use hostloop_proto::csi;

use crate::count;
use crate::testkit::{Rig, block, create_request, mount};

#[test]
fn each_call_syncs_what_it_must_and_no_more() {
    let _scenario = fail::FailScenario::setup();
    for capability in [mount("ext4"), block()] {
        let rig = Rig::<Model>::new();
        let syncs = |call: &mut dyn FnMut()| count("file.sync", call);
        let mut id = String::new();
        let mut request = create_request("one");
        request.volume_capabilities = vec![capability.clone()];
        // The image, the record, the entry's directory, and the directory of all volumes.
        assert_eq!(syncs(&mut || id = rig.created(request.clone())), 4, "create");
        let attach = csi::ControllerPublishVolumeRequest {
            volume_id: id.clone(),
            node_id: "n1".to_owned(),
            volume_capability: Some(capability.clone()),
            ..Default::default()
        };
        let mut attach = || drop(rig.controller.controller_publish_volume(attach.clone()).unwrap());
        assert_eq!(syncs(&mut attach), 2, "attach: the record and its name");
        let mut stage = || rig.stage(&id, "a", &capability).unwrap();
        assert_eq!(syncs(&mut stage), 0, "the first staging");
        for life in 0..2 {
            assert_eq!(syncs(&mut stage), 0, "a repeated staging, life {life}");
            for (target, readonly) in [("rw", false), ("ro", true)] {
                let mut publish = || rig.publish(&id, "a", target, &capability, readonly).unwrap();
                assert_eq!(syncs(&mut publish), 0, "publish {target}, life {life}");
            }
            for target in ["rw", "ro"] {
                let mut unpublish = || rig.unpublish(&id, target).unwrap();
                assert_eq!(syncs(&mut unpublish), 0, "unpublish {target}, life {life}");
            }
            assert_eq!(syncs(&mut || rig.unstage(&id, "a").unwrap()), 0, "unstage, life {life}");
            assert_eq!(syncs(&mut stage), 0, "stage again, life {life}");
        }
        rig.unstage(&id, "a").unwrap();
        assert_eq!(rig.record(&id).stage, None);
        let detach = csi::ControllerUnpublishVolumeRequest {
            volume_id: id.clone(),
            node_id: "n1".to_owned(),
            ..Default::default()
        };
        let mut detach = || {
            rig.controller.controller_unpublish_volume(detach.clone()).unwrap();
        };
        assert_eq!(syncs(&mut detach), 2, "detach: the record and its name");
        // The directory of all volumes, and `trash/`.
        assert_eq!(syncs(&mut || rig.delete(&id).unwrap()), 2, "delete");
    }
}
