//! Reviews of tokens and of rights: the server answers them, and stores none.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

/// The group of those who may do anything.
const MASTERS: &str = "system:masters";

/// A token that the server has issued.
struct Token {
    user: String,
    audiences: Vec<String>,
}

/// What reviews are answered from.
#[derive(Default)]
pub(super) struct Reviews {
    tokens: BTreeMap<String, Token>,
    /// User, verb, `plural.group` and namespace of each right; none on a server that allows all.
    rights: Option<BTreeSet<[String; 4]>>,
}

impl Reviews {
    pub(super) fn issue(&mut self, token: &str, user: &str, audiences: &[&str]) {
        let issued = Token {
            user: user.to_owned(),
            audiences: audiences.iter().map(|one| (*one).to_owned()).collect(),
        };
        self.tokens.insert(token.to_owned(), issued);
    }

    pub(super) fn revoke(&mut self, token: &str) {
        self.tokens.remove(token);
    }

    pub(super) fn allow(&mut self, right: [&str; 4]) {
        let rights = self.rights.get_or_insert_default();
        rights.insert(right.map(str::to_owned));
    }

    /// The status of a review; `None` if objects of the kind are stored.
    pub(super) fn status(&self, kind: &str, spec: &Value) -> Option<Value> {
        match kind {
            "TokenReview" => Some(self.token_status(spec)),
            "SubjectAccessReview" => Some(json!({"allowed": self.allows(spec)})),
            _ => None,
        }
    }

    fn token_status(&self, spec: &Value) -> Value {
        let invalid = json!({"user": {}, "error": "invalid bearer token"});
        let Some(token) = self.tokens.get(&text(&spec["token"])) else {
            return invalid;
        };
        let asked = spec["audiences"].as_array().into_iter().flatten();
        let audiences: Vec<&Value> = asked
            .filter(|one| token.audiences.iter().any(|own| **one == *own))
            .collect();
        if audiences.is_empty() {
            return invalid;
        }
        json!({"authenticated": true, "audiences": audiences,
            "user": {"username": token.user, "groups": ["system:authenticated"]}})
    }

    fn allows(&self, spec: &Value) -> bool {
        let Some(rights) = &self.rights else {
            return true;
        };
        let mut groups = spec["groups"].as_array().into_iter().flatten();
        let asked = &spec["resourceAttributes"];
        let (plural, group) = (text(&asked["resource"]), text(&asked["group"]));
        let resource = if group.is_empty() {
            plural
        } else {
            format!("{plural}.{group}")
        };
        groups.any(|group| group == MASTERS)
            || rights.contains(&[
                text(&spec["user"]),
                text(&asked["verb"]),
                resource,
                text(&asked["namespace"]),
            ])
    }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_for_their_audiences() {
        let mut reviews = Reviews::default();
        reviews.issue("t", "u", &["a", "b"]);
        reviews.issue("old", "u", &["a"]);
        reviews.revoke("old");
        for (token, audiences, expected) in [
            ("t", json!(["a"]), json!(["a"])),
            ("t", json!(["c", "b"]), json!(["b"])),
            ("t", json!(["c"]), Value::Null),
            ("old", json!(["a"]), Value::Null),
            ("unknown", json!(["a"]), Value::Null),
        ] {
            let spec = json!({"token": token, "audiences": audiences});
            let status = reviews.status("TokenReview", &spec).expect("a review");
            assert_eq!(status["audiences"], expected, "{spec}");
            let user = if expected.is_null() {
                Value::Null
            } else {
                json!("u")
            };
            assert_eq!(status["user"]["username"], user, "{spec}");
            assert_eq!(status["authenticated"] == true, !expected.is_null());
        }
        assert!(reviews.status("ConfigMap", &json!({})).is_none());
    }

    #[test]
    fn rights_are_of_a_user_in_a_namespace() {
        let spec = |user: &str, groups: Value, plural: &str, namespace: &str| {
            json!({"user": user, "groups": groups, "resourceAttributes": {
                "verb": "get", "group": "g.io", "resource": plural, "namespace": namespace}})
        };
        let none = json!([]);
        let mut reviews = Reviews::default();
        let anyone = spec("v", none.clone(), "things", "ns");
        assert!(reviews.allows(&anyone), "no rights are set");
        reviews.allow(["u", "get", "things.g.io", "ns"]);
        for (spec, allowed) in [
            (spec("u", none.clone(), "things", "ns"), true),
            (spec("u", none.clone(), "things", "other"), false),
            (spec("u", none.clone(), "thing", "ns"), false),
            (anyone, false),
            (spec("v", json!([MASTERS]), "things", "ns"), true),
        ] {
            let status = reviews.status("SubjectAccessReview", &spec);
            assert_eq!(status, Some(json!({"allowed": allowed})), "{spec}");
        }
    }
}
