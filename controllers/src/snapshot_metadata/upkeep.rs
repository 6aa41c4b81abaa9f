//! Keeps what others need to trust the service: the authority in its Secret, its certificate for nodes
//! in a ConfigMap and for backup tools in the SnapshotMetadataService object, and the leader's own
//! certificates.
//!
//! The component brings the Secret and the ConfigMap, empty: so the controller needs no right to
//! create any. Each pass looks at all of it again, so that whatever is deleted or changed is mended.

use std::collections::BTreeMap;
use std::time::Duration;

use hostloop_api_objects::snapshot_metadata::SnapshotMetadataService;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::ResourceExt;
use serde_json::json;

use super::credentials::{CredentialsError, CurrentCredentials};
use super::published_object::{ObjectStep, decide};
use crate::client::{ApiError, Kube};
use crate::pauses::Pauses;
use crate::tls::certificates::{Authority, CertificateError, StoredAuthority};

pub(super) use hostloop_report::clock::now_s as now;

/// The Secret with the authority.
pub(super) const SECRET: &str = "hostloop-snapshot-metadata-ca";
/// The ConfigMap with the authority's certificate.
pub(super) const CONFIG_MAP: &str = "hostloop-snapshot-metadata";
/// The certificate, in both.
pub(super) const CERTIFICATE: &str = "ca.crt";
const KEY: &str = "ca.key";
/// When the authority ends, in seconds since 1970.
const ENDS: &str = "ends";

/// The time between two passes.
const PAUSES: Pauses = Pauses {
    pace: Duration::from_secs(60),
    after_failure: Duration::from_secs(5),
    failed: "the service of changed blocks is not complete",
};

#[derive(Debug, thiserror::Error)]
pub(super) enum UpkeepError {
    #[error(transparent)]
    Api(#[from] ApiError),
    #[error("{kind} {namespace}/{name} does not exist: apply the component snapshot-metadata")]
    Missing {
        kind: &'static str,
        namespace: String,
        name: &'static str,
    },
    #[error(
        "the API server does not know SnapshotMetadataService: apply \
         deploy/components/snapshot-metadata/crd.yaml"
    )]
    NoKind,
    #[error(transparent)]
    Certificate(#[from] CertificateError),
    #[error(transparent)]
    Credentials(#[from] CredentialsError),
}

/// Keeps the authority and all that depends on it.
pub(super) struct Upkeep {
    pub(super) kube: Kube,
    /// The namespace of Secret and ConfigMap.
    pub(super) namespace: String,
    pub(super) driver: String,
    /// The service's address for backup tools.
    pub(super) address: String,
    /// The hosts that the service's certificate names.
    pub(super) hosts: Vec<String>,
    pub(super) credentials: CurrentCredentials,
}

impl Upkeep {
    /// Keeps all of it until the future is dropped.
    pub(super) async fn keep(&self) {
        loop {
            PAUSES.rest(self.pass(now()).await).await;
        }
    }

    /// Looks at all of it once, and mends what is missing or wrong.
    pub(super) async fn pass(&self, now: u64) -> Result<(), UpkeepError> {
        let authority = self.authority(now).await?;
        self.credentials.renew(&authority, &self.hosts, now)?;
        self.publish_to_nodes(authority.pem()).await?;
        self.publish_to_clients(authority.pem()).await
    }

    /// Reads the authority, or makes it. The resourceVersion decides between two that make one.
    async fn authority(&self, now: u64) -> Result<Authority, UpkeepError> {
        let secret: Option<Secret> = self.kube.get(&self.namespace, SECRET).await?;
        let secret = secret.ok_or_else(|| self.missing("Secret", SECRET))?;
        let data = secret.data.clone().unwrap_or_default();
        match read(&data, now) {
            Ok(authority) => return Ok(authority),
            Err(why) if !data.is_empty() => {
                tracing::warn!(%why, "making another authority for the service of changed blocks");
            }
            Err(_) => {}
        }
        let authority = Authority::new(now)?;
        let data = [
            (CERTIFICATE, authority.pem().to_owned()),
            (KEY, authority.key_pem()),
            (ENDS, authority.ends().to_string()),
        ];
        let data: BTreeMap<&str, ByteString> = data
            .into_iter()
            .map(|(name, text)| (name, ByteString(text.into_bytes())))
            .collect();
        let metadata = json!({"resourceVersion": secret.resource_version()});
        let patch = json!({"metadata": metadata, "data": data});
        self.kube.merge(&secret, patch).await?;
        Ok(authority)
    }

    async fn publish_to_nodes(&self, certificate: &str) -> Result<(), UpkeepError> {
        let map: Option<ConfigMap> = self.kube.get(&self.namespace, CONFIG_MAP).await?;
        let map = map.ok_or_else(|| self.missing("ConfigMap", CONFIG_MAP))?;
        let published = map.data.as_ref().and_then(|data| data.get(CERTIFICATE));
        if published.map(String::as_str) != Some(certificate) {
            let patch = json!({"data": {CERTIFICATE: certificate}});
            self.kube.merge(&map, patch).await?;
        }
        Ok(())
    }

    async fn publish_to_clients(&self, certificate: &str) -> Result<(), UpkeepError> {
        let present: Option<SnapshotMetadataService> = self.kube.get("", &self.driver).await?;
        match decide(present.as_ref(), &self.driver, &self.address, certificate) {
            ObjectStep::Keep => {}
            ObjectStep::Create(object) => match self.kube.create(object.as_ref()).await {
                Ok(_) => {}
                Err(ApiError::NotFound { .. }) => return Err(UpkeepError::NoKind),
                Err(error) => return Err(error.into()),
            },
            ObjectStep::Update(patch) => {
                if let Some(present) = &present {
                    self.kube.merge(present, patch).await?;
                }
            }
        }
        Ok(())
    }

    fn missing(&self, kind: &'static str, name: &'static str) -> UpkeepError {
        UpkeepError::Missing {
            kind,
            namespace: self.namespace.clone(),
            name,
        }
    }
}

/// Reads the authority in the Secret. Binary data is none.
fn read(data: &BTreeMap<String, ByteString>, now: u64) -> Result<Authority, CertificateError> {
    let stored = StoredAuthority {
        certificate: text(data, CERTIFICATE),
        key: text(data, KEY),
        ends: text(data, ENDS),
    };
    Authority::read(stored, now)
}

fn text<'a>(data: &'a BTreeMap<String, ByteString>, name: &str) -> &'a str {
    data.get(name)
        .and_then(|value| std::str::from_utf8(&value.0).ok())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::Value;

    use super::*;
    use crate::testing::World;

    const NOW: u64 = 1_800_000_000;

    fn upkeep(world: &World) -> Upkeep {
        Upkeep {
            kube: world.context.kube.clone(),
            namespace: "ns".to_owned(),
            driver: "d".to_owned(),
            address: "s.ns.svc:6443".to_owned(),
            hosts: vec!["s.ns.svc".to_owned()],
            credentials: CurrentCredentials::default(),
        }
    }

    fn empty(kind: &str, name: &str) -> Value {
        json!({"apiVersion": "v1", "kind": kind, "metadata": {"namespace": "ns", "name": name}})
    }

    #[tokio::test]
    async fn the_authority_is_made_once() {
        let world = World::new(&[]);
        let upkeep = upkeep(&world);
        let missing = upkeep.authority(NOW).await.unwrap_err();
        assert!(
            missing.to_string().contains("apply the component"),
            "{missing}"
        );
        world.api.put(empty("Secret", SECRET));
        let made = upkeep.authority(NOW).await.unwrap();
        let later = upkeep.authority(NOW + 60).await.unwrap();
        assert_eq!(made.pem(), later.pem());
        // It ends, or an administrator empties it.
        let last = upkeep.authority(NOW + 3600 * 24 * 3649).await.unwrap();
        assert_ne!(made.pem(), last.pem());
        let secret: Secret = upkeep.kube.get("ns", SECRET).await.unwrap().unwrap();
        let emptied = json!({"data": {CERTIFICATE: "", KEY: "", ENDS: ""}});
        upkeep.kube.merge(&secret, emptied).await.unwrap();
        let new = upkeep.authority(NOW).await.unwrap();
        assert_ne!(last.pem(), new.pem());
    }

    #[test]
    fn the_definition_to_apply_exists() {
        let message = UpkeepError::NoKind.to_string();
        let (_, file) = message.rsplit_once(' ').unwrap();
        let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
        assert!(root.join(file).is_file(), "{message}");
    }

    #[tokio::test]
    async fn nodes_read_the_certificate_and_no_key() {
        let world = World::new(&[]);
        let upkeep = upkeep(&world);
        world.api.put(empty("Secret", SECRET));
        world.api.put(empty("ConfigMap", CONFIG_MAP));
        let authority = upkeep.authority(NOW).await.unwrap();
        upkeep.publish_to_nodes(authority.pem()).await.unwrap();
        let map: ConfigMap = upkeep.kube.get("ns", CONFIG_MAP).await.unwrap().unwrap();
        let data = map.data.unwrap();
        assert_eq!(data[CERTIFICATE], authority.pem());
        assert!(!format!("{data:?}").contains("PRIVATE"));
        // What is right is not written again.
        world.api.writes();
        upkeep.authority(NOW).await.unwrap();
        upkeep.publish_to_nodes(authority.pem()).await.unwrap();
        assert_eq!(world.api.writes(), Vec::<String>::new());
    }
}
