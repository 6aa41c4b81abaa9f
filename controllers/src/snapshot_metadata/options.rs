//! The flags of the service.

use std::net::IpAddr;

/// Flags of the service of changed blocks.
#[derive(Clone, Debug, clap::Args)]
#[group(skip)]
#[command(next_help_heading = "Snapshot metadata")]
pub struct Options {
    /// The port of changed blocks: of the leader for backup tools, and of nodes for the leader
    #[arg(long, value_name = "PORT", default_value_t = 50051)]
    pub snapshot_metadata_port: u16,

    /// The address at which backup tools reach the leader [default: port 6443 of the Service
    /// hostloop-snapshot-metadata in the pod's namespace]
    #[arg(long, value_name = "HOST:PORT")]
    pub snapshot_metadata_address: Option<String>,

    /// This pod's address, at which the leader reaches a node; POD_IP from the environment is used
    /// too
    #[arg(long, env = "POD_IP", value_name = "IP")]
    pub pod_ip: Option<IpAddr>,
}

/// The Service of the component.
const SERVICE: &str = "hostloop-snapshot-metadata";
/// The port of that Service.
const PORT: u16 = 6443;

impl Options {
    /// The address for backup tools.
    pub fn address(&self, namespace: &str) -> String {
        let given = self.snapshot_metadata_address.clone();
        given.unwrap_or_else(|| format!("{SERVICE}.{namespace}.svc:{PORT}"))
    }
}

/// The host of an address `HOST:PORT`, as certificates name it.
pub fn host_of(address: &str) -> Option<&str> {
    let (host, port) = address.rsplit_once(':')?;
    port.parse::<u16>().ok().filter(|port| *port != 0)?;
    let bare = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'))
        .unwrap_or(host);
    let is_address = bare.parse::<IpAddr>().is_ok();
    let is_bracketed = bare.len() != host.len();
    let is_usable = if is_address {
        bare.contains(':') == is_bracketed
    } else {
        !is_bracketed && is_host_name(bare)
    };
    is_usable.then_some(bare)
}

fn is_host_name(name: &str) -> bool {
    name.len() <= 253
        && name.split('.').all(|label| {
            !label.is_empty()
                && label.len() <= 63
                && label
                    .bytes()
                    .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{options, parse};

    #[test]
    fn the_address_for_clients() {
        let usual: Options = options();
        assert_eq!(
            usual.address("ns"),
            "hostloop-snapshot-metadata.ns.svc:6443"
        );
        let given: Options = parse(&["--snapshot-metadata-address=10.0.0.1:7"]);
        assert_eq!(given.address("ns"), "10.0.0.1:7");
    }

    #[test]
    fn hosts_of_addresses() {
        for (address, host) in [
            ("s.ns.svc:6443", Some("s.ns.svc")),
            ("localhost:1", Some("localhost")),
            ("10.0.0.1:65535", Some("10.0.0.1")),
            ("[fd00::1]:6443", Some("fd00::1")),
            ("fd00::1:6443", None),
            ("[10.0.0.1]:6443", None),
            ("[s.ns.svc]:6443", None),
            ("https://s.ns.svc:6443", None),
            ("s.ns.svc", None),
            ("s.ns.svc:", None),
            ("s.ns.svc:0", None),
            ("s.ns.svc:65536", None),
            (":6443", None),
            ("s..svc:6443", None),
            ("", None),
        ] {
            assert_eq!(host_of(address), host, "{address}");
        }
    }
}
