//! Fits the objects to an older API server.

use std::fmt;

use k8s_openapi::apimachinery::pkg::version::Info;
use serde_json::Value;

use super::ObjectKey;

/// A version of Kubernetes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::kubectl) struct Version {
    pub(in crate::kubectl) major: u32,
    pub(in crate::kubectl) minor: u32,
}

impl Version {
    /// The oldest version that has all that hostloop needs: admission policies, and the node's name
    /// in the tokens of its pods.
    pub(in crate::kubectl) const OLDEST: Version = Version { major: 1, minor: 30 };

    /// The server's version. Some providers add a sign, as in `34+`.
    pub(in crate::kubectl) fn of(info: &Info) -> Option<Version> {
        let number = |text: &str| text.trim_end_matches(|c: char| !c.is_ascii_digit()).parse().ok();
        Some(Version { major: number(&info.major)?, minor: number(&info.minor)? })
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// Kinds that hostloop works without.
const OPTIONAL: [&str; 2] = ["VolumeAttributesClass", "FlowSchema"];

/// Fields that an older server rejects: the kind, where the field is, its name, and the first
/// version that has it.
const NEW_FIELDS: [(&str, &str, &str, Version); 1] =
    [("CSIDriver", "/spec", "nodeAllocatableUpdatePeriodSeconds", Version { major: 1, minor: 33 })];

/// The objects that a server takes, and what is left out of them.
pub(in crate::kubectl) struct Fitted {
    pub(in crate::kubectl) objects: Vec<Value>,
    /// A line for each thing that is left out.
    pub(in crate::kubectl) left_out: Vec<String>,
}

/// Leaves out optional objects of a kind that is not served, and fields that are too new.
pub(in crate::kubectl) fn fit(
    objects: Vec<Value>,
    version: Version,
    is_served: impl Fn(&ObjectKey) -> bool,
) -> Fitted {
    let mut fitted = Fitted { objects: Vec::new(), left_out: Vec::new() };
    for mut object in objects {
        let key = ObjectKey::of(&object);
        if OPTIONAL.contains(&key.kind.as_str()) && !is_served(&key) {
            fitted.left_out.push(format!("{key}: the server has no {} {}", key.version, key.kind));
            continue;
        }
        for (kind, place, name, since) in NEW_FIELDS {
            if key.kind == kind
                && version < since
                && let Some(fields) = object.pointer_mut(place).and_then(Value::as_object_mut)
                && fields.remove(name).is_some()
            {
                fitted.left_out.push(format!("{name} of {key}: Kubernetes {since} and newer"));
            }
        }
        fitted.objects.push(object);
    }
    fitted
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kubectl::manifests::base;

    #[test]
    fn versions() {
        for (major, minor, version) in [
            ("1", "34", Some("1.34")),
            ("1", "33+", Some("1.33")),
            ("", "", None),
            ("1", "x", None),
        ] {
            let (major, minor) = (major.to_owned(), minor.to_owned());
            let info = Info { major, minor, ..Info::default() };
            let got = Version::of(&info).map(|version| version.to_string());
            assert_eq!(got.as_deref(), version);
        }
        let older = Version { major: 1, minor: 9 };
        assert!(older < Version::OLDEST);
    }

    #[test]
    fn an_older_server_gets_less() {
        for (minor, serves_classes, left_out) in [
            (36, true, vec![]),
            (33, false, vec!["VolumeAttributesClass"; 3]),
            (32, true, vec!["nodeAllocatableUpdatePeriodSeconds of CSIDriver"]),
        ] {
            let all = base();
            let fitted = fit(all.clone(), Version { major: 1, minor }, |key| {
                serves_classes || key.kind != "VolumeAttributesClass"
            });
            assert_eq!(fitted.left_out.len(), left_out.len(), "{minor}: {:?}", fitted.left_out);
            for (line, words) in fitted.left_out.iter().zip(&left_out) {
                assert!(line.starts_with(words), "{minor}: {line}");
            }
            let missing = if serves_classes { 0 } else { left_out.len() };
            assert_eq!(fitted.objects.len() + missing, all.len(), "{minor}");
        }
    }
}
