//! The problems that recovery noted in a pool.

use super::Pool;
use crate::diagnose::Problem;
use crate::storage::noted_problem::{About, NotedProblem, Until};

impl Pool {
    /// The problems that recovery noted in this pool.
    pub fn noted_problems(&self) -> Vec<NotedProblem> {
        self.noted.lock().clone()
    }

    pub(in crate::storage) fn note(&self, about: About, until: Until, problem: Problem) {
        tracing::warn!(pool = %self.name(), %about, "{}", problem.message());
        self.noted.lock().push(NotedProblem {
            pool: self.name().to_owned(),
            about,
            problem,
            until,
        });
    }

    /// Notes that recovery could not repair something, for this reason.
    pub(in crate::storage) fn note_unrepaired(
        &self,
        about: About,
        until: Until,
        why: impl Into<String>,
    ) {
        self.note(about, until, Problem::Unrepaired(why.into()));
    }

    /// Removes the noted problems of an object, because they no longer apply.
    pub(in crate::storage) fn forget(&self, about: &About) {
        self.noted.lock().retain(|noted| noted.about != *about);
    }
}
