//! Makes the name of a claim's volume from the claim's UID, and in the same way those of snapshots.

use hostloop_events::is_uid;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;

/// How the provisioner names volumes.
#[derive(Clone, Debug, clap::Args)]
#[group(skip)]
pub struct VolumeNaming {
    /// Prefix of volume names
    #[arg(
        long = "volume-name-prefix",
        id = "volume-name-prefix",
        value_name = "PREFIX",
        default_value = "pvc"
    )]
    pub prefix: String,

    /// Number of digits of the claim's UID in volume names; if negative, the whole UID with dashes
    #[arg(
        long = "volume-name-uuid-length",
        id = "volume-name-uuid-length",
        value_name = "N",
        default_value_t = -1,
        allow_negative_numbers = true
    )]
    pub uuid_length: i64,
}

impl VolumeNaming {
    /// The name of the volume of a claim with this UID.
    pub(crate) fn volume(&self, uid: &str) -> String {
        name(&self.prefix, uid, self.uuid_length)
    }

    /// The name of a claim's volume.
    pub(crate) fn volume_of(&self, claim: &PersistentVolumeClaim) -> String {
        self.volume(claim.metadata.uid.as_deref().unwrap_or_default())
    }

    /// The UID of the claim that a volume was created for, if the volume's name holds the whole
    /// UID.
    pub(crate) fn claim<'a>(&self, name: &'a str) -> Option<&'a str> {
        let uid = name.strip_prefix(&self.prefix)?.strip_prefix('-')?;
        (self.uuid_length < 0 && is_uid(uid)).then_some(uid)
    }
}

/// The name of a volume or snapshot: the prefix and the UID of the user's object. If `length` is
/// not negative, the name has only that many characters of the UID, without its dashes.
pub(crate) fn name(prefix: &str, uid: &str, length: impl TryInto<usize>) -> String {
    match length.try_into() {
        Err(_) => format!("{prefix}-{uid}"),
        Ok(length) => {
            let digits: String = uid.chars().filter(|c| *c != '-').take(length).collect();
            format!("{prefix}-{digits}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UID: &str = "0a1b2c3d-4e5f-6789-abcd-ef0123456789";

    fn naming(uuid_length: i64) -> VolumeNaming {
        VolumeNaming {
            uuid_length,
            ..crate::testing::options()
        }
    }

    #[test]
    fn names_of_volumes() {
        for (length, name) in [
            (-1, "pvc-0a1b2c3d-4e5f-6789-abcd-ef0123456789"),
            (0, "pvc-"),
            (10, "pvc-0a1b2c3d4e"),
            (99, "pvc-0a1b2c3d4e5f6789abcdef0123456789"),
        ] {
            assert_eq!(naming(length).volume(UID), name);
        }
        assert_eq!(name("s", UID, 6_i32), "s-0a1b2c");
    }

    #[test]
    fn claims_in_names() {
        for (name, length, claim) in [
            (format!("pvc-{UID}"), -1, Some(UID)),
            (format!("pvc-{UID}"), 8, None),
            (format!("other-{UID}"), -1, None),
            (UID.to_owned(), -1, None),
            (format!("pvc-{UID}0"), -1, None),
            (format!("pvc-{}", UID.to_uppercase()), -1, None),
            (format!("pvc-{}", UID.replace('-', "")), -1, None),
            ("pvc-".to_owned(), -1, None),
            ("pvc-data".to_owned(), -1, None),
            (format!("pvc-{UID}-copy"), -1, None),
        ] {
            assert_eq!(naming(length).claim(&name), claim, "{name} {length}");
        }
    }
}
