//! The text of a saved history: JSON, with a line for each step, so that a person can leave out,
//! change or add a step.

use crate::history::History;

impl History {
    /// This history as the content of a file.
    pub(crate) fn text(&self) -> serde_json::Result<String> {
        let head = History {
            steps: Vec::new(),
            ..self.clone()
        };
        let head = serde_json::to_string(&head)?;
        let steps: Result<Vec<String>, _> = self.steps.iter().map(serde_json::to_string).collect();
        // The steps are the last field.
        let begin = head.trim_end_matches("]}");
        Ok(format!("{begin}\n{}\n]}}\n", steps?.join(",\n")))
    }
}

#[cfg(test)]
mod tests {
    use crate::history::{History, World};

    #[test]
    fn a_saved_history_has_a_line_for_each_step() {
        for steps in [0, 1, 20] {
            let history = History::of(7, World::Rough, steps);
            let text = history.text().expect("a text");
            let saved: History = serde_json::from_str(&text).expect("a history");
            let [first, second] = [&history, &saved].map(|one| format!("{one:?}"));
            assert_eq!(first, second);
            assert_eq!(text.lines().count(), history.steps.len().max(1) + 2);
        }
    }
}
