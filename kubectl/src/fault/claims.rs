//! The claims that a command is about.

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::Api;
use kube::api::ListParams;

use crate::api::{self, ApiError};
use crate::cluster::Cluster;
use crate::target::{Target, TargetError};
use crate::volume_objects::{bound_volume, handle, provisioner};

/// The claims, by name or by label.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct ClaimArgs {
    /// The claims
    #[arg(value_name = "CLAIM", required_unless_present = "selector")]
    pub(crate) claims: Vec<String>,

    /// In place of names: the claims with these labels, such as app=web,tier!=cache
    #[arg(short = 'l', long, value_name = "LABELS", conflicts_with = "claims")]
    pub(crate) selector: Option<String>,
}

/// Why there are no claims for a command.
#[derive(Debug, thiserror::Error)]
pub enum SelectionError {
    /// The API server can't be asked.
    #[error(transparent)]
    Api(#[from] ApiError),
    /// The words name no object.
    #[error("{word}: {why}")]
    Target {
        word: String,
        #[source]
        why: TargetError,
    },
    /// The words name no claim.
    #[error("{0}: only volumes of claims have faults; name a claim")]
    NotAClaim(String),
    #[error(
        "claim {1} is not in namespace {0}; `kubectl hostloop status -A` shows those of all namespaces"
    )]
    NotFound(String, String),
    #[error("claim {claim} is not one of driver {driver}, and other drivers have no faults")]
    OtherDriver { claim: String, driver: String },
    #[error("no claim of hostloop in namespace {0} has the labels {1}")]
    NoneSelected(String, String),
    #[error("-l without labels would select all claims; give labels, such as app=web")]
    NoLabels,
}

/// Reads the claims with these names, or with these labels, in the namespace of the command.
pub(crate) async fn selected(
    cluster: &Cluster,
    names: &[String],
    labels: Option<&str>,
) -> Result<Vec<PersistentVolumeClaim>, SelectionError> {
    match labels {
        Some(labels) => with_labels(cluster, labels).await,
        None => named(cluster, names).await,
    }
}

async fn named(
    cluster: &Cluster,
    names: &[String],
) -> Result<Vec<PersistentVolumeClaim>, SelectionError> {
    let all: Api<PersistentVolumeClaim> = cluster.own();
    let mut claims = Vec::new();
    for word in names {
        let name = claim_name(word)?;
        let Some(claim) = api::get(&all, &name).await? else {
            return Err(SelectionError::NotFound(cluster.namespace.clone(), name));
        };
        if !is_of_driver(cluster, &claim).await? {
            return Err(SelectionError::OtherDriver {
                claim: name,
                driver: cluster.driver_name.clone(),
            });
        }
        claims.push(claim);
    }
    Ok(claims)
}

async fn with_labels(
    cluster: &Cluster,
    labels: &str,
) -> Result<Vec<PersistentVolumeClaim>, SelectionError> {
    // The variable of a script may be unset. To the API server, no labels are those of all claims.
    if labels.trim().is_empty() {
        return Err(SelectionError::NoLabels);
    }
    let all: Api<PersistentVolumeClaim> = cluster.own();
    let mut claims = Vec::new();
    for claim in api::list(&all, ListParams::default().labels(labels)).await? {
        if is_of_driver(cluster, &claim).await? {
            claims.push(claim);
        }
    }
    if claims.is_empty() {
        let namespace = cluster.namespace.clone();
        return Err(SelectionError::NoneSelected(namespace, labels.to_owned()));
    }
    Ok(claims)
}

/// The name of a claim, which may be typed as `pvc/NAME`.
fn claim_name(word: &str) -> Result<String, SelectionError> {
    match Target::parse(word) {
        Ok(Target::Claim(name)) => Ok(name),
        Ok(other) => Err(SelectionError::NotAClaim(other.to_string())),
        Err(why) => Err(SelectionError::Target {
            word: word.to_owned(),
            why,
        }),
    }
}

/// True if the driver serves the claim, as far as the person may see that. Mostly the claim says it,
/// and a volume that was made by hand does otherwise.
async fn is_of_driver(cluster: &Cluster, claim: &PersistentVolumeClaim) -> Result<bool, ApiError> {
    let provisioner = provisioner(claim);
    if provisioner == Some(cluster.driver_name.as_str()) {
        return Ok(true);
    }
    let Some(volume) = bound_volume(claim) else {
        return Ok(provisioner.is_none());
    };
    match api::get::<PersistentVolume>(&cluster.all(), volume).await {
        Ok(Some(volume)) => Ok(handle(&volume, &cluster.driver_name).is_some()),
        Ok(None) | Err(ApiError::Forbidden { .. }) => Ok(provisioner.is_none()),
        Err(error) => Err(error),
    }
}

/// True if a claim has its volume: before that, its annotation has no effect.
pub(crate) fn is_bound(claim: &PersistentVolumeClaim) -> bool {
    let status = claim.status.as_ref();
    status.and_then(|status| status.phase.as_deref()) == Some("Bound")
}

#[cfg(test)]
mod tests {
    use hostloop_fake_api::FakeApi;
    use rstest::rstest;
    use serde_json::json;

    use super::*;
    use crate::test_objects::cluster_of;

    fn provisioned_by(driver: &str) -> serde_json::Value {
        json!({"volume.kubernetes.io/storage-provisioner": driver})
    }

    fn cluster_with(claims: &[(&str, serde_json::Value)]) -> FakeApi {
        let api = FakeApi::default();
        for (name, annotations) in claims {
            api.put(json!({"kind": "PersistentVolumeClaim", "metadata": {
                "name": name, "namespace": "demo", "labels": {"app": "db"},
                "annotations": annotations,
            }, "spec": {"volumeName": format!("pv-{name}")}, "status": {"phase": "Bound"}}));
        }
        for (name, driver) in [("by-hand", "hostloop.csi.dev"), ("by-other", "other.csi")] {
            api.put(
                json!({"kind": "PersistentVolume", "metadata": {"name": format!("pv-{name}")},
                "spec": {"csi": {"driver": driver, "volumeHandle": "h"}}}),
            );
        }
        api
    }

    #[rstest]
    #[case::name("data", "data")]
    #[case::kind("pvc/data", "data")]
    #[case::by_o_name("persistentvolumeclaim/data", "data")]
    #[case::made_by_hand("by-hand", "by-hand")]
    #[case::of_another("foreign", "claim foreign is not one of driver hostloop.csi.dev")]
    #[case::of_another_by_hand("by-other", "claim by-other is not one of driver")]
    #[case::missing("logs", "claim logs is not in namespace demo")]
    #[case::other_kind("pod/web", "pod web: only volumes of claims have faults")]
    #[case::no_name("pvc/", "pvc/: the name is missing")]
    #[tokio::test]
    async fn claims_by_their_names(#[case] word: &str, #[case] expected: &str) {
        let api = cluster_with(&[
            ("data", provisioned_by("hostloop.csi.dev")),
            ("by-hand", json!({})),
            ("by-other", json!({})),
            ("foreign", provisioned_by("other.csi")),
        ]);
        let found = selected(&cluster_of(&api), &[word.to_owned()], None).await;
        let said = match &found {
            Ok(claims) => claims[0].metadata.name.clone().unwrap(),
            Err(error) => error.to_string(),
        };
        assert!(said.starts_with(expected), "{said}");
    }

    #[tokio::test]
    async fn claims_of_other_drivers_are_not_selected() {
        let api = cluster_with(&[
            ("data", provisioned_by("hostloop.csi.dev")),
            ("foreign", provisioned_by("other.csi")),
        ]);
        let cluster = cluster_of(&api);
        let found = selected(&cluster, &[], Some("app=db")).await.unwrap();
        assert_eq!(found.len(), 1);
        let none = selected(&cluster, &[], Some("app=web")).await.unwrap_err();
        assert_eq!(
            none.to_string(),
            "no claim of hostloop in namespace demo has the labels app=web"
        );
    }

    /// Pods would be deleted and volumes fail that no one has named.
    #[rstest]
    #[case::empty("")]
    #[case::blank(" ")]
    #[tokio::test]
    async fn no_labels_do_not_select_all_claims(#[case] labels: &str) {
        let api = cluster_with(&[("data", provisioned_by("hostloop.csi.dev"))]);
        let refused = selected(&cluster_of(&api), &[], Some(labels)).await;
        assert!(
            matches!(refused, Err(SelectionError::NoLabels)),
            "{refused:?}"
        );
    }

    /// Without the right to read volumes, the claim alone names its driver.
    #[tokio::test]
    async fn the_right_to_read_volumes_is_not_needed() {
        let api = cluster_with(&[("by-hand", json!({})), ("foreign", provisioned_by("other"))]);
        api.hide("persistentvolumes", 403);
        let cluster = cluster_of(&api);
        assert!(
            selected(&cluster, &["by-hand".to_owned()], None)
                .await
                .is_ok()
        );
        assert!(
            selected(&cluster, &["foreign".to_owned()], None)
                .await
                .is_err()
        );
    }
}
