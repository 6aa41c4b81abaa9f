//! Objects in YAML that the program contains.

use serde::de::DeserializeOwned;
use serde_json::Value;

/// Reads such an object, through JSON: kinds are read in that anyway, and code to read each in YAML as
/// well would be some three percent of the program.
pub(super) fn read<K: DeserializeOwned>(yaml: &str) -> K {
    let value: Value = serde_saphyr::from_str(yaml).expect("tests read each embedded file");
    serde_json::from_str(&value.to_string()).expect("tests read each embedded file")
}
