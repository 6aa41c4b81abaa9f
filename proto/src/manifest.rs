//! Keys in the manifest of GetPluginInfo. With them the driver tells its controllers about features
//! that have no field in CSI. Other callers ignore them.

/// The class parameter that allows a filesystem from the bytes of a block device. A provisioner sets
/// it if the source carries an administrator's permission.
pub const MODE_CHANGE_PARAMETER: &str = "hostloop.csi.dev/volume-mode-change-parameter";
