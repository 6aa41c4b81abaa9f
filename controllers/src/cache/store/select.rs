//! Which objects of a kind a watch selects.

use kube::runtime::watcher;

use crate::client::Resource;

/// Objects per page of a list. An unpacked object takes twenty times the memory of a stored one.
/// With the usual 500 per page, a new leader would briefly need a third more memory than it needs
/// later.
const PAGE: u32 = 100;

/// The configuration that every watch starts from.
pub(crate) fn config() -> watcher::Config {
    watcher::Config::default().page_size(PAGE)
}

/// How many objects a node's watches select.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WatchScope {
    /// All objects of the kinds that a label would narrow.
    #[default]
    Whole,
    /// Only the objects that a label assigns to the node.
    Narrow,
}

/// The label or field selector of a watch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selector {
    label: Option<(&'static str, String)>,
    field: Option<(&'static str, String)>,
}

impl Selector {
    /// Selects all objects.
    pub fn all() -> Self {
        Selector::default()
    }

    /// Selects the objects with this label value.
    pub fn label(key: &'static str, value: String) -> Self {
        Selector {
            label: Some((key, value)),
            field: None,
        }
    }

    /// Selects the objects with this value in a field that the API server supports as selector.
    pub fn field(path: &'static str, value: String) -> Self {
        Selector {
            label: None,
            field: Some((path, value)),
        }
    }

    /// True if all objects are selected.
    pub fn is_all(&self) -> bool {
        *self == Selector::default()
    }

    /// True if the label selector matches an object. Fields are not checked: no write of this
    /// process changes a field used as selector.
    pub fn shows<K: Resource>(&self, object: &K) -> bool {
        self.label.as_ref().is_none_or(|(key, value)| {
            let labels = object.meta().labels.as_ref();
            labels.and_then(|labels| labels.get(*key)) == Some(value)
        })
    }

    pub(super) fn config(&self) -> watcher::Config {
        let config = config();
        let config = match &self.label {
            Some((key, value)) => config.labels(&format!("{key}={value}")),
            None => config,
        };
        match &self.field {
            Some((path, value)) => config.fields(&format!("{path}={value}")),
            None => config,
        }
    }
}

/// The selectors for each watch scope.
#[derive(Clone, Debug, Default)]
pub struct Selectors {
    pub whole: Selector,
    pub narrow: Selector,
}

impl Selectors {
    /// Selects by label at [`WatchScope::Narrow`], and everything at [`WatchScope::Whole`].
    pub fn by_label(key: &'static str, value: String) -> Self {
        Selectors {
            whole: Selector::all(),
            narrow: Selector::label(key, value),
        }
    }

    /// Selects by field at every watch scope: unlike a label, a field is always set.
    pub fn by_field(path: &'static str, value: String) -> Self {
        let selector = Selector::field(path, value);
        Selectors {
            whole: selector.clone(),
            narrow: selector,
        }
    }

    /// Returns the selector for a watch scope.
    pub fn at(&self, watch_scope: WatchScope) -> &Selector {
        match watch_scope {
            WatchScope::Whole => &self.whole,
            WatchScope::Narrow => &self.narrow,
        }
    }
}
