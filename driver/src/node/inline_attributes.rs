//! The attributes of an inline volume: what pod authors may choose.

use std::collections::BTreeMap;

use crate::controller::parameters::{METADATA, POOL};
use crate::csi::validate::{Invalid, invalid};
use crate::storage;

/// Attribute: the requested size, as a Kubernetes quantity.
pub(super) const SIZE: &str = "size";

/// The attributes of an inline volume. Pod authors write them and need not be trusted with the
/// node, so class parameters are not allowed here.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Attributes {
    /// The requested size, in bytes.
    pub(super) size: Option<u64>,
    pub(super) pool: Option<String>,
}

/// Reads `volume_context`. Skips the keys that kubelet adds (the pod's name, tokens).
pub(super) fn attributes(
    context: &BTreeMap<String, String>,
) -> std::result::Result<Attributes, Invalid> {
    let mut read = Attributes::default();
    for (key, value) in context.iter().filter(|(k, _)| !k.starts_with(METADATA)) {
        match key.as_str() {
            SIZE => {
                let size = storage::config::size(value);
                read.size = Some(size.map_err(|why| invalid(field(SIZE), why.to_string()))?);
            }
            POOL => read.pool = Some(value.clone()),
            _ => {
                let why = "is not an attribute of an inline volume; use only size and pool \
                           (and fsType, beside the attributes)";
                return Err(invalid(field(key), why));
            }
        }
    }
    Ok(read)
}

/// An attribute, as errors name it.
pub(super) fn field(attribute: &str) -> String {
    format!("volume_context[{attribute:?}]")
}

/// The pool of an inline volume: the requested one, else the first. `open` lists the pools that
/// allow inline volumes.
pub(crate) fn choose_pool<'a>(
    open: &'a [String],
    requested: Option<&str>,
) -> std::result::Result<&'a str, Invalid> {
    let chosen = match requested {
        None => open.first(),
        Some(requested) => open.iter().find(|name| *name == requested),
    };
    chosen.map(String::as_str).ok_or_else(|| {
        let open = open.join(", ");
        invalid(
            field(POOL),
            format!("is not a pool that allows inline volumes; these do: {open}"),
        )
    })
}

#[cfg(test)]
mod tests;
