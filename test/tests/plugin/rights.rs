//! People with too few rights: each command says which right it lacks, and shows the rest.

use std::path::Path;

use hostloop_test::cluster::Cluster;
use hostloop_test::machine::text;
use hostloop_test::plugin::{Plugin, assert_has};

/// A person who may only see claims, and one who may see everything and change nothing.
const ROLES: &str = "\
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: test-claims}
rules:
  - {apiGroups: [''], resources: [persistentvolumeclaims], verbs: [get, list]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: test-reader}
rules:
  - {apiGroups: ['*'], resources: ['*'], verbs: [get, list, watch]}
";

/// A command, whether it succeeds, and what it prints.
type Case = (&'static [&'static str], bool, &'static [&'static str]);

const CLAIMS: [Case; 8] = [
    (
        &["status"],
        true,
        &[
            "  claim  ",
            "you may not list persistentvolumes in the whole cluster",
            "you may not list storageclasses.storage.k8s.io in the whole cluster",
            "you may not list volumeattachments.storage.k8s.io in the whole cluster",
            "you may not list volumesnapshotcontents.snapshot.storage.k8s.io in the whole cluster",
            "you may not list pods in namespace default",
            "you may not list events in namespace default",
            "you may not list volumesnapshots.snapshot.storage.k8s.io in namespace default",
            "you may not list pods in namespace hostloop",
        ],
    ),
    (
        &["describe", "claim"],
        true,
        &[
            "Claim default/claim",
            "you may not get persistentvolumes in the whole cluster",
            "you may not get storageclasses.storage.k8s.io in the whole cluster",
            "you may not list volumeattachments.storage.k8s.io in the whole cluster",
            "you may not list pods in namespace default",
            "you may not list events in namespace default",
            "you may not list pods in namespace hostloop",
        ],
    ),
    (
        &["logs", "claim"],
        false,
        &[
            "you may not get persistentvolumes in the whole cluster",
            "you may not list pods in namespace hostloop",
        ],
    ),
    (
        &["check"],
        true,
        &[
            "  - Snapshot controller: skipped, because you may not list deployments.apps in",
            "  - CSIDriver: skipped, because you may not get csidrivers.storage.k8s.io in",
            "  - StorageClasses: skipped, because you may not list storageclasses.storage.k8s.io in",
            "  - Rights of account hostloop: skipped, because you may not create \
             subjectaccessreviews.authorization.k8s.io in the whole cluster",
            "  - Admission policies: skipped, because you may not list validatingadmissionpolicies.",
            "  - DaemonSet: skipped, because you may not list daemonsets.apps in namespace hostloop",
            "  - Pods: skipped, because you may not list pods in namespace hostloop",
            "  - Leader: skipped, because you may not get leases.coordination.k8s.io in namespace \
             hostloop",
            "  - Not looked at: you may not list persistentvolumes in the whole cluster",
        ],
    ),
    (
        &["check", "--live"],
        false,
        &["  × The live check can't begin: you may not list pods in namespace hostloop"],
    ),
    (
        &["install"],
        false,
        &["you may not list nodes in the whole cluster"],
    ),
    (
        &["load", "Cargo.toml"],
        false,
        &["you may not list nodes in the whole cluster"],
    ),
    (
        &["uninstall", "--yes"],
        false,
        &["you may not list ", " in the whole cluster"],
    ),
];

const READER: [Case; 6] = [
    (
        &["status"],
        true,
        &[
            "  claim  ",
            "you may not create pods/exec in namespace hostloop",
        ],
    ),
    (
        &["describe", "claim"],
        true,
        &[
            "NodeStageVolume",
            "you may not create pods/exec in namespace hostloop",
        ],
    ),
    (
        &["check"],
        true,
        &[
            "  - Rights of account hostloop: skipped, because you may not create \
             subjectaccessreviews.authorization.k8s.io in the whole cluster",
            "  - A trial of the policies: skipped, because you may not impersonate serviceaccounts \
             in namespace hostloop",
            ": skipped, because you may not create pods/exec in namespace hostloop",
        ],
    ),
    (
        &["check", "--live"],
        false,
        &["was not created: you may not create persistentvolumeclaims in namespace default"],
    ),
    (&["logs", "claim"], true, &["CreateVolume"]),
    (
        &["install"],
        false,
        &["you may not patch customresourcedefinitions.apiextensions.k8s.io in the whole cluster"],
    ),
];

/// Runs the commands as both. The claim `claim` of namespace `default` is in use.
pub(crate) fn each_missing_right_is_named(cluster: &Cluster, plugin: &Plugin<'_>, dir: &Path) {
    cluster.apply(ROLES);
    for (name, cases) in [("claims", &CLAIMS[..]), ("reader", &READER[..])] {
        let role = format!("test-{name}");
        let (_, kubeconfig) = cluster.account_with(&role, "default", name, dir);
        for (command, succeeds, words) in cases {
            let as_person = [&["--kubeconfig", text(&kubeconfig)][..], *command].concat();
            let (said, succeeded) = plugin.run(&as_person);
            assert_eq!(succeeded, *succeeds, "{name} {command:?}: {said}");
            assert_has(&said, words);
            // What a person may not see has not failed.
            assert_eq!(
                said.contains("  × "),
                command.ends_with(&["--live"]),
                "{said}"
            );
        }
        let binding = format!("clusterrolebinding/default-{name}");
        let account = format!("serviceaccount/{name}");
        cluster.kubectl(&["delete", &binding, &account, &format!("clusterrole/{role}")]);
    }
}
