//! The controller's calls about volumes in use, on the machine's own kernel: what they change in
//! loop devices and mounts, and what the health calls see there. Needs root, loop devices and the
//! tools of all three filesystems.

mod in_use;
