//! Decides what is applied, by the person's flags and what the cluster has.

use hostloop_report::flags::DRIVER_NAME;
use serde_json::Value;

use super::shared;
use super::snapshots::{self, Definitions};
use super::survey::Survey;
use super::{Args, Error};
use crate::distribution::Distribution;
use crate::manifests::{
    self, Class, Component, DEFAULT_CLASS, Installed, ObjectKey, Pool, Settings, base_image,
    repository, usual_pools,
};

/// What is applied, and why.
#[derive(Clone, Debug, Default)]
pub(super) struct InstallPlan {
    pub(super) settings: Settings,
    pub(super) crds: Definitions,
    /// How kubelet's directory was found.
    pub(super) kubelet: String,
    /// What happens to snapshots.
    pub(super) snapshots: String,
    pub(super) warnings: Vec<String>,
}

impl InstallPlan {
    /// Decides. `None` is a cluster that nothing is known of.
    pub(super) fn decide(
        args: &Args,
        driver: &str,
        survey: Option<&Survey>,
    ) -> Result<InstallPlan, Error> {
        let installed = survey.and_then(|survey| survey.installed.as_ref());
        if let Some(release) = installed.and_then(|installed| installed.helm_release.as_ref()) {
            return Err(Error::Helm(release.clone()));
        }
        if let Some(installed) = installed {
            check_driver(driver, installed.driver_name.as_deref())?;
            check_pools(&args.pools, installed)?;
        }
        let attach = args.attach || args.shared.is_some();
        if let Some(survey) = survey
            && let Some(required) = survey.attach_required
        {
            check_attach(driver, attach, required, survey.kernels.is_some())?;
        }
        let kernels = args
            .shared
            .as_ref()
            .map(|requested| shared::decide(requested, survey))
            .transpose()?;
        let snapshots = snapshots::decide(args.snapshot_controller, survey.map(|s| &s.snapshots));
        let mut crds = snapshots.definitions;
        if args.snapshot_metadata {
            let object = manifests::metadata_crd();
            let name = ObjectKey::of(&object).name;
            let existing = survey.and_then(|survey| survey.snapshots.definitions.get(&name));
            crds.add(object, existing);
        }
        let kubelet = survey.map(|survey| survey.kubelet_dir(args.kubelet_dir.as_deref()));
        let default_class = args.default_class.or_else(|| {
            survey?
                .default_classes
                .iter()
                .find_map(|name| Class::named(name))
        });
        let mut warnings = snapshots.warnings;
        if let (Some(class), Some(survey)) = (default_class, survey) {
            warnings.extend(
                survey
                    .default_classes
                    .iter()
                    .filter(|name| *name != class.name())
                    .map(|other| further_default(other)),
            );
        }
        let settings = Settings {
            driver_name: (driver != DRIVER_NAME).then(|| driver.to_owned()),
            kubelet_dir: kubelet
                .as_ref()
                .map(|found| found.directory.clone())
                .or_else(|| args.kubelet_dir.clone()),
            pools: pools(args, survey),
            attach,
            kernels,
            faults: args.faults,
            snapshot_metadata: args.snapshot_metadata,
            snapshots: snapshots.snapshots,
            default_class,
            image: image(
                args.image.as_deref(),
                installed.and_then(|one| one.image.as_deref()),
                RELEASED,
            ),
        };
        Ok(InstallPlan {
            settings,
            crds,
            kubelet: kubelet.map(|found| found.how).unwrap_or_default(),
            snapshots: snapshots.said,
            warnings,
        })
    }

    /// All objects, definitions first.
    pub(super) fn all_objects(&self) -> Vec<Value> {
        self.crds.applied().chain(self.settings.objects()).collect()
    }
}

/// An installed pool is a promise to the volumes in it, so it stays unless the person names others.
/// The pools of a known cluster are always explicit: the next installation finds them so, and makes
/// the same DaemonSet.
fn pools(args: &Args, survey: Option<&Survey>) -> Vec<Pool> {
    match (args.pools.as_slice(), survey) {
        (
            [],
            Some(Survey {
                installed: Some(installed),
                ..
            }),
        ) => installed.pools.clone(),
        ([], Some(survey)) => usual_pools(usual_pool(survey.distribution)),
        (chosen, _) => chosen.to_vec(),
    }
}

/// The components of the distribution's overlay that set the pool.
fn usual_pool(distribution: Distribution) -> &'static [Component] {
    match distribution {
        Distribution::Kind => &[Component::IMAGE_POOL],
        Distribution::Minikube => &[Component::MINIKUBE_POOL, Component::IMAGE_POOL],
        Distribution::Talos => &[Component::TALOS_POOL],
        _ => &[],
    }
}

/// The image of a release, set when the client is built.
const RELEASED: Option<&str> = option_env!("HOSTLOOP_RELEASE_IMAGE");

/// The chosen image, or this version in the installed one's repository; `None` is the base's.
fn image(chosen: Option<&str>, installed: Option<&str>, released: Option<&str>) -> Option<String> {
    if let Some(chosen) = chosen {
        return Some(chosen.to_owned());
    }
    let own = released.map_or_else(base_image, str::to_owned);
    let tag = own.strip_prefix(repository(&own)).unwrap_or_default();
    match installed.map(repository) {
        Some(theirs) if theirs != repository(&own) => Some(format!("{theirs}{tag}")),
        _ => released.map(str::to_owned),
    }
}

/// A driver's name is a promise to its volumes. Versions without a variable for it have the usual
/// one.
fn check_driver(requested: &str, installed: Option<&str>) -> Result<(), Error> {
    let installed = installed.unwrap_or(DRIVER_NAME);
    if requested == installed {
        Ok(())
    } else {
        Err(Error::OtherName {
            installed: installed.to_owned(),
        })
    }
}

/// An apply replaces the container's `args` and leaves its `command`. Another pool in the place of
/// one that can't be read would hide its volumes.
fn check_pools(chosen: &[Pool], installed: &Installed) -> Result<(), Error> {
    if installed.has_command_arguments {
        return Err(Error::CommandHasArguments);
    }
    if !chosen.is_empty() {
        return Ok(());
    }
    let found = match (installed.unread_pools.first(), installed.pools.as_slice()) {
        (Some(pool), _) => format!("the pool {pool:?}, which can't be read"),
        (None, []) => "no pool".to_owned(),
        (None, _) => return Ok(()),
    };
    Err(Error::UnreadPools { found })
}

/// `shared`: nodes share a kernel now.
fn check_attach(driver: &str, requested: bool, installed: bool, shared: bool) -> Result<(), Error> {
    let keep = match (installed, shared) {
        (true, true) => "add --shared",
        (true, false) => "add --attach",
        (false, _) => "leave --attach and --shared out",
    };
    if requested == installed {
        Ok(())
    } else {
        Err(Error::AttachIsFixed {
            driver: driver.to_owned(),
            installed,
            keep,
        })
    }
}

fn further_default(other: &str) -> String {
    format!(
        "{other} is a default class, too, and of several Kubernetes takes the newest. To leave one: \
         kubectl annotate storageclass {other} {}-",
        DEFAULT_CLASS
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_by_choice_and_installation() {
        let base = base_image();
        let tag = base.strip_prefix(repository(&base)).unwrap();
        let theirs = format!("r.example/h{tag}");
        let old = format!("{}:0.0.1", repository(&base));
        for (chosen, installed, released, image) in [
            (None, None, None, None),
            (
                Some("x:1"),
                Some("r.example/h:0.0.1"),
                Some("pub.example/h:2"),
                Some("x:1"),
            ),
            (None, Some(old.as_str()), None, None),
            (None, Some("r.example/h:0.0.1"), None, Some(theirs.as_str())),
            (None, None, Some("pub.example/h:2"), Some("pub.example/h:2")),
            (
                None,
                Some("pub.example/h:1"),
                Some("pub.example/h:2"),
                Some("pub.example/h:2"),
            ),
            (
                None,
                Some("r.example/h:1@sha256:0"),
                Some("pub.example/h:2"),
                Some("r.example/h:2"),
            ),
        ] {
            assert_eq!(super::image(chosen, installed, released).as_deref(), image);
        }
    }

    #[test]
    fn a_drivers_name_stays() {
        for (requested, installed, names) in [
            ("hostloop.csi.dev", Some("hostloop.csi.dev"), None),
            ("hostloop.csi.dev", None, None),
            ("d", Some("d"), None),
            ("d", None, Some("--driver-name hostloop.csi.dev")),
            ("hostloop.csi.dev", Some("d"), Some("--driver-name d")),
        ] {
            let error = check_driver(requested, installed)
                .err()
                .map(|error| error.to_string());
            assert_eq!(
                error.is_some(),
                names.is_some(),
                "{requested} {installed:?}"
            );
            assert!(
                error
                    .unwrap_or_default()
                    .contains(names.unwrap_or_default())
            );
        }
    }

    #[test]
    fn attach_required_stays() {
        for (requested, installed, shared, keep) in [
            (true, true, false, None),
            (false, false, false, None),
            (true, false, false, Some("leave --attach and --shared out")),
            (false, true, false, Some("add --attach")),
            (false, true, true, Some("add --shared")),
        ] {
            let error = check_attach("d", requested, installed, shared)
                .err()
                .map(|error| error.to_string());
            assert_eq!(error.is_some(), keep.is_some());
            assert!(error.unwrap_or_default().contains(keep.unwrap_or_default()));
        }
    }
}
