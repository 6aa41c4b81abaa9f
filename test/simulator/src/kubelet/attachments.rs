//! Volumes that are attached to the node. Kubelet says in the status of its node which volumes it
//! uses, and mounts those that the status says are attached.

use std::collections::{BTreeMap, BTreeSet};

use http::Method;
use serde_json::{Value, json};

use super::Kubelet;
use super::wanted::Wanted;
use crate::cluster::DRIVER;
use crate::model::view::items;
use crate::model::{attachment_name_of, unique_name_of};
use crate::users::{Refused, send};

/// The attached volumes of a node, by their handles. None if they need not be attached.
pub(super) struct Attachments(Option<BTreeSet<String>>);

impl Attachments {
    /// True if kubelet may mount a volume.
    pub(super) fn allow(&self, wanted: &Wanted) -> bool {
        let attached = self.0.as_ref().filter(|_| !wanted.inline);
        attached.is_none_or(|attached| attached.contains(&wanted.handle))
    }
}

impl Kubelet {
    /// Says which volumes the node uses: those that pods want or that are in place.
    pub(super) async fn report_in_use(
        &self,
        wanted: &BTreeMap<(String, String), Wanted>,
    ) -> Result<(), Refused> {
        if !self.attaches() {
            return Ok(());
        }
        let at = format!("/api/v1/nodes/{}", self.node);
        let Some(node) = self.api.shared_at(&at) else {
            return Ok(());
        };
        let used = self.used(wanted);
        if used == names(&node, "/status/volumesInUse") {
            return Ok(());
        }
        let status = json!({"status": {"volumesInUse": used}});
        let at = format!("{at}/status");
        let sent = send(&self.client, Method::PATCH, &at, &status).await;
        sent.map(drop)
    }

    /// The volumes that kubelet may mount: the node says that it uses them, the controller says
    /// that they are attached, and so does the attachment itself.
    pub(super) fn attachments(&self, wanted: &BTreeMap<(String, String), Wanted>) -> Attachments {
        if !self.attaches() {
            return Attachments(None);
        }
        let node = self.api.shared_at(&format!("/api/v1/nodes/{}", self.node));
        let node = node.unwrap_or_default();
        let in_use = names(&node, "/status/volumesInUse");
        let reported: BTreeSet<&str> = items(&node, "/status/volumesAttached")
            .filter_map(|one| one["name"].as_str())
            .collect();
        let handles = wanted.values().map(|one| &one.handle);
        let attached = handles.filter(|handle| {
            let name = unique_name_of(DRIVER, handle);
            in_use.contains(&name) && reported.contains(&*name) && self.is_attached(handle)
        });
        Attachments(Some(attached.cloned().collect()))
    }

    fn is_attached(&self, handle: &str) -> bool {
        let name = attachment_name_of(DRIVER, handle, self.node);
        let at = format!("/apis/storage.k8s.io/v1/volumeattachments/{name}");
        let attachment = self.api.shared_at(&at);
        attachment.is_some_and(|one| one["status"]["attached"] == true)
    }

    /// The names of the volumes that pods want or that are in place.
    fn used(&self, wanted: &BTreeMap<(String, String), Wanted>) -> BTreeSet<String> {
        let state = self.state.lock();
        let wanted = wanted.values().filter(|one| !one.inline);
        let handles = wanted.map(|one| &one.handle).chain(state.staged.keys());
        let names = handles.map(|handle| unique_name_of(DRIVER, handle));
        names.collect()
    }

    /// True if the driver's volumes are attached before they are mounted.
    fn attaches(&self) -> bool {
        let at = format!("/apis/storage.k8s.io/v1/csidrivers/{DRIVER}");
        let driver = self.api.shared_at(&at);
        driver.is_some_and(|driver| driver["spec"]["attachRequired"] == true)
    }
}

/// A list of names in an object.
fn names(object: &Value, pointer: &str) -> BTreeSet<String> {
    let names = items(object, pointer).filter_map(Value::as_str);
    names.map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use hostloop_fake_api::FakeApi;

    use super::*;
    use crate::kubelet::line::Line;
    use crate::kubelet::wanted::{Pod, inline};

    fn wanted(handle: &str, is_inline: bool) -> Wanted {
        Wanted {
            handle: handle.to_owned(),
            inline: is_inline,
            ..inline(&Pod::default(), &json!({"name": "v0"}))
        }
    }

    fn attach(api: &FakeApi, handle: &str, attached: bool) {
        let name = attachment_name_of(DRIVER, handle, "n1");
        api.put(
            json!({"apiVersion": "storage.k8s.io/v1", "kind": "VolumeAttachment",
            "metadata": {"name": name}, "status": {"attached": attached}}),
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_volume_is_mounted_when_all_say_that_it_is_attached() {
        let api = FakeApi::cluster();
        let client = api.connect("kubelet").client();
        let line = Line::new(1, "n1");
        let kubelet = Kubelet::new(api.clone(), client, "n1", line, Path::new("/nowhere"));
        let volumes: BTreeMap<_, _> = ["a", "b", "c"]
            .map(|handle| wanted(handle, false))
            .into_iter()
            .chain([wanted("inline", true)])
            .map(|one| (one.key(), one))
            .collect();
        let allowed = || {
            let attachments = kubelet.attachments(&volumes);
            let allowed = volumes.values().filter(|one| attachments.allow(one));
            allowed.map(|one| one.handle.clone()).collect::<Vec<_>>()
        };
        for required in [false, true] {
            api.put(
                json!({"apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver",
                "metadata": {"name": DRIVER}, "spec": {"attachRequired": required}}),
            );
            let all = ["a", "b", "c", "inline"];
            let expected = if required { &all[3..] } else { &all[..] };
            assert_eq!(allowed(), expected);
        }
        let reported = ["a", "b"].map(|one| json!({"name": unique_name_of(DRIVER, one)}));
        api.put(
            json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"},
            "status": {"volumesAttached": reported}}),
        );
        attach(&api, "a", true);
        attach(&api, "b", false);
        attach(&api, "c", true);
        assert_eq!(allowed(), ["inline"]);
        kubelet.report_in_use(&volumes).await.expect("a report");
        let node = api.get("/api/v1/nodes/n1").expect("a node");
        let used = names(&node, "/status/volumesInUse");
        assert_eq!(used.len(), 3);
        assert_eq!(allowed(), ["a", "inline"]);
    }
}
