//! What each program knows of the other's command line.

use std::path::{Path, PathBuf};

/// The default name of the driver in Kubernetes.
pub const DRIVER_NAME: &str = "hostloop.csi.dev";

/// The percentage of a pool that is never promised, by default.
pub const RESERVE_PERCENT: u64 = 5;

/// The commands that only the client has. Both programs have `status` and
/// `events`: of a node, and of a cluster.
pub const CLIENT_COMMANDS: [&str; 14] = [
    "install",
    "uninstall",
    "load",
    "check",
    "describe",
    "logs",
    "fault",
    "powercut",
    "backup",
    "restore",
    "explore",
    "ui",
    "version",
    "completion",
];

/// The client's flags before a command.
pub const CLIENT_FLAGS: [&str; 8] = [
    "--kubeconfig",
    "--context",
    "--namespace",
    "-n",
    "--as",
    "--as-group",
    "--system-namespace",
    "--driver-name",
];

/// The socket for events beside the CSI socket of a driver.
pub fn events_beside(endpoint: &Path) -> PathBuf {
    endpoint.with_extension("events.sock")
}

/// A Unix socket: `unix:///path`, or the path alone.
pub fn endpoint(word: &str) -> Result<PathBuf, String> {
    let path = match word.split_once(':') {
        _ if word.starts_with('/') => word,
        Some(("unix", rest)) => rest.strip_prefix("//").unwrap_or(rest),
        Some((scheme, _)) => {
            return Err(format!(
                "{scheme}: is not served; the services act on this node alone and are reached \
                 through a Unix socket: unix:///path/csi.sock"
            ));
        }
        None => return Err("is not an endpoint such as unix:///path/csi.sock".to_owned()),
    };
    if !path.starts_with('/') {
        return Err(format!("{path:?} is not absolute: write unix:///{path}"));
    }
    Ok(PathBuf::from(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_csi_socket_has_its_own() {
        for (endpoint, events) in [
            ("/run/hostloop/csi.sock", "/run/hostloop/csi.events.sock"),
            ("/run/a.b/socket", "/run/a.b/socket.events.sock"),
        ] {
            assert_eq!(events_beside(Path::new(endpoint)), Path::new(events));
        }
    }

    #[test]
    fn endpoints() {
        for (word, path) in [
            ("unix:///run/csi.sock", "/run/csi.sock"),
            ("unix:/run/csi.sock", "/run/csi.sock"),
            ("/run/csi.sock", "/run/csi.sock"),
            ("/run/a:b", "/run/a:b"),
        ] {
            assert_eq!(endpoint(word), Ok(PathBuf::from(path)), "{word}");
        }
        for (word, reason) in [
            ("tcp://127.0.0.1:10000", "Unix socket"),
            ("unix://run/csi.sock", "unix:///run/csi.sock"),
            ("csi.sock", "not an endpoint"),
            ("", "not an endpoint"),
            ("unix://", "not absolute"),
        ] {
            let error = endpoint(word).unwrap_err();
            assert!(error.contains(reason), "{word}: {error}");
        }
    }
}
