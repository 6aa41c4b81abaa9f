//! Checks the records of volumes and snapshots against their images and the kernel.

use std::mem::discriminant;

use super::{ReportedProblem, Subject};
use crate::diagnose::volume::{ImageState, image_problem, shut_down_problem, volume_problems};
use crate::diagnose::{VolumeIdentity, VolumeState};
use crate::inspect::inventory::{Contents, PoolSurvey, Survey, readable};

/// Checks every volume and snapshot with a record.
pub(super) fn check(
    survey: &Survey,
    pool: &PoolSurvey,
    contents: &Contents,
    found: &mut Vec<ReportedProblem>,
) {
    for (volume, item) in readable(&contents.volumes) {
        let identity = VolumeIdentity::of(volume, item.image.map(|image| image.file));
        let state = VolumeState::of(&survey.kernel, identity);
        let mut problems = volume_problems(volume, &ImageState::from(item.image), &state);
        if pool.shut_down.contains(&volume.id) {
            let shut_down = shut_down_problem(volume);
            problems.retain(|known| discriminant(known) != discriminant(&shut_down));
            problems.push(shut_down);
        }
        let subject = Subject::entry(pool, &item.name);
        found.extend(problems.iter().filter_map(|p| subject.report(p)));
    }
    for (snapshot, item) in readable(&contents.snapshots) {
        let problem = image_problem(&ImageState::from(item.image), snapshot.size_bytes);
        let subject = Subject::snapshot(pool, &item.name);
        found.extend(problem.and_then(|problem| subject.report(&problem)));
    }
}
