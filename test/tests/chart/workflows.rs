//! Workflows, those of this repository and the examples, run the actions that were looked at. That
//! of a release publishes the chart, and the pages agree whether there is a release.

use hostloop_test::child;
use hostloop_test::machine::{root, script, text};
use hostloop_test::scratch::Scratch;
use serde_json::Value;

/// The name and the commit of an action of others, in a line such as `- uses: NAME@COMMIT # VERSION`.
fn action_of_others(line: &str) -> Option<(&str, &str)> {
    let (_, action) = line.split_once("uses: ")?;
    let (name, version) = action.split_once('@')?;
    let commit = version.split(' ').next().unwrap_or_default();
    (name != "OWNER/hostloop").then_some((name, commit))
}

/// The owner of an action can move a tag to other code, but not a commit.
#[test]
fn actions_are_named_by_their_commits() {
    let mut names = Vec::new();
    for folder in [".github/workflows", "docs/ci-examples"] {
        for file in std::fs::read_dir(root().join(folder)).expect("there are workflows") {
            let path = file.expect("an entry").path();
            let text = std::fs::read_to_string(&path).expect("it is text");
            for (name, commit) in text.lines().filter_map(action_of_others) {
                let is_commit = commit.len() == 40 && commit.bytes().all(|c| c.is_ascii_hexdigit());
                assert!(is_commit, "{}: {name}@{commit}", path.display());
                names.push(name.to_owned());
            }
        }
    }
    assert!(names.iter().any(|name| name == "actions/checkout"));
}

/// The commands of a step of the workflow that publishes a release.
fn publishing(name: &str) -> String {
    let text = std::fs::read_to_string(root().join(".github/workflows/release.yml"));
    let workflow: Value = serde_saphyr::from_str(&text.expect("it is there")).expect("it is YAML");
    let steps = workflow["jobs"]["publish"]["steps"].as_array();
    let steps = steps.expect("the job has steps");
    let step = steps.iter().find(|step| step["name"] == name);
    let step = step.unwrap_or_else(|| panic!("no step has the name {name}"));
    step["run"].as_str().expect("it has commands").to_owned()
}

/// The chart is beside the image in the registry, as a name of its own.
#[test]
fn the_chart_is_pushed_to_the_registry_of_the_image() {
    let scratch = Scratch::new();
    let bin = scratch.dir("bin");
    let log = scratch.path().join("log");
    let helm = "#!/bin/sh\necho \"$*\" >>LOG\n[ \"$1\" != registry ] || cat >/dev/null\n";
    script(&bin.join("helm"), &helm.replace("LOG", text(&log)));
    let out = child::command("bash")
        .args(["-euo", "pipefail", "-c", &publishing("Publish the chart")])
        .env("PATH", format!("{}:/usr/bin:/bin", text(&bin)))
        .env("GITHUB_REF_NAME", "v1.2.3")
        .env("IMAGE_REPOSITORY", "registry.example.com/team/hostloop")
        .env("USER", "ann")
        .env("PASSWORD", "secret")
        .output()
        .expect("bash runs");
    assert!(out.status.success(), "{out:?}");
    let said = std::fs::read_to_string(log).expect("helm was called");
    let lines: Vec<&str> = said.lines().collect();
    let expected = [
        "registry login registry.example.com --username ann --password-stdin",
        "push files/hostloop-1.2.3.tgz oci://registry.example.com/team/charts",
    ];
    assert_eq!(lines, expected);
}

/// What each page says as long as no version is published.
const UNPUBLISHED: [(&str, &str); 4] = [
    (
        "CHANGELOG.md",
        "Neither files nor images of them have been published",
    ),
    ("README.md", "No version's files are published yet"),
    ("docs/start.md", "No version's files are published yet"),
    (
        "deploy/README.md",
        "once a version's files are published. None are yet",
    ),
];

/// The first release takes the sentence out of each page.
#[test]
fn the_pages_agree_whether_there_is_a_release() {
    let says = UNPUBLISHED.map(|(page, words)| {
        let text = std::fs::read_to_string(root().join(page)).expect("the page is there");
        let text: Vec<&str> = text.split_whitespace().collect();
        (page, text.join(" ").contains(words))
    });
    let (_, first) = says[0];
    assert!(says.iter().all(|(_, said)| *said == first), "{says:?}");
}
