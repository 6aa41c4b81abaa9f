//! The queries of the alerts and of the dashboard against the program's sources. The test `helm`
//! compares them with what pods serve.

use std::path::Path;

use hostloop_test::machine::root;
use hostloop_test::queries;

/// Suffixes that Prometheus' formats add to the name of a metric.
const SUFFIXES: [&str; 5] = ["_total", "_bucket", "_count", "_sum", "_seconds"];

#[test]
fn queries_name_metrics_of_the_program() {
    let mut sources = String::new();
    for package in ["driver/src", "controllers/src"] {
        read_sources(&root().join(package), &mut sources);
    }
    let named = queries::named();
    for (metric, place) in &named {
        assert!(
            is_registered(&sources, metric),
            "{place}: the program has no metric {metric}"
        );
    }
    assert!(!is_registered(&sources, "hostloop_pool_upright"));
    assert!(!is_registered(&sources, "workqueue_depth_total_total"));
    println!("{} metrics are named", named.len());
}

/// True if the name, with or without a suffix, is a literal of the sources, or if a test expects a
/// sample of it.
fn is_registered(sources: &str, metric: &str) -> bool {
    let base = SUFFIXES
        .iter()
        .find_map(|suffix| metric.strip_suffix(suffix));
    let mut names = [Some(metric), base].into_iter().flatten();
    names.any(|name| sources.contains(&format!("\"{name}\"")))
        || sources.contains(&format!("{metric}{{"))
}

fn read_sources(folder: &Path, into: &mut String) {
    let entries = std::fs::read_dir(folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    for path in entries.map(|entry| entry.expect("a folder's entry").path()) {
        if path.is_dir() {
            read_sources(&path, into);
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            into.push_str(&std::fs::read_to_string(&path).expect("sources are text"));
        }
    }
}
