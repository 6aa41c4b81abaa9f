//! A kernel in memory, for tests.
//!
//! [`Model`] keeps a loop table and a mount table and follows the rules of the real kernel, even
//! the surprising ones. The kernel detaches a busy device at its last close. An unmounted frozen
//! filesystem stays and holds its device. A clone of an XFS needs `nouuid`. A test
//! (`driver/tests/kernel/sys/conformance.rs`) runs the same script against both kernels.
//!
//! Backing files are real. mkfs writes a small mark at the start of the file, so a clone or a copy
//! of an image includes its filesystem. [`SharedBlocks`] has what a clone shares. Directories are
//! real as well, but the model does not really mount on them: what a test writes below a mount point
//! stays in the directory. In place of data, each filesystem and raw block device has a stamp, a
//! number that its users write ([`Model::write_stamp`]). A sync, a freeze and an unmount bring it
//! into the image. Loop minors begin at [`FIRST_MINOR`], where the machine has no devices. So code
//! that opens a device by its path can't touch a real one.
//!
//! [`Model::beside`] is the same kernel from another mount namespace, as a second node of kind sees it.
//!
//! A test makes calls fail with [`Model::fail`] or [`Model::hook`], and reads the calls with
//! [`Model::effects`]. Operations have the names of their effects ("loop.attach", "loop.detach",
//! "loop.grow", "loop.limit", "loop.direct-io", "loop.read-ahead", "loop.flush", "mount", "bind",
//! "remount", "unmount", "mkfs", "check", "check-whole", "grow", "mend", "trim", "freeze", "thaw",
//! "shut-down", "trigger-error"). Queries have the names of their methods ("loops", "loop_info",
//! "loop_open", "loop_size", "mounts", "probe", "ext4", "fs_size", "usage", "fs_errors").

mod model;

pub use model::{Effect, FIRST_MINOR, Model, SharedBlocks, Stamps};
