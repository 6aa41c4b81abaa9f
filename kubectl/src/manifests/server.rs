//! Fits the objects to an older API server.

use std::fmt;

use k8s_openapi::apimachinery::pkg::version::Info;
use serde_json::Value;

use super::{Component, ObjectKey};

/// A version of Kubernetes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Version {
    pub(crate) major: u32,
    pub(crate) minor: u32,
}

impl Version {
    /// The oldest version that has all that hostloop needs: admission policies, and the node's name
    /// in the tokens of its pods.
    pub(crate) const OLDEST: Version = Version {
        major: 1,
        minor: 30,
    };

    /// The server's version. Some providers add a sign, as in `34+`.
    pub(crate) fn of(info: &Info) -> Option<Version> {
        Some(Version {
            major: number(&info.major)?,
            minor: number(&info.minor)?,
        })
    }
}

fn number(text: &str) -> Option<u32> {
    text.trim_end_matches(|c: char| !c.is_ascii_digit())
        .parse()
        .ok()
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// The oldest version that takes all objects as they are. `components/kubernetes-1.30` says what
/// older ones do not know.
const WHOLE: Version = Version {
    major: 1,
    minor: 34,
};

/// Kinds that hostloop works without. A server may have them switched off.
const OPTIONAL: [&str; 2] = ["VolumeAttributesClass", "FlowSchema"];

/// The objects that a server takes, and what is left out of them.
pub(crate) struct Fitted {
    pub(crate) objects: Vec<Value>,
    /// A line for each thing that is left out.
    pub(crate) left_out: Vec<String>,
}

/// Leaves out what the version does not know, and optional objects of a kind that is not served.
pub(crate) fn fit(
    objects: Vec<Value>,
    version: Version,
    is_served: impl Fn(&ObjectKey) -> bool,
) -> Fitted {
    let mut fitted = Fitted {
        objects: objects.clone(),
        left_out: Vec::new(),
    };
    if version < WHOLE {
        Component::KUBERNETES_1_30.apply(&mut fitted.objects);
    }
    fitted.objects.retain(|object| {
        let key = ObjectKey::of(object);
        !OPTIONAL.contains(&key.kind.as_str()) || is_served(&key)
    });
    for before in &objects {
        let key = ObjectKey::of(before);
        match fitted
            .objects
            .iter()
            .find(|object| ObjectKey::of(object) == key)
        {
            None => {
                let line = format!("{key}: the server has no {} {}", key.version, key.kind);
                fitted.left_out.push(line);
            }
            Some(after) => {
                let fields = before["spec"]
                    .as_object()
                    .into_iter()
                    .flat_map(|spec| spec.keys());
                let gone = fields.filter(|field| after["spec"].get(field).is_none());
                fitted.left_out.extend(
                    gone.map(|field| format!("{field} of {key}: Kubernetes {WHOLE} and newer")),
                );
            }
        }
    }
    fitted
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifests::base;

    #[test]
    fn versions() {
        for (major, minor, version) in [
            ("1", "34", Some("1.34")),
            ("1", "33+", Some("1.33")),
            ("", "", None),
            ("1", "x", None),
        ] {
            let (major, minor) = (major.to_owned(), minor.to_owned());
            let info = Info {
                major,
                minor,
                ..Info::default()
            };
            let got = Version::of(&info).map(|version| version.to_string());
            assert_eq!(got.as_deref(), version);
        }
        let older = Version { major: 1, minor: 9 };
        assert!(older < Version::OLDEST);
    }

    #[test]
    fn an_older_server_gets_less() {
        let (class, field) = (
            "VolumeAttributesClass",
            "nodeAllocatableUpdatePeriodSeconds of CSID",
        );
        for (minor, serves_classes, left_out) in [
            (36, true, vec![]),
            (34, true, vec![]),
            (34, false, vec![class; 3]),
            (33, false, vec![field, class, class, class]),
            (30, false, vec![field, class, class, class]),
        ] {
            let all = base();
            let fitted = fit(all.clone(), Version { major: 1, minor }, |key| {
                serves_classes || key.kind != "VolumeAttributesClass"
            });
            let lines = &fitted.left_out;
            assert_eq!(lines.len(), left_out.len(), "{minor}: {lines:?}");
            for words in left_out {
                assert!(
                    lines.iter().any(|line| line.starts_with(words)),
                    "{minor}: {lines:?}"
                );
            }
            let missing = if serves_classes { 0 } else { 3 };
            assert_eq!(fitted.objects.len() + missing, all.len(), "{minor}");
        }
    }
}
