//! The rights of hostloop's accounts: those in the manifests, and whether the API server grants
//! them.

use futures::StreamExt;
use hostloop_api_objects::lease_name::leader_lease;
use hostloop_report::flags::DRIVER_NAME;
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use kube::Api;
use kube::api::PostParams;
use serde::Deserialize;

use crate::Cluster;
use crate::api::{AT_ONCE, Call, timely};
use crate::check::facts::{Fact, Right, Unknown};

/// The manifests of the rights, and those of a snapshot controller.
const BASE: &str = include_str!("../../../../deploy/base/rbac.yaml");
const SNAPSHOT_CONTROLLER: &str =
    include_str!("../../../../deploy/components/snapshot-controller/rbac.yaml");

/// The namespace in the manifests, which a cluster may have changed.
const NAMESPACE: &str = "hostloop";

/// One right of one account.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Required {
    account: String,
    attributes: ResourceAttributes,
}

/// An object of the manifests, with the fields used here.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Manifest {
    kind: String,
    metadata: Metadata,
    rules: Vec<Rule>,
    role_ref: RoleRef,
    subjects: Vec<BindingSubject>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Metadata {
    name: String,
    namespace: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Rule {
    api_groups: Vec<String>,
    resources: Vec<String>,
    verbs: Vec<String>,
    resource_names: Vec<String>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct RoleRef {
    kind: String,
    name: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct BindingSubject {
    name: String,
}

/// The rights in the manifests, with this cluster's names.
pub(super) fn required(cluster: &Cluster, snapshot_controller: bool) -> Vec<Required> {
    let mut texts = vec![BASE];
    texts.extend(snapshot_controller.then_some(SNAPSHOT_CONTROLLER));
    let all: Vec<Manifest> = texts
        .into_iter()
        .flat_map(|text| {
            serde_saphyr::from_multiple::<Manifest>(text).expect("tests read each embedded file")
        })
        .collect();
    let mut required = Vec::new();
    for binding in all.iter().filter(|object| object.kind.ends_with("Binding")) {
        let role = all.iter().find(|object| {
            (
                &object.kind,
                &object.metadata.name,
                &object.metadata.namespace,
            ) == (
                &binding.role_ref.kind,
                &binding.role_ref.name,
                &binding.metadata.namespace,
            )
        });
        let rules = role.iter().flat_map(|role| &role.rules);
        for subject in &binding.subjects {
            let rules = rules.clone();
            required.extend(rules.flat_map(|rule| of_rule(cluster, binding, subject, rule)));
        }
    }
    required
}

fn of_rule(
    cluster: &Cluster,
    binding: &Manifest,
    subject: &BindingSubject,
    rule: &Rule,
) -> Vec<Required> {
    let namespace = match binding.metadata.namespace.as_deref() {
        Some(NAMESPACE) => Some(cluster.system_namespace.clone()),
        other => other.map(str::to_owned),
    };
    let name = rule.resource_names.first().map(|name| {
        if *name == leader_lease(DRIVER_NAME) {
            leader_lease(&cluster.driver_name)
        } else {
            name.clone()
        }
    });
    let mut required = Vec::new();
    for group in &rule.api_groups {
        for resource in &rule.resources {
            for verb in &rule.verbs {
                let (resource, subresource) = match resource.split_once('/') {
                    Some((resource, subresource)) => (resource, Some(subresource.to_owned())),
                    None => (resource.as_str(), None),
                };
                required.push(Required {
                    account: subject.name.clone(),
                    attributes: ResourceAttributes {
                        verb: Some(verb.clone()),
                        group: Some(group.clone()),
                        resource: Some(resource.to_owned()),
                        subresource,
                        namespace: namespace.clone(),
                        name: name.clone(),
                        ..Default::default()
                    },
                });
            }
        }
    }
    required
}

/// Asks for each right whether its account has it. A person who may not ask gets one answer.
pub(super) async fn ask(cluster: &Cluster, required: &[Required]) -> Vec<Right> {
    let mut rights = Vec::new();
    let mut rest = required;
    if let Some((first, others)) = required.split_first() {
        let right = review(cluster, first).await;
        if let Err(why) = &right.allowed {
            return accounts(required)
                .into_iter()
                .map(|account| unknown(account, why))
                .collect();
        }
        rights.push(right);
        rest = others;
    }
    let asked = rest.iter().map(|right| review(cluster, right));
    let others: Vec<Right> = futures::stream::iter(asked)
        .buffered(AT_ONCE)
        .collect()
        .await;
    rights.extend(others);
    rights
}

fn accounts(required: &[Required]) -> Vec<&str> {
    let mut accounts: Vec<&str> = required
        .iter()
        .map(|right| right.account.as_str())
        .collect();
    accounts.sort_unstable();
    accounts.dedup();
    accounts
}

fn unknown(account: &str, why: &Unknown) -> Right {
    Right {
        account: account.to_owned(),
        what: String::new(),
        allowed: Err(why.clone()),
    }
}

async fn review(cluster: &Cluster, right: &Required) -> Right {
    Right {
        account: right.account.clone(),
        what: right.title(),
        allowed: allowed(cluster, right).await,
    }
}

async fn allowed(cluster: &Cluster, right: &Required) -> Fact<bool> {
    let namespace = &cluster.system_namespace;
    let review = SubjectAccessReview {
        spec: SubjectAccessReviewSpec {
            user: Some(format!(
                "system:serviceaccount:{namespace}:{}",
                right.account
            )),
            groups: Some(vec![
                "system:serviceaccounts".to_owned(),
                format!("system:serviceaccounts:{namespace}"),
                "system:authenticated".to_owned(),
            ]),
            resource_attributes: Some(right.attributes.clone()),
            ..Default::default()
        },
        ..Default::default()
    };
    let api: Api<SubjectAccessReview> = cluster.all();
    let call = Call::of("create", &api, "");
    let answer = timely(call, api.create(&PostParams::default(), &review)).await?;
    Ok(answer.status.is_some_and(|status| status.allowed))
}

impl Required {
    /// As in `patch persistentvolumeclaims/status`.
    fn title(&self) -> String {
        let ResourceAttributes {
            verb,
            group,
            resource,
            subresource,
            ..
        } = &self.attributes;
        let dotted = match group.as_deref() {
            None | Some("") => String::new(),
            Some(group) => format!(".{group}"),
        };
        let slashed = subresource
            .as_ref()
            .map(|sub| format!("/{sub}"))
            .unwrap_or_default();
        format!(
            "{} {}{dotted}{slashed}",
            verb.as_deref().unwrap_or_default(),
            resource.as_deref().unwrap_or_default(),
        )
    }
}

#[cfg(test)]
mod tests {
    use hostloop_fake_api::FakeApi;

    use super::*;
    use crate::test_objects::cluster_of;

    fn cluster() -> Cluster {
        Cluster {
            system_namespace: "storage".to_owned(),
            driver_name: "other.example.com".to_owned(),
            ..cluster_of(&FakeApi::default())
        }
    }

    fn of<'a>(required: &'a [Required], account: &str, title: &str) -> Vec<&'a Required> {
        required
            .iter()
            .filter(|r| r.account == account && r.title() == title)
            .collect()
    }

    #[tokio::test]
    async fn the_manifests_rights_have_this_clusters_names() {
        let required = required(&cluster(), false);
        assert_eq!(accounts(&required), ["hostloop", "hostloop-controller"]);
        let status = of(&required, "hostloop", "patch persistentvolumeclaims/status");
        assert_eq!(status.len(), 1);
        assert_eq!(status[0].attributes.namespace, None);

        let lease = of(&required, "hostloop", "get leases.coordination.k8s.io");
        assert_eq!(lease[0].attributes.namespace.as_deref(), Some("storage"));
        assert_eq!(
            lease[0].attributes.name.as_deref(),
            Some("hostloop-other-example-com")
        );
        assert_eq!(
            of(&required, "hostloop", "update leases.coordination.k8s.io"),
            [] as [&Required; 0]
        );
    }

    #[tokio::test]
    async fn a_snapshot_controller_needs_more() {
        let create = "create volumesnapshotcontents.snapshot.storage.k8s.io";
        let without = required(&cluster(), false);
        let with = required(&cluster(), true);
        assert!(of(&without, "hostloop-controller", create).is_empty());
        assert_eq!(of(&with, "hostloop-controller", create).len(), 1);
        let lease = of(
            &with,
            "hostloop-controller",
            "update leases.coordination.k8s.io",
        );
        let namespaces = lease
            .iter()
            .filter_map(|r| r.attributes.namespace.as_deref());
        assert_eq!(namespaces.collect::<Vec<_>>(), ["storage", "kube-system"]);
    }
}
