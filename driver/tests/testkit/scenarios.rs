//! Scenarios of the node service that every kernel must pass, the fake and Linux. Files beneath a
//! mount are written and read on Linux only: the fake mounts nothing, so the files would stay in
//! the target directory.

use std::path::Path;

use super::*;

mod block;
mod events;
mod filesystem;
mod growth;
mod inline;
mod leftovers;
mod mount_options;
mod paths;
mod requests;
mod volume_modes;

pub(crate) use block::*;
pub(crate) use events::*;
pub(crate) use filesystem::*;
pub(crate) use growth::*;
pub(crate) use inline::*;
pub(crate) use leftovers::*;
pub(crate) use mount_options::*;
pub(crate) use paths::*;
pub(crate) use requests::*;
pub(crate) use volume_modes::*;

/// Defines a test for each scenario, on the kernel of the including rig.
macro_rules! scenarios {
    ($kernel:ty: $($name:ident),+ $(,)?) => {
        $(#[test]
        fn $name() {
            $crate::testkit::scenarios::$name::<$kernel>();
        })+
    };
}
pub(crate) use scenarios;

/// Passes the names of all scenarios to a macro.
macro_rules! all_scenarios {
    ($kernel:ty) => {
        $crate::testkit::scenarios::scenarios!($kernel:
            a_block_volume_lives,
            a_read_only_block_volume_is_a_device_of_its_own,
            other_loop_devices_over_a_block_volume_keep_it_staged,
            no_volume_comes_to_a_device_whose_node_is_bound,
            a_lost_device_is_published_again_once_it_is_back,
            a_device_number_that_another_program_took_is_never_served,
            the_steps_of_each_call_are_events,
            a_filesystem_volume_lives,
            volumes_in_use_survive_a_restart,
            a_freeze_that_a_copy_left_ends,
            lost_data_is_not_formatted,
            mounts_are_safe_unless_the_class_says_otherwise,
            a_class_that_mounts_read_only_is_published_again,
            mount_options_change_while_a_volume_is_used,
            a_publication_has_flags_of_its_own,
            filesystems_grow_online_and_offline,
            btrfs_does_not_grow_to_less_than_its_minimum,
            block_devices_grow_the_read_only_ones_too,
            an_inline_volume_lives,
            a_failed_inline_volume_leaves_nothing,
            an_inline_volume_takes_no_mount_flag,
            inline_limits_hold_for_what_the_previous_process_made,
            many_inline_volumes_at_once_are_no_more_than_allowed,
            one_namespace_has_half_of_the_inline_volumes,
            a_pod_with_an_inline_volume_leaves_while_a_pool_is_missing,
            an_inline_volume_that_can_not_be_deleted_is_deleted_later,
            an_administrator_opens_pools_to_inline_volumes,
            after_a_reboot_a_volume_is_staged_at_any_path,
            an_attached_device_is_used_and_two_are_refused,
            a_foreign_freeze_stays,
            nothing_is_formatted_that_was_not_known_to_be_blank,
            a_volume_without_record_or_image_is_undone_by_what_the_kernel_shows,
            a_pod_leaves_a_volume_with_an_unreadable_record,
            mkfs_options_of_older_records_are_not_obeyed,
            staging_takes_what_was_trimmed_or_changes_nothing,
            a_class_with_options_that_reach_other_devices_makes_nothing,
            a_volume_that_has_other_options_is_mounted_and_says_so,
            a_second_path_or_another_use_is_refused,
            other_mounts_are_not_touched,
            mounts_of_others_between_those_of_a_volume_stay,
            only_the_last_component_may_not_be_a_symlink,
            invalid_requests_name_their_field_and_have_no_effect,
            with_the_lifecycle_checked_the_controller_comes_first,
            a_read_only_attachment_is_published_read_only,
            several_pvs_share_one_staging,
            unpublish_needs_no_record_and_keeps_staging_directories,
            health_reports_what_is_missing_at_the_paths,
            mkfs_itself_takes_no_option_that_reads_a_file,
            raw_bytes_are_mounted_by_an_administrators_word_alone,
            a_filesystem_that_was_a_block_device_is_raw,
        );
    };
}
pub(crate) use all_scenarios;

/// Writes a file into a mounted directory.
fn keep<K: TestKernel>(_: &Rig<K>, dir: &Path, seed: u8) {
    if K::SHARED {
        write(&dir.join("data"), seed, 100_000);
    }
}

/// Checks that the file of [`keep`] is there.
#[track_caller]
fn assert_kept<K: TestKernel>(_: &Rig<K>, dir: &Path, seed: u8) {
    if K::SHARED {
        assert_written(&dir.join("data"), seed, 100_000);
    }
}

/// Checks that a mounted directory takes no writes.
#[track_caller]
fn assert_read_only<K: TestKernel>(rig: &Rig<K>, dir: &Path) {
    assert!(rig.kernel.usage(dir).unwrap().read_only);
    if K::SHARED {
        let refused = std::fs::write(dir.join("more"), "x").unwrap_err();
        assert_eq!(refused.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    }
}
