//! The orchestrator's beliefs: its volumes and snapshots, their targets, and their data. It sends
//! each [`Step`] to a driver, records the answer, and checks the driver against it. After a
//! restart, everything that was ever answered OK must exist completely.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use tonic::{Code, Status};

use crate::PATIENCE;
use crate::client::Csi;
use crate::data::{self, Checksum};
use crate::driver::Driver;
use crate::pools::MIB;
use crate::steps::{Access, Name, Origin, Parameters, Spec, Step};

mod calls;
mod settings;

/// The target at which [`World::verify`] publishes an unpublished volume.
const VERIFY: Name = "verify";

/// The orchestrator's beliefs.
#[derive(Clone, Debug)]
pub struct World {
    kubelet: PathBuf,
    volumes: BTreeMap<Name, Volume>,
    snapshots: BTreeMap<Name, Snapshot>,
    groups: BTreeMap<Name, Group>,
    writes: u64,
}

#[derive(Clone, Debug)]
struct Volume {
    id: String,
    spec: Spec,
    inline: bool,
    staged: bool,
    /// Target → read-only.
    targets: BTreeMap<Name, bool>,
    data: Option<Checksum>,
    /// The parameters that ControllerModifyVolume has accepted.
    modified: Parameters,
}

impl Volume {
    /// A new volume, not used yet.
    fn new(id: String, spec: Spec) -> Volume {
        Volume {
            id,
            spec,
            inline: false,
            staged: false,
            targets: BTreeMap::new(),
            data: None,
            modified: &[],
        }
    }
}

#[derive(Clone, Debug)]
struct Snapshot {
    id: String,
    spec: Spec,
    data: Option<Checksum>,
}

#[derive(Clone, Debug)]
struct Group {
    id: String,
    /// In the order of the source volumes.
    snapshots: Vec<Snapshot>,
}

impl World {
    /// An empty world. Kubelet's paths are created beneath this directory.
    pub fn new(kubelet: PathBuf) -> World {
        World {
            kubelet,
            volumes: BTreeMap::new(),
            snapshots: BTreeMap::new(),
            groups: BTreeMap::new(),
            writes: 0,
        }
    }

    pub fn staging(&self, volume: Name) -> PathBuf {
        self.kubelet
            .join("plugins")
            .join(volume)
            .join("globalmount")
    }

    pub fn target(&self, volume: Name, target: Name) -> PathBuf {
        self.kubelet
            .join("pods")
            .join(target)
            .join(volume)
            .join("mount")
    }

    pub fn id(&self, volume: Name) -> &str {
        &self.volume(volume).id
    }

    pub fn snapshot_id(&self, snapshot: Name) -> &str {
        &self.snapshots[snapshot].id
    }

    /// The IDs of a group and of its snapshots.
    pub fn group_ids(&self, group: Name) -> (&str, Vec<String>) {
        let group = &self.groups[group];
        let snapshots = group.snapshots.iter().map(|s| s.id.clone());
        (&group.id, snapshots.collect())
    }

    fn volume(&self, name: Name) -> &Volume {
        self.volumes
            .get(name)
            .unwrap_or_else(|| panic!("the test has made no volume {name}"))
    }

    fn volume_mut(&mut self, name: Name) -> &mut Volume {
        self.volumes
            .get_mut(name)
            .unwrap_or_else(|| panic!("the test has made no volume {name}"))
    }

    /// Runs one step. A step that is answered OK is believed from then on.
    pub async fn apply(&mut self, driver: &Driver, csi: &Csi, step: Step) -> Result<(), Status> {
        match step {
            Step::Create { volume, spec, from } => self.create(csi, volume, spec, from).await,
            Step::Attach(volume) => self.attach(csi, volume).await,
            Step::Stage(volume) => self.stage(csi, volume).await,
            Step::Publish {
                volume,
                target,
                read_only,
            } => self.publish(csi, volume, target, read_only).await,
            Step::Inline {
                volume,
                target,
                mib,
            } => self.inline(csi, volume, target, mib).await,
            Step::Write(volume) => {
                self.write(driver, volume);
                Ok(())
            }
            Step::Expand { volume, mib } => self.expand(csi, volume, mib).await,
            Step::Modify { volume, parameters } => self.modify(csi, volume, parameters).await,
            Step::Snapshot { snapshot, volume } => self.snapshot(csi, snapshot, volume).await,
            Step::Group { group, volumes } => self.group(csi, group, volumes).await,
            Step::Unpublish { volume, target } => self.unpublish(csi, volume, target).await,
            Step::Unstage(volume) => self.unstage(csi, volume).await,
            Step::Detach(volume) => self.detach(csi, volume).await,
            Step::DeleteSnapshot(snapshot) => self.delete_snapshot(csi, snapshot).await,
            Step::DeleteGroup(group) => self.delete_group(csi, group).await,
            Step::Delete(volume) => self.delete(csi, volume).await,
        }
    }

    /// Repeats a step until it succeeds, as an orchestrator does. Answers that no retry can change
    /// fail the test.
    pub async fn insist(&mut self, driver: &Driver, csi: &Csi, step: Step) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let Err(status) = self.apply(driver, csi, step).await else {
                return;
            };
            let may_change = matches!(
                status.code(),
                Code::Aborted
                    | Code::Unavailable
                    | Code::DeadlineExceeded
                    | Code::ResourceExhausted
                    | Code::FailedPrecondition
            );
            assert!(may_change, "{step:?}: {status:?}");
            assert!(
                Instant::now() < deadline,
                "{step:?} never succeeds: {status:?}"
            );
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// [`World::insist`] for each step.
    pub async fn insist_all(&mut self, driver: &Driver, csi: &Csi, steps: &[Step]) {
        for step in steps {
            self.insist(driver, csi, *step).await;
        }
    }

    /// Restores every mount that is believed to exist, except for the volumes in `but`. A kubelet
    /// does the same on a node that has lost its mounts.
    pub async fn restore(&mut self, driver: &Driver, csi: &Csi, but: &[Name]) {
        let volumes: Vec<_> = self.volumes.clone().into_iter().collect();
        for (name, volume) in volumes.iter().filter(|(name, _)| !but.contains(name)) {
            if volume.staged {
                self.insist(driver, csi, Step::Stage(name)).await;
            }
            for (target, read_only) in &volume.targets {
                let step = if volume.inline {
                    Step::Inline {
                        volume: name,
                        target,
                        mib: volume.spec.mib,
                    }
                } else {
                    Step::Publish {
                        volume: name,
                        target,
                        read_only: *read_only,
                    }
                };
                self.insist(driver, csi, step).await;
            }
        }
    }

    /// Checks all beliefs: the lists, every volume's data, every snapshot's data (restored into a
    /// new volume), and that every filesystem accepts writes.
    pub async fn verify(&mut self, driver: &Driver, csi: &Csi) {
        self.verify_lists(csi).await;
        let names: Vec<_> = self.volumes.keys().copied().collect();
        for name in names {
            self.verify_volume(driver, csi, name).await;
        }
        let snapshots = self.snapshots.iter();
        let mut origins: Vec<_> = snapshots
            .map(|(name, snapshot)| (Origin::Snapshot(name), snapshot.spec))
            .collect();
        for (name, group) in &self.groups {
            let members = group.snapshots.iter().enumerate();
            origins.extend(members.map(|(i, member)| (Origin::Member(name, i), member.spec)));
        }
        for (origin, spec) in origins {
            let create = Step::Create {
                volume: "restored",
                spec,
                from: Some(origin),
            };
            self.insist(driver, csi, create).await;
            self.verify_volume(driver, csi, "restored").await;
            self.remove_volume(driver, csi, "restored").await;
        }
    }

    /// Checks that the lists contain exactly the created objects.
    pub async fn verify_lists(&self, csi: &Csi) {
        let assert_same = |what: &str, mut listed: Vec<String>, mut believed: Vec<String>| {
            listed.sort();
            believed.sort();
            assert_eq!(listed, believed, "the {what} listed are not those made");
        };
        // Inline volumes are listed by kubelet's volume handles.
        let volumes = self.volumes.values().map(|v| v.id.clone());
        assert_same("volumes", csi.volume_ids().await, volumes.collect());
        let members = self.groups.values().flat_map(|group| &group.snapshots);
        let snapshots = self.snapshots.values().chain(members).map(|s| s.id.clone());
        assert_same("snapshots", csi.snapshot_ids().await, snapshots.collect());
    }

    async fn verify_volume(&mut self, driver: &Driver, csi: &Csi, name: Name) {
        if !self.volume(name).inline && !self.volume(name).targets.values().any(|ro| !ro) {
            let publish = Step::Publish {
                volume: name,
                target: VERIFY,
                read_only: false,
            };
            self.insist_all(
                driver,
                csi,
                &[Step::Attach(name), Step::Stage(name), publish],
            )
            .await;
        }
        if let Some(expected) = self.volume(name).data {
            let there = data::read(&self.data_path(driver, name));
            assert_eq!(
                there, expected,
                "volume {name} does not hold what was written"
            );
        }
        self.verify_size(driver, name);
        self.verify_settings(driver, name);
        // A filesystem that is still frozen, or has turned read-only, accepts no write.
        self.write(driver, name);
    }

    /// Checks that the volume has the requested parameters.
    fn verify_settings(&self, driver: &Driver, name: Name) {
        let volume = self.volume(name);
        let made = volume.spec.parameters.iter();
        let modified = |key: &str| volume.modified.iter().any(|(k, _)| *k == key);
        let made = made.filter(|(key, _)| !modified(key));
        let parameters: Vec<_> = made.chain(volume.modified).copied().collect();
        if let (Access::Fs(_), Some(target)) = (volume.spec.access, volume.targets.keys().next()) {
            let target = self.target(name, target);
            settings::check(driver, &target, &parameters, volume.spec.mib);
        }
    }

    /// The visible size is the requested size, minus the filesystem's own metadata.
    fn verify_size(&self, driver: &Driver, name: Name) {
        let asked = self.volume(name).spec.mib * MIB;
        let path = self.data_path(driver, name);
        let (seen, least) = match self.volume(name).spec.access {
            Access::Block => (data::size(&path), asked),
            Access::Fs(_) => {
                let dir = path.parent().expect("data is in a directory");
                let stat = nix::sys::statvfs::statvfs(dir).expect("the volume is mounted");
                (stat.blocks() * stat.fragment_size(), asked / 10 * 7)
            }
        };
        assert!(seen >= least, "volume {name} shows {seen} bytes of {asked}");
    }

    /// Deletes everything, as an orchestrator does.
    pub async fn tear_down(&mut self, driver: &Driver, csi: &Csi) {
        for group in self.groups.clone().into_keys() {
            self.insist(driver, csi, Step::DeleteGroup(group)).await;
        }
        for snapshot in self.snapshots.clone().into_keys() {
            self.insist(driver, csi, Step::DeleteSnapshot(snapshot))
                .await;
        }
        for volume in self.volumes.clone().into_keys() {
            self.remove_volume(driver, csi, volume).await;
        }
        assert_eq!(
            csi.volume_ids().await,
            Vec::<String>::new(),
            "volumes after everything"
        );
        assert_eq!(
            csi.snapshot_ids().await,
            Vec::<String>::new(),
            "snapshots after everything"
        );
    }

    async fn remove_volume(&mut self, driver: &Driver, csi: &Csi, name: Name) {
        let volume = self.volume(name).clone();
        for target in volume.targets.into_keys() {
            self.insist(
                driver,
                csi,
                Step::Unpublish {
                    volume: name,
                    target,
                },
            )
            .await;
        }
        if !volume.inline {
            for step in [Step::Unstage(name), Step::Detach(name), Step::Delete(name)] {
                self.insist(driver, csi, step).await;
            }
        }
    }

    fn write(&mut self, driver: &Driver, name: Name) {
        self.writes += 1;
        let sum = data::write(&self.data_path(driver, name), self.writes);
        self.volume_mut(name).data = Some(sum);
    }

    /// The path of a volume's data: a file in it, or the device itself.
    fn data_path(&self, driver: &Driver, name: Name) -> PathBuf {
        let volume = self.volume(name);
        let writable = volume.targets.iter().find(|(_, read_only)| !**read_only);
        let (target, _) = writable.unwrap_or_else(|| panic!("{name} is published nowhere"));
        let path = driver.view(&self.target(name, target));
        match volume.spec.access {
            Access::Fs(_) => path.join("data"),
            Access::Block => path,
        }
    }
}
