//! The certificates that the leader serves with at present.

use std::sync::Arc;

use parking_lot::RwLock;
use rustls::ServerConfig;

use crate::tls::certificates::{Authority, CertificateError, Identity, RENEWED_AFTER};
use crate::tls::config;
use crate::tls::listener::ServerConfigs;

/// Why there are no certificates.
#[derive(Debug, thiserror::Error)]
pub(super) enum CredentialsError {
    #[error(transparent)]
    Certificate(#[from] CertificateError),
    #[error("cannot serve with a certificate: {0}")]
    Tls(#[from] rustls::Error),
}

/// The certificates of the leader.
#[derive(Debug)]
pub(super) struct LeaderCredentials {
    /// The server for backup tools.
    server: Arc<ServerConfig>,
    /// What the leader shows to nodes.
    pub(super) client: Identity,
    made: u64,
    authority: String,
}

impl LeaderCredentials {
    /// Makes certificates that this authority signs.
    pub(super) fn new(
        authority: &Authority,
        hosts: &[String],
        now: u64,
    ) -> Result<Self, CredentialsError> {
        Ok(LeaderCredentials {
            server: config::public_server(&authority.server(hosts, now)?)?,
            client: authority.client(now)?,
            made: now,
            authority: authority.pem().to_owned(),
        })
    }

    /// True if these can be used for a while: they are of this authority and not old. A clock that
    /// went back makes new ones.
    fn are_good(&self, authority: &str, now: u64) -> bool {
        self.authority == authority && (self.made..self.made + RENEWED_AFTER).contains(&now)
    }
}

/// The certificates at present. Clones share them.
#[derive(Clone, Debug, Default)]
pub(super) struct CurrentCredentials(Arc<RwLock<Option<Arc<LeaderCredentials>>>>);

impl CurrentCredentials {
    pub(super) fn get(&self) -> Option<Arc<LeaderCredentials>> {
        self.0.read().clone()
    }

    /// Makes new certificates if there are none or they are not good any more.
    pub(super) fn renew(
        &self,
        authority: &Authority,
        hosts: &[String],
        now: u64,
    ) -> Result<(), CredentialsError> {
        let are_good = self
            .get()
            .is_some_and(|present| present.are_good(authority.pem(), now));
        if !are_good {
            let new = LeaderCredentials::new(authority, hosts, now)?;
            *self.0.write() = Some(Arc::new(new));
            tracing::info!("made new certificates for the service of changed blocks");
        }
        Ok(())
    }
}

impl ServerConfigs for CurrentCredentials {
    const ARE_CLIENTS_KNOWN: bool = false;

    async fn current(&self) -> Option<Arc<ServerConfig>> {
        Some(self.get()?.server.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn certificates_are_renewed_in_time() {
        const NOW: u64 = 1_800_000_000;
        let (ours, other) = (Authority::new(NOW).unwrap(), Authority::new(NOW).unwrap());
        let current = CurrentCredentials::default();
        assert!(current.get().is_none());
        let hosts = ["s.ns.svc".to_owned()];
        let mut last = None;
        for (authority, now, renewed) in [
            (&ours, NOW, true),
            (&ours, NOW + RENEWED_AFTER - 1, false),
            (&ours, NOW + RENEWED_AFTER, true),
            (&ours, NOW + RENEWED_AFTER + 1, false),
            (&other, NOW + RENEWED_AFTER + 2, true),
            (&other, NOW, true),
        ] {
            current.renew(authority, &hosts, now).unwrap();
            let print = current.get().map(|one| one.client.fingerprint());
            assert_eq!(print != last, renewed, "{now}");
            last = print;
        }
    }
}
