//! What of a kind is watched.

use kube::runtime::watcher;

use crate::runtime::Resource;

/// How much is watched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Width {
    /// Everything, of kinds that labels would narrow.
    #[default]
    Whole,
    /// What labels say is one node's.
    Narrow,
}

/// What the server is asked for, of one kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selector {
    label: Option<(&'static str, String)>,
    field: Option<(&'static str, String)>,
}

impl Selector {
    /// Everything.
    pub fn all() -> Self {
        Selector::default()
    }

    /// What has a label of this value.
    pub fn label(key: &'static str, value: String) -> Self {
        Selector {
            label: Some((key, value)),
            field: None,
        }
    }

    /// What has this value in a field the server selects by.
    pub fn field(path: &'static str, value: String) -> Self {
        Selector {
            label: None,
            field: Some((path, value)),
        }
    }

    /// Whether it is everything.
    pub fn is_all(&self) -> bool {
        *self == Selector::default()
    }

    /// Whether it shows an object, as far as labels tell: nothing that is written here changes a
    /// field that is selected by.
    pub fn shows<K: Resource>(&self, object: &K) -> bool {
        self.label.as_ref().is_none_or(|(key, value)| {
            let labels = object.meta().labels.as_ref();
            labels.and_then(|labels| labels.get(*key)) == Some(value)
        })
    }

    pub(super) fn config(&self) -> watcher::Config {
        let config = super::config();
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

/// What is asked for at each width.
#[derive(Clone, Debug, Default)]
pub struct Selectors {
    /// At [`Width::Whole`].
    pub whole: Selector,
    /// At [`Width::Narrow`].
    pub narrow: Selector,
}

impl Selectors {
    /// By a label, unless the watch is wide.
    pub fn by_label(key: &'static str, value: String) -> Self {
        Selectors {
            whole: Selector::all(),
            narrow: Selector::label(key, value),
        }
    }

    /// By a field, which needs nobody to write it: so it is never wide.
    pub fn by_field(path: &'static str, value: String) -> Self {
        let selector = Selector::field(path, value);
        Selectors {
            whole: selector.clone(),
            narrow: selector,
        }
    }

    /// What is asked for at a width.
    pub fn at(&self, width: Width) -> &Selector {
        match width {
            Width::Whole => &self.whole,
            Width::Narrow => &self.narrow,
        }
    }
}
