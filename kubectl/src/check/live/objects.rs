//! The objects of the live check.

use serde_json::{Value, json};

use super::LivePlan;
use crate::new_objects::{from_snapshot, labels, snapshot};

/// The label that all objects of one check share. Its value is their name.
pub(super) const LABEL: &str = "hostloop.csi.dev/check";

/// The size of the claims. XFS needs 300 MiB.
const SIZE: &str = "320Mi";
/// Where the pods have the volume.
const MOUNT: &str = "/volume";
/// The user of the pods. `fsGroup` gives it the volume.
const USER: i64 = 65534;

/// What a pod does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Task {
    Write,
    Verify,
}

impl Task {
    /// The subcommand of `hostloop probe`.
    pub(super) fn word(self) -> &'static str {
        match self {
            Task::Write => "write",
            Task::Verify => "verify",
        }
    }
}

/// One of the objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TestObject {
    Claim,
    Snapshot,
    Restored,
    Pod(Task),
}

impl TestObject {
    /// In the order of deletion: pods hold claims, and a restored claim may hold its snapshot.
    pub(super) const ALL: [TestObject; 5] = [
        TestObject::Pod(Task::Write),
        TestObject::Pod(Task::Verify),
        TestObject::Restored,
        TestObject::Snapshot,
        TestObject::Claim,
    ];

    pub(super) fn name(self, plan: &LivePlan) -> String {
        match self {
            TestObject::Claim | TestObject::Snapshot => plan.name.clone(),
            TestObject::Restored => format!("{}-restored", plan.name),
            TestObject::Pod(task) => format!("{}-{}", plan.name, task.word()),
        }
    }
}

impl LivePlan {
    fn metadata(&self, name: &str) -> Value {
        json!({
            "name": name,
            "namespace": self.namespace,
            "labels": labels(LABEL, &self.name),
        })
    }

    pub(super) fn claim(&self) -> Value {
        self.claim_from(&self.name, Value::Null)
    }

    /// The claim with the content of the snapshot.
    pub(super) fn restored_claim(&self) -> Value {
        self.claim_from(&TestObject::Restored.name(self), from_snapshot(&self.name))
    }

    fn claim_from(&self, name: &str, source: Value) -> Value {
        json!({
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": self.metadata(name),
            "spec": {
                "accessModes": ["ReadWriteOnce"],
                "storageClassName": self.class,
                "resources": {"requests": {"storage": SIZE}},
                "dataSource": source,
            },
        })
    }

    pub(super) fn snapshot(&self, class: &str) -> Value {
        snapshot(self.metadata(&self.name), class, &self.name)
    }

    /// A pod that the restricted pod security standard allows.
    pub(super) fn pod(&self, task: Task, claim: &str) -> Value {
        let mut container = json!({
            "name": "probe",
            "image": self.image,
            "imagePullPolicy": self.pull_policy,
            "args": ["probe", task.word(), MOUNT, self.name],
            // The message of a failure is in the pod's status, so no right to read logs is needed.
            "terminationMessagePolicy": "FallbackToLogsOnError",
            "resources": {
                "requests": {"cpu": "10m", "memory": "16Mi"},
                "limits": {"memory": "64Mi"},
            },
            "securityContext": {
                "allowPrivilegeEscalation": false,
                "readOnlyRootFilesystem": true,
                "capabilities": {"drop": ["ALL"]},
            },
            "volumeMounts": [{"name": "volume", "mountPath": MOUNT}],
        });
        if let Some(program) = &self.program {
            container["command"] = json!([program]);
        }
        json!({
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": self.metadata(&TestObject::Pod(task).name(self)),
            "spec": {
                "restartPolicy": "Never",
                "automountServiceAccountToken": false,
                "enableServiceLinks": false,
                "terminationGracePeriodSeconds": 1,
                "securityContext": {
                    "runAsNonRoot": true,
                    "runAsUser": USER,
                    "runAsGroup": USER,
                    "fsGroup": USER,
                    "seccompProfile": {"type": "RuntimeDefault"},
                },
                "containers": [container],
                "volumes": [{"name": "volume", "persistentVolumeClaim": {"claimName": claim}}],
            },
        })
    }
}
