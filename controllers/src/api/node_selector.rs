//! Evaluates node selectors by Kubernetes' rules, also if only some labels of a node are known.

use k8s_openapi::api::core::v1::{NodeSelectorRequirement, NodeSelectorTerm};

/// The value of a node's label or field: `None` if unknown, `Some(None)` if the node lacks it.
pub(crate) type LabelValue<'a> = Option<Option<&'a str>>;

/// True if a node fits one of the terms. `None` if that depends on what is unknown.
pub(crate) fn fits<'a>(
    terms: &[NodeSelectorTerm],
    label: impl Fn(&str) -> LabelValue<'a>,
    field: impl Fn(&str) -> LabelValue<'a>,
) -> Option<bool> {
    any(terms.iter().map(|term| admits(term, &label, &field)))
}

/// A term without requirements matches no node. Any other needs all of them.
fn admits<'a>(
    term: &NodeSelectorTerm,
    label: impl Fn(&str) -> LabelValue<'a>,
    field: impl Fn(&str) -> LabelValue<'a>,
) -> Option<bool> {
    let labels = term.match_expressions.iter().flatten();
    let labels = labels.map(|one| fulfils(one, label(&one.key)));
    let fields = term.match_fields.iter().flatten();
    let fields = fields.map(|one| fulfils(one, field(&one.key)));
    let mut requirements = labels.chain(fields).peekable();
    if requirements.peek().is_none() {
        return Some(false);
    }
    any(requirements.map(|one| one.map(|met| !met))).map(|unmet| !unmet)
}

fn fulfils(requirement: &NodeSelectorRequirement, value: LabelValue<'_>) -> Option<bool> {
    let (value, values) = (value?, requirement.values.as_deref().unwrap_or_default());
    let listed = value.is_some_and(|value| values.iter().any(|one| one == value));
    match requirement.operator.as_str() {
        "In" => Some(listed),
        "NotIn" => Some(!listed),
        "Exists" => Some(value.is_some()),
        "DoesNotExist" => Some(value.is_none()),
        "Gt" => Some(compared(value, values).is_some_and(|(value, bound)| value > bound)),
        "Lt" => Some(compared(value, values).is_some_and(|(value, bound)| value < bound)),
        _ => None,
    }
}

fn compared(value: Option<&str>, values: &[String]) -> Option<(i64, i64)> {
    Some((value?.parse().ok()?, values.first()?.parse().ok()?))
}

/// True if one is true. `None` if none is true and one is unknown.
fn any(all: impl Iterator<Item = Option<bool>>) -> Option<bool> {
    let mut unknown = false;
    for one in all {
        match one {
            Some(true) => return Some(true),
            Some(false) => {}
            None => unknown = true,
        }
    }
    (!unknown).then_some(false)
}
