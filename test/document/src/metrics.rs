//! A table of metrics, from what a process shows of them.

use crate::table;

/// A metric in a text.
#[derive(Default)]
struct Metric<'t> {
    name: &'t str,
    help: &'t str,
    kind: &'t str,
    /// The names of the labels of its first sample.
    labels: Option<Vec<&'t str>>,
}

/// The table of the metrics in an OpenMetrics text, in its order. Panics if a metric has no sample,
/// because samples show the labels.
pub fn metrics_table(text: &str) -> String {
    let mut metrics: Vec<Metric<'_>> = Vec::new();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').unwrap_or((rest, ""));
            metrics.push(Metric {
                name,
                help,
                ..Metric::default()
            });
        } else if let Some(last) = metrics.last_mut() {
            match line.strip_prefix("# TYPE ") {
                Some(rest) => last.kind = rest.split_once(' ').map_or("", |(_, kind)| kind),
                None if line.starts_with('#') => {}
                None => {
                    last.labels.get_or_insert_with(|| labels(line));
                }
            }
        }
    }
    let rows: Vec<[String; 4]> = metrics.iter().map(row).collect();
    table(["Metric", "Type", "Labels", "Meaning"], &rows)
}

fn row(metric: &Metric<'_>) -> [String; 4] {
    let Metric {
        name,
        help,
        kind,
        labels,
    } = metric;
    let labels = labels
        .as_ref()
        .unwrap_or_else(|| panic!("{name} has no sample, so its labels are not known"));
    // Queries name a counter with this suffix.
    let suffix = if *kind == "counter" { "_total" } else { "" };
    let labels: Vec<String> = labels.iter().map(|label| format!("`{label}`")).collect();
    [
        format!("`{name}{suffix}`"),
        (*kind).to_owned(),
        labels.join(", "),
        help.trim_end_matches('.').to_owned(),
    ]
}

/// The names of the labels of a sample, but for the bounds of a histogram.
fn labels(sample: &str) -> Vec<&str> {
    let Some((_, rest)) = sample.split_once('{') else {
        return Vec::new();
    };
    let (inner, _) = rest.rsplit_once('}').unwrap_or((rest, ""));
    inner
        .split("\",")
        .filter_map(|pair| pair.split_once("=\""))
        .map(|(name, _)| name)
        .filter(|name| *name != "le")
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_types_and_labels() {
        let text = "# HELP calls Answered calls.\n# TYPE calls counter\n\
                    calls_total{verb=\"get\",kind=\"Pod\"} 1\ncalls_total{verb=\"list\"} 1\n\
                    # HELP time_seconds Time.\n# TYPE time_seconds histogram\n# UNIT time_seconds seconds\n\
                    time_seconds_sum{name=\"a\"} 0.5\ntime_seconds_bucket{le=\"1.0\",name=\"a\"} 1\n\
                    # HELP depth Keys that wait.\n# TYPE depth gauge\ndepth 3\n# EOF\n";
        assert_eq!(
            metrics_table(text),
            "| Metric | Type | Labels | Meaning |\n|---|---|---|---|\n\
             | `calls_total` | counter | `verb`, `kind` | Answered calls |\n\
             | `time_seconds` | histogram | `name` | Time |\n\
             | `depth` | gauge | | Keys that wait |\n"
        );
    }

    #[test]
    #[should_panic(expected = "depth has no sample")]
    fn a_metric_without_a_sample_is_refused() {
        metrics_table("# HELP depth Keys.\n# TYPE depth gauge\n# EOF\n");
    }
}
