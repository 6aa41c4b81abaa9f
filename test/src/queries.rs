//! The Prometheus queries in `deploy/alerts` and `deploy/dashboard`, and the metrics they name.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::machine::root;

/// Words of the query language that stand where a metric could.
const OPERATORS: [&str; 5] = ["and", "or", "unless", "bool", "offset"];
/// Words before a list of labels.
const LABELS: [&str; 6] = [
    "by",
    "without",
    "on",
    "ignoring",
    "group_left",
    "group_right",
];
/// Of these, those between an aggregation and its argument.
const GROUPINGS: [&str; 2] = ["by", "without"];
/// Metrics that Prometheus itself adds.
const OF_PROMETHEUS: [&str; 1] = ["up"];

/// The metrics that the queries name, each with the place of one such query.
pub fn named() -> BTreeMap<String, String> {
    let mut named = BTreeMap::new();
    for (place, query) in alerts().into_iter().chain(panels()) {
        for metric in metrics(&query) {
            if !OF_PROMETHEUS.contains(&metric.as_str()) {
                named.insert(metric, place.clone());
            }
        }
    }
    named
}

fn alerts() -> Vec<(String, String)> {
    let rules: Value = serde_saphyr::from_str(&read("deploy/alerts/rules.yaml")).expect("YAML");
    let groups = rules["groups"].as_array().expect("there are groups").iter();
    let rules = groups.flat_map(|group| group["rules"].as_array().expect("there are rules"));
    rules
        .map(|rule| (format!("alert {}", word(rule, "alert")), word(rule, "expr")))
        .collect()
}

/// The queries of the panels, and those that list the values of a variable.
fn panels() -> Vec<(String, String)> {
    let file = read("deploy/dashboard/hostloop.json");
    let dashboard: Value = serde_json::from_str(&file).expect("JSON");
    let mut queries = Vec::new();
    for panel in dashboard["panels"].as_array().expect("there are panels") {
        for target in panel["targets"].as_array().into_iter().flatten() {
            queries.push((
                format!("panel {}", word(panel, "title")),
                word(target, "expr"),
            ));
        }
    }
    for variable in dashboard["templating"]["list"]
        .as_array()
        .expect("there are variables")
    {
        let Some(query) = variable["query"]["query"].as_str() else {
            continue;
        };
        let values = query
            .strip_prefix("label_values(")
            .and_then(|rest| rest.rsplit_once(','));
        let (query, _) = values.unwrap_or_else(|| panic!("{query} lists a label's values"));
        queries.push((
            format!("variable {}", word(variable, "name")),
            query.to_owned(),
        ));
    }
    queries
}

/// The metrics in a query: all names but those of functions, operators and labels.
pub fn metrics(query: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut rest = query;
    while let Some(first) = rest.chars().next() {
        rest = match first {
            '{' => after(rest, '}'),
            '[' => after(rest, ']'),
            '"' => after(&rest[1..], '"'),
            'a'..='z' | 'A'..='Z' | '_' | ':' => {
                let (name, further) = split_name(rest);
                let further = further.trim_start();
                if LABELS.contains(&name) {
                    after(further, ')')
                } else {
                    // A function, or an aggregation with its labels in between.
                    let called =
                        further.starts_with('(') || GROUPINGS.contains(&split_name(further).0);
                    if !called && !OPERATORS.contains(&name) {
                        found.insert(name.to_owned());
                    }
                    further
                }
            }
            // A number, with its unit if it is a duration.
            '0'..='9' => split_name(rest).1,
            other => &rest[other.len_utf8()..],
        };
    }
    found
}

fn split_name(text: &str) -> (&str, &str) {
    let end = text.find(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != ':');
    text.split_at(end.unwrap_or(text.len()))
}

fn after(text: &str, end: char) -> &str {
    text.split_once(end)
        .unwrap_or_else(|| panic!("{text} has no {end}"))
        .1
}

fn word(object: &Value, field: &str) -> String {
    object[field]
        .as_str()
        .unwrap_or_else(|| panic!("{field} in {object}"))
        .to_owned()
}

fn read(file: &str) -> String {
    std::fs::read_to_string(root().join(file)).unwrap_or_else(|e| panic!("{file}: {e}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_of_queries() {
        for (query, expected) in [
            ("a_total", &["a_total"][..]),
            (
                "rate(a_total{job=~\"x\",name=\"up\"}[5m]) > 0.5",
                &["a_total"],
            ),
            (
                "sum by (le, pod) (rate(a_bucket[$__rate_interval])) or vector(0)",
                &["a_bucket"],
            ),
            ("a / on (pod) group_left (node) b", &["a", "b"]),
            (
                "count(a{x=\"y\"} == 0) or absent(c) offset 10m",
                &["a", "c"],
            ),
            ("count(count by (v) (a > 0))", &["a"]),
        ] {
            let found: Vec<_> = metrics(query).into_iter().collect();
            assert_eq!(found, expected, "{query}");
        }
    }
}
