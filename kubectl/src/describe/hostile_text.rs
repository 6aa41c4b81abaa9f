//! Whatever objects and reports of nodes say, `describe` and `status` control no terminal.

use hostloop_fake_api::FakeApi;
use hostloop_report::status::Report;
use hostloop_terminal::color::{BAD, GOOD, QUIET, TITLE, WARNING};
use hostloop_terminal::terminal::printed;
use serde_json::{Value, json};

use super::tests::put_report;
use super::*;
use crate::status::{TableStyle, text as status_text};
use crate::test_objects::{cluster_of, node_pod, objects};

/// Clears the screen in three ways, writes over the line, begins one, and turns text around.
const HOSTILE: &str = "\u{1b}[2J\u{9b}2J\u{1b}]0;x\u{7}\rover\nline\u{202e}txet\u{200b}";
const CLUSTER: &str = include_str!("../claim_objects/tests/cluster.yaml");
const REPORT: &str = include_str!("tests/report.yaml");

/// The paths of all texts in a value.
fn texts(value: &Value, at: &str, found: &mut Vec<String>) {
    match value {
        Value::String(_) => found.push(at.to_owned()),
        Value::Array(all) => {
            for (i, value) in all.iter().enumerate() {
                texts(value, &format!("{at}/{i}"), found);
            }
        }
        Value::Object(all) => {
            for (key, value) in all {
                let key = key.replace('~', "~0").replace('/', "~1");
                texts(value, &format!("{at}/{key}"), found);
            }
        }
        _ => {}
    }
}

fn with_hostile_text(value: &Value, path: &str) -> Value {
    let mut value = value.clone();
    let text = value.pointer_mut(path).unwrap();
    *text = format!("{}{HOSTILE}", text.as_str().unwrap()).into();
    value
}

/// True if the text was printed, in its harmless form.
#[track_caller]
fn assert_harmless(lines: &[String], about: &str) -> bool {
    let lines: Vec<String> = lines.iter().map(|line| printed(line)).collect();
    for line in &lines {
        // The sequence of the last one has that of the title in it.
        let styles = [BAD, TITLE, QUIET, GOOD, WARNING];
        let plain = styles.iter().fold(line.clone(), |line, style| {
            line.replace(&style.render().to_string(), "")
                .replace(&style.render_reset().to_string(), "")
        });
        let is_harmful =
            plain.contains(|c: char| c.is_control() || matches!(c, '\u{202e}' | '\u{200b}'));
        assert!(!is_harmful, "{about}: {plain:?}");
    }
    lines.iter().any(|line| line.contains("\\u{202e}"))
}

async fn facts(api: &FakeApi, report: &Report) -> Result<Facts, Error> {
    api.set(
        "/api/v1/namespaces/hostloop/pods",
        node_pod("hostloop-a", "n1"),
    );
    let cluster = cluster_of(api);
    let target = Target::Claim("data".to_owned());
    let mut facts = gather(&target, &cluster).await?;
    put_report(&mut facts, &cluster, report);
    Ok(facts)
}

/// What the commands print about the facts.
fn said(facts: &Facts) -> Vec<String> {
    let look = |wide: bool| TableStyle {
        width: (!wide).then_some(100),
        wide,
        no_headers: false,
        namespaces: true,
        only_objects: false,
        now_ns: facts.now_ns,
    };
    let mut lines = render::text(facts, None);
    lines.extend(render::text(facts, Some(80)));
    lines.extend(status_text(&facts.report, look(false)));
    lines.extend(status_text(&facts.report, look(true)));
    lines
}

#[tokio::test]
async fn of_any_object() {
    let all = objects(CLUSTER);
    let report: Report = serde_saphyr::from_str(REPORT).unwrap();
    let (mut tried, mut shown) = (0, 0);
    for (i, object) in all.iter().enumerate() {
        let mut paths = Vec::new();
        texts(object, "", &mut paths);
        // The server's own paths have these.
        let fixed = [
            "/apiVersion",
            "/kind",
            "/metadata/name",
            "/metadata/namespace",
        ];
        for path in paths.iter().filter(|path| !fixed.contains(&path.as_str())) {
            let api = FakeApi::with_snapshots();
            for (j, other) in all.iter().enumerate() {
                api.put(if i == j {
                    with_hostile_text(other, path)
                } else {
                    other.clone()
                });
            }
            let about = format!("{} {path}", object["kind"]);
            let lines = match facts(&api, &report).await {
                Ok(facts) => said(&facts),
                Err(error) => error.to_string().split('\n').map(str::to_owned).collect(),
            };
            tried += 1;
            shown += u32::from(assert_harmless(&lines, &about));
        }
    }
    assert!(
        tried > 50 && shown > 15,
        "{shown} of {tried} texts are shown"
    );
}

#[tokio::test]
async fn of_any_report() {
    let api = crate::claim_objects::tests::cluster_with_claim();
    let mut report: Value = serde_saphyr::from_str(REPORT).unwrap();
    report["volumes"][0]["reach"] = json!("kernel");
    report["volumes"][0]["users"] = json!([{"node": "n1", "published": true, "pins": true}]);
    let mut paths = Vec::new();
    texts(&report, "", &mut paths);
    let (mut tried, mut shown) = (0, 0);
    for path in &paths {
        // Words of a fixed set are refused.
        let Ok(report) = serde_json::from_value::<Report>(with_hostile_text(&report, path)) else {
            continue;
        };
        let lines = said(&facts(&api, &report).await.unwrap());
        tried += 1;
        shown += u32::from(assert_harmless(&lines, path));
    }
    assert!(
        tried > 25 && shown > 15,
        "{shown} of {tried} texts are shown"
    );
}
