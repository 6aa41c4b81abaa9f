//! The growth of an unmounted ext4, recorded from before it begins until after its end.

use hostloop_report::hex;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A growth that is under way or was interrupted. Then only the driver can make the filesystem
/// usable again: its image must not be mounted or copied as it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GrowthIntent {
    /// The superblock from before, in hexadecimal. A process that is killed while it writes the
    /// superblock of a small ext4 leaves no other copy.
    #[serde(serialize_with = "to_hex", deserialize_with = "from_hex")]
    pub superblock: Box<[u8]>,
    /// The filesystem was checked, and found sound, before its growth began. False while the check
    /// runs.
    pub begun: bool,
}

fn to_hex<S: Serializer>(bytes: &[u8], to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(&hex(bytes))
}

fn from_hex<'de, D: Deserializer<'de>>(from: D) -> Result<Box<[u8]>, D::Error> {
    let text = String::deserialize(from)?;
    let digits = text.as_bytes().chunks(2);
    let bytes = digits.map(|pair| {
        let pair = std::str::from_utf8(pair)
            .ok()
            .filter(|pair| pair.len() == 2);
        pair.and_then(|pair| u8::from_str_radix(pair, 16).ok())
    });
    let bytes: Option<Box<[u8]>> = bytes.collect();
    bytes.ok_or_else(|| serde::de::Error::custom("superblock is not hexadecimal"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_intent_is_stored_and_read() {
        let intent = GrowthIntent {
            superblock: Box::new([0, 1, 0x9a, 0xff]),
            begun: true,
        };
        let json = serde_json::to_string(&intent).unwrap();
        assert_eq!(json, r#"{"superblock":"00019aff","begun":true}"#);
        assert_eq!(serde_json::from_str::<GrowthIntent>(&json).unwrap(), intent);
        for wrong in ["0", "0g", "é"] {
            let json = json.replace("00019aff", wrong);
            serde_json::from_str::<GrowthIntent>(&json).unwrap_err();
        }
    }
}
