//! What must hold: safety after each step, and after a quiet time that everything is done, or says
//! what to do.

use std::time::Duration;

use hostloop_fake_api::FakeApi;

use crate::cluster::Cluster;
use crate::foreign::is_foreign;
use crate::shim;

mod access_modes;
mod adopted;
mod advice;
mod asked_secrets;
mod assigned;
mod attachments;
mod attributes;
mod barred;
mod begun;
mod block_bytes;
mod bound;
mod callers;
mod capacity;
mod claim_health;
mod claims;
mod content_kinds;
mod deletions;
mod departures;
mod described;
mod discards;
mod down_nodes;
mod elsewhere;
mod exclusive;
mod gone;
mod gone_capacities;
mod groups;
mod hindered;
mod images;
mod inline_refusals;
mod inline_volumes;
mod kept;
mod lacking_room;
mod late_claims;
mod leftovers;
mod lives;
mod lost;
mod made;
mod missing;
mod named_pools;
mod names_taken;
mod namespaces;
mod new_volumes;
mod objects;
mod overdue;
mod own_faults;
mod ownership;
mod pools;
mod promises;
mod published;
mod raw_members;
mod raw_snapshots;
mod records;
mod refusals;
mod remedies;
mod reserved_nodes;
mod restore_sizes;
mod secrets;
mod sent_back;
mod shared_blocks;
mod sizes;
mod snapshot_limits;
mod snapshots;
mod sources;
mod stamps;
mod starved;
mod turned_away;
mod unmarked;
mod waiting;
mod withheld;

use adopted::Adopted;
pub(crate) use advice::{Advice, AdvisedRequest, AdvisedSteps, advice};
pub(crate) use asked_secrets::watch as watch_calls;
pub(crate) use assigned::watch as watch_new_volumes;
use attributes::RightClasses;
pub(crate) use barred::watch as watch_choices;
use begun::Unbegun;
use block_bytes::BlockBytes;
use departures::Departures;
use discards::Discards;
use hindered::Hindered;
use kept::Kept;
use lives::{Lives, Present};
use lost::Lost;
use new_volumes::NewVolumes;
use objects::Objects;
use overdue::Overdue;
pub(crate) use ownership::watch as watch_writes;
use promises::Promises;
pub(crate) use published::watch as watch_capacities;
use raw_members::RawMembers;
use raw_snapshots::RawSnapshots;
use refusals::Refusals;
use restore_sizes::RestoreSizes;
pub(crate) use secrets::guard as guard_secrets;
pub(crate) use sent_back::watch as watch_returns;
pub(crate) use sizes::not_at_rest;
use stamps::StampHistories;
pub(crate) use turned_away::watch as watch_rejections;
use withheld::Withheld;

/// What the oracle remembers. A cluster does not remember what was promised.
#[derive(Default)]
pub(crate) struct Oracle {
    lives: Lives,
    snapshots: Kept,
    promises: Promises,
    adopted: Adopted,
    groups: Kept,
    raw_members: RawMembers,
    raw_snapshots: RawSnapshots,
    lost: Lost,
    hindered: Hindered,
    departures: Departures,
    block_bytes: BlockBytes,
    discards: Discards,
    refusals: Refusals,
    overdue: Overdue,
    new_volumes: NewVolumes,
    restore_sizes: RestoreSizes,
    stamps: StampHistories,
    unbegun: Unbegun,
    withheld: Withheld,
    attributes: RightClasses,
}

impl Oracle {
    /// Watches from now on what comes to its end between two looks.
    pub(crate) fn watch(&self, api: &FakeApi) {
        self.snapshots.gone.watch(api, "VolumeSnapshotContent");
        self.lives.gone.watch(api, "VolumeSnapshotContent");
        self.groups.gone.watch(api, "VolumeGroupSnapshotContent");
    }

    /// The API server will go back to a backup.
    pub(crate) fn goes_back(&mut self, cluster: &Cluster) {
        self.lost.goes_back(cluster);
    }

    /// How long calls may still go on that were under way when the API server went back.
    pub(crate) fn rest_of_echo(&self) -> Duration {
        self.lost.rest_of_echo(shim::now())
    }

    /// The API server went back to a backup. What was deleted since is not lost by this: its object
    /// is back, its data is not.
    pub(crate) fn went_back(&mut self, cluster: &Cluster) {
        ownership::went_back();
        self.lost.went_back(cluster);
        self.snapshots.went_back(&self.lost.data);
        self.groups.went_back(&self.lost.data);
        self.lives.went_back(&self.lost.data);
    }

    /// True if data may have lost its object without a user's wish: a backup does not have the
    /// object, or its node was missing.
    fn has_lost_object(&self, handle: &str) -> bool {
        self.lost.objects.contains(handle) || self.departures.has_orphaned(handle)
    }

    /// Checks what must hold at any time.
    pub(crate) fn safety(&mut self, cluster: &Cluster) {
        self.lost.note(cluster);
        self.stamps.check(cluster);
        self.departures.note(cluster);
        pools::are_guarded(cluster);
        let mut objects = cluster.api.shared("persistentvolumes");
        objects.retain(|object| !is_foreign(object));
        images::are_whole(cluster, &objects);
        self.hindered.note(&objects);
        claims::have_one_volume(&objects);
        let of_claims = cluster.api.shared("persistentvolumeclaims");
        self.refusals.note(cluster, &of_claims);
        self.discards.note(cluster, &of_claims);
        made::is_as_claimed(&objects, &of_claims);
        claim_health::has_times(&of_claims);
        self.unbegun.check(cluster, &objects, &of_claims);
        self.attributes.check(cluster, &objects, &of_claims);
        let pool = cluster.handles();
        let contents = cluster.api.shared("volumesnapshotcontents");
        self.adopted.note(&contents);
        self.restore_sizes.check(&objects, &of_claims, &contents);
        self.new_volumes.check(cluster, &objects, &of_claims);
        late_claims::check(cluster, &objects, &of_claims);
        snapshots::check(&mut self.snapshots, &contents, &pool, &self.lost.data);
        let of_groups = cluster.api.shared("volumegroupsnapshotcontents");
        groups::check(&mut self.groups, &of_groups, &pool, &self.lost.data);
        self.raw_members.check(cluster, &objects, &of_groups);
        self.raw_snapshots.note(cluster);
        self.lives.check(&Present {
            cluster,
            data: &pool,
            lost: &self.lost.data,
            volumes: &objects,
            claims: &of_claims,
        });
        exclusive::check(cluster, &objects);
        inline_volumes::are_within_limits(cluster);
        snapshot_limits::are_kept(cluster);
        named_pools::are_theirs(cluster, &objects);
        described::are_right(cluster, &objects);
        self.block_bytes.check(cluster);
        self.overdue.check(cluster);
        self.promises.check(cluster);
        self.withheld.note(cluster, &self.promises);
    }

    /// Checks after a quiet time that all is done, or says why not.
    pub(crate) fn liveness(&self, cluster: &Cluster, advice: Advice) {
        let objects = Objects::of(cluster);
        starved::check(cluster);
        own_faults::are_missing(cluster, &objects);
        callers::have_drivers(cluster);
        snapshot_limits::are_exceeded(cluster);
        self.raw_members.are_devices(cluster, &objects);
        self.raw_snapshots.check(cluster, &objects);
        down_nodes::are_down(cluster);
        claim_health::is_present(cluster, &objects);
        names_taken::are_of_others(cluster);
        reserved_nodes::make_volumes_of_tolerant_pods(cluster, &objects);
        sources::are_as_said(cluster, &objects);
        elsewhere::have_no_room(cluster, &objects);
        pools::are_open(cluster);
        pools::are_known(cluster);
        attachments::are_settled(cluster, &self.lost.data);
        records::are_named(cluster);
        images::are_known(cluster);
        secrets::are_in_no_file(cluster);
        secrets::are_in_no_event();
        namespaces::are_gone(cluster, &objects);
        self.promises.is_published(cluster);
        self.withheld.check(cluster, &self.promises);
        access_modes::are_true(cluster, &objects);
        inline_refusals::are_true(cluster, &objects);
        lacking_room::is_less_than_requested(cluster, &objects);
        self.discards.check(cluster);
        self.refusals.check(cluster, &objects, &self.hindered);
        published::name_their_pools(cluster);
        gone_capacities::are_deleted(cluster);
        bound::check(cluster, &objects, (&self.lost, &self.hindered), advice);
        waiting::check(cluster, &objects, advice);
        groups::are_done(cluster, &objects, &self.lost, advice);
        adopted::are_usable(cluster, &objects, &self.hindered);
        deletions::check(&objects, advice);
        if advice == Advice::Followed {
            deletions::check_data(cluster);
        }
    }

    /// Checks after users have deleted everything, and a quiet time, that the data goes which they
    /// did not want to keep, before an administrator deletes the rest.
    pub(crate) fn letting_go(&self, cluster: &Cluster) {
        deletions::check_data(cluster);
    }

    /// Checks after everything was deleted, and a quiet time, that nothing is left but what was to
    /// be kept.
    pub(crate) fn emptiness(&self, cluster: &Cluster) {
        leftovers::objects_are_gone(cluster);
        leftovers::nodes_are_idle(cluster);
        pools::are_known(cluster);
        pools::are_tidy(cluster);
        records::unreadable_are_deleted(self, cluster);
        let contents = cluster.contents();
        groups::are_deleted(self, &contents);
        leftovers::volumes_are_gone(self, cluster, &contents);
        leftovers::snapshots_are_gone(self, cluster, &contents);
    }
}
