//! What Kubernetes itself does when a pod starts on a node: it creates the VolumeAttachment, and
//! kubelet calls the driver.

use std::collections::BTreeMap;
use std::path::PathBuf;

use hostloop_proto::csi;
use hostloop_proto::csi::volume_capability::access_mode::Mode;
use hostloop_proto::csi::volume_capability::{AccessMode, AccessType, MountVolume};
use hostloop_test::deployed::DRIVER;
use hostloop_test::driver::NODE;
use hostloop_test::front::fields::{handle, has_finalizer, list, name, text};
use hostloop_test::front::objects::{self, Place};
use hostloop_test::requests;
use serde_json::{Value, json};

use crate::site::{Site, at};

/// A claim's volume in use by a pod that writes.
pub(crate) struct Mounted {
    claim: Place,
    attachment: Place,
    /// The volume's ID.
    pub(crate) handle: String,
    staging: PathBuf,
    target: PathBuf,
    capability: csi::VolumeCapability,
}

impl Mounted {
    /// The pod's data file.
    pub(crate) fn data(&self) -> PathBuf {
        self.target.join("data")
    }

    /// The size of the filesystem the pod sees.
    pub(crate) fn bytes(&self) -> u64 {
        let stat = nix::sys::statvfs::statvfs(&self.target).expect("the volume is mounted");
        stat.blocks() * stat.fragment_size()
    }

    /// Attaches, stages and publishes the volume of a bound claim.
    pub(crate) async fn new(site: &Site, claim: &Place) -> Mounted {
        let volume = site.bound(claim).await;
        let (name, handle) = (name(&volume), handle(&volume));
        let attachment = attach(site, name, handle).await;
        let publish_context = strings(&attachment["status"]["attachmentMetadata"]);
        let attachment = Place::of_object(&attachment);

        let kubelet = site.scratch.dir("kubelet");
        let staging = kubelet.join("plugins").join(name).join("globalmount");
        let target = kubelet.join("pods").join(name).join("mount");
        std::fs::create_dir_all(&staging).expect("a staging path can be made");
        let parent = target.parent().expect("it has one");
        std::fs::create_dir_all(parent).expect("a target's parent can be made");
        let mounted = Mounted {
            claim: claim.clone(),
            attachment,
            handle: handle.to_owned(),
            staging,
            target,
            capability: capability(&volume),
        };
        let volume_context = strings(&volume["spec"]["csi"]["volumeAttributes"]);
        let stage = csi::NodeStageVolumeRequest {
            publish_context: publish_context.clone(),
            volume_capability: Some(mounted.capability.clone()),
            volume_context: volume_context.clone(),
            ..requests::stage(&mounted.handle, &mounted.staging)
        };
        site.csi.ok(stage).await;
        let publish = csi::NodePublishVolumeRequest {
            publish_context,
            volume_capability: Some(mounted.capability.clone()),
            volume_context,
            ..requests::publish(&mounted.handle, &mounted.staging, &mounted.target)
        };
        site.csi.ok(publish).await;
        mounted
    }

    /// Grows the filesystem to its volume's size, and updates the claim's status.
    pub(crate) async fn grow(&self, site: &Site) {
        let volume = site.bound(&self.claim).await;
        let capacity = &volume["spec"]["capacity"]["storage"];
        let claim = site.objects.get(&self.claim).await.expect("the claim");
        let asked = mebibytes(&claim["spec"]["resources"]["requests"]["storage"]);
        let expand = csi::NodeExpandVolumeRequest {
            volume_id: self.handle.clone(),
            volume_path: requests::text(&self.target),
            capacity_range: hostloop_test::client::at_least(asked << 20),
            staging_target_path: requests::text(&self.staging),
            volume_capability: Some(self.capability.clone()),
            ..Default::default()
        };
        site.csi.ok(expand).await;
        let done = json!({"status": {
            "capacity": {"storage": capacity},
            "conditions": null,
            "allocatedResourceStatuses": null,
        }});
        site.objects.merge_status(&self.claim, done).await;
    }

    /// Takes the mounts down; the volume stays attached.
    pub(crate) async fn unmount(&self, site: &Site) {
        site.csi
            .ok(requests::unpublish(&self.handle, &self.target))
            .await;
        site.csi
            .ok(requests::unstage(&self.handle, &self.staging))
            .await;
    }

    /// Deletes the attachment, and waits until the volume is detached.
    pub(crate) async fn detach(self, site: &Site) {
        site.delete(&self.attachment).await;
    }

    /// Takes the mounts down, detaches the volume, and deletes its claim.
    pub(crate) async fn end(self, site: &Site) {
        let claim = self.claim.clone();
        self.unmount(site).await;
        self.detach(site).await;
        site.delete(&claim).await;
    }
}

/// Creates the VolumeAttachment with the cluster's name for it, and waits for the attacher.
async fn attach(site: &Site, volume: &str, handle: &str) -> Value {
    let name = objects::attachment_name(handle, DRIVER, NODE);
    site.objects
        .create(objects::attachment(&name, DRIVER, NODE, volume))
        .await;
    let attached = |a: &Value| a["status"]["attached"] == true;
    let place = at("VolumeAttachment", &name);
    let attachment = site.until(&place, "attached", attached).await;
    let finalizer = format!("external-attacher/{}", DRIVER.replace('.', "-"));
    let held = |object: &Value| has_finalizer(object, &finalizer);
    assert!(held(&attachment), "{attachment}");
    let volume = at("PersistentVolume", volume);
    site.until(&volume, "held by the attacher", held).await;
    attachment
}

/// The capability that kubelet derives from a volume's object. The driver has the capability
/// SINGLE_NODE_MULTI_WRITER, so ReadWriteOnce allows several writers on one node.
fn capability(volume: &Value) -> csi::VolumeCapability {
    assert_eq!(volume["spec"]["accessModes"], json!(["ReadWriteOnce"]));
    let options = list(&volume["spec"]["mountOptions"]);
    let mount = MountVolume {
        fs_type: text(&volume["spec"]["csi"]["fsType"]).to_owned(),
        mount_flags: options.map(|option| text(option).to_owned()).collect(),
        ..Default::default()
    };
    csi::VolumeCapability {
        access_mode: Some(AccessMode {
            mode: Mode::SingleNodeMultiWriter.into(),
        }),
        access_type: Some(AccessType::Mount(mount)),
    }
}

fn strings(map: &Value) -> BTreeMap<String, String> {
    let map = map.as_object().into_iter().flatten();
    map.map(|(key, value)| (key.clone(), text(value).to_owned()))
        .collect()
}

/// The number in a quantity like `320Mi`, the only form in these tests.
fn mebibytes(quantity: &Value) -> u64 {
    let number = quantity.as_str().and_then(|q| q.strip_suffix("Mi"));
    let number = number.and_then(|n| n.parse().ok());
    number.unwrap_or_else(|| panic!("{quantity} is not in Mi"))
}
