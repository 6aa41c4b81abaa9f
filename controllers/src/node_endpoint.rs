//! Where the leader reaches a node, and how it knows that it is that node.
//!
//! Each node's process makes a key at its start. Its address and the fingerprint of its certificate are
//! in an annotation of the node's CSIStorageCapacity objects, which the admission policies keep per
//! node. So a stolen node can only take the place of itself.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use crate::tls::certificates::{CertificateError, Fingerprint, Identity};

/// The annotation of a CSIStorageCapacity with the node's endpoint.
pub const ANNOTATION: &str = "hostloop.csi.dev/snapshot-metadata";

/// Where a node answers, and with which certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeEndpoint {
    pub address: SocketAddr,
    pub fingerprint: Fingerprint,
}

impl fmt::Display for NodeEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.fingerprint)
    }
}

impl NodeEndpoint {
    /// Reads the annotation. A node wrote it: it must not make the leader talk to itself or to what
    /// only its own node should reach, such as a cloud's metadata.
    pub fn parse(text: &str) -> Option<Self> {
        let (address, fingerprint) = text.split_once('/')?;
        let address: SocketAddr = address.parse().ok()?;
        (address.port() != 0 && is_of_a_pod(address.ip())).then_some(NodeEndpoint {
            address,
            fingerprint: Fingerprint::parse(fingerprint)?,
        })
    }
}

/// True if a pod can have this address.
fn is_of_a_pod(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(address) => {
            !(address.is_loopback()
                || address.is_unspecified()
                || address.is_link_local()
                || address.is_broadcast()
                || address.is_multicast())
        }
        IpAddr::V6(address) => {
            !(address.is_loopback()
                || address.is_unspecified()
                || address.is_unicast_link_local()
                || address.is_multicast())
        }
    }
}

/// The endpoint of this process.
#[derive(Debug)]
pub struct OwnEndpoint {
    pub endpoint: NodeEndpoint,
    pub identity: Identity,
}

impl OwnEndpoint {
    /// Makes a new key for this process.
    pub fn new(address: SocketAddr, now: u64) -> Result<Self, CertificateError> {
        let identity = Identity::self_signed(now)?;
        let fingerprint = identity.fingerprint();
        Ok(OwnEndpoint {
            endpoint: NodeEndpoint {
                address,
                fingerprint,
            },
            identity,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints() {
        let print = "0f".repeat(32);
        for (address, taken) in [
            ("10.0.0.7:50051", true),
            ("[fd00::7]:50051", true),
            ("192.168.1.1:1", true),
            ("10.0.0.7:0", false),
            ("10.0.0.7", false),
            ("node:50051", false),
            ("127.0.0.1:50051", false),
            ("[::1]:50051", false),
            ("[::ffff:127.0.0.1]:50051", false),
            ("169.254.169.254:80", false),
            ("[::ffff:169.254.169.254]:80", false),
            ("[fe80::1]:50051", false),
            ("0.0.0.0:50051", false),
            ("224.0.0.1:50051", false),
            ("", false),
        ] {
            let text = format!("{address}/{print}");
            let found = NodeEndpoint::parse(&text);
            assert_eq!(found.map(|one| one.to_string()), taken.then_some(text));
        }
        for text in ["10.0.0.7:1", "10.0.0.7:1/", "10.0.0.7:1/0f", ""] {
            assert_eq!(NodeEndpoint::parse(text), None, "{text}");
        }
    }
}
