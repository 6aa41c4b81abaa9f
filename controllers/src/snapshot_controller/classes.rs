//! Classes, of snapshots and of groups: by name, and the default.

use std::sync::Arc;

use kube::ResourceExt;

use crate::runtime::Resource;

/// The class of this name, or that there is none.
pub(super) fn named<'a, C: Resource>(classes: &'a [Arc<C>], name: &str) -> Result<&'a C, String> {
    let mut classes = classes.iter().map(|class| &**class);
    let found = classes.find(|class| class.meta().name.as_deref() == Some(name));
    found.ok_or_else(|| format!("there is no {} {name}", <C as kube::Resource>::kind(&())))
}

/// The name of this driver's only class with the default annotation. The errors begin like those of
/// the upstream snapshot-controller, because people and Kubernetes' own tests search for that text.
/// `what` is upstream's word for such a class.
pub(super) fn only_default<C: Resource>(
    classes: &[Arc<C>],
    driver_of: fn(&C) -> &str,
    driver: &str,
    mark: &str,
    what: &str,
) -> Result<String, String> {
    let is_default = |class: &&C| {
        let marked = class.annotations().get(mark);
        driver_of(class) == driver && marked.is_some_and(|marked| marked == "true")
    };
    let classes = classes.iter().map(|class| &**class);
    let defaults: Vec<_> = classes.filter(is_default).collect();
    let kind = <C as kube::Resource>::kind(&());
    match defaults[..] {
        [class] => Ok(class.name_any()),
        [] => Err(format!(
            "cannot find default {what} of driver {driver}: name a {kind}"
        )),
        _ => Err(format!(
            "{} default snapshot classes were found of driver {driver}: name a {kind}",
            defaults.len()
        )),
    }
}
