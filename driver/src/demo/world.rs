//! Everything the steps act on: the driver, the connection to it, the tree of paths, and what the
//! orchestrator knows.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use hostloop_proto::csi;
use tonic::transport::Channel;
use tonic::{Response, Status};

use crate::pool::{PoolKind, PoolSpec};
use crate::survey::Survey;
use crate::sys::{FsType, Kernel};

use super::child::Driver;
use super::client::{Client, Made};
use super::error::{Error, Result};
use super::ledger::Ledger;
use super::narrator::Narrator;
use super::picture::Picture;
use super::remains::Baseline;
use super::tree::Tree;

/// The pool's name.
pub(super) const POOL: &str = "demo";

/// What the person asked for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Setup {
    /// Size of the first volume in bytes; everything else follows from it.
    pub(super) bytes: u64,
    /// Filesystem of the volumes.
    pub(super) fs: FsType,
    /// Whether this machine lets an ext4 grow while it is mounted.
    pub(super) ext4_grows: bool,
}

/// A volume the orchestrator made.
#[derive(Clone, Debug)]
pub(super) struct Volume {
    /// The driver's ID for it.
    pub(super) id: String,
    /// The name it was made by, which is the persistent volume's too.
    pub(super) pv: String,
    /// How it is used.
    pub(super) capability: csi::VolumeCapability,
    /// Its size in bytes.
    pub(super) bytes: u64,
    /// What the driver wants to be told again.
    pub(super) context: BTreeMap<String, String>,
    /// What attaching it gave.
    pub(super) publish_context: BTreeMap<String, String>,
    /// Attached to the node.
    pub(super) attached: bool,
    /// Where it is staged.
    pub(super) staging: Option<PathBuf>,
    /// Where pods have it, by pod UID.
    pub(super) targets: BTreeMap<String, PathBuf>,
}

impl Volume {
    /// As a raw block device.
    pub(super) fn is_block(&self) -> bool {
        use csi::volume_capability::AccessType;
        matches!(self.capability.access_type, Some(AccessType::Block(_)))
    }

    /// Where its (first) pod has it.
    pub(super) fn target(&self) -> Result<&PathBuf> {
        self.targets
            .values()
            .next()
            .ok_or(Error::NeverMade("a target"))
    }
}

/// Everything.
pub(super) struct World {
    /// The scratch root.
    pub(super) tree: Tree,
    /// Tells the story.
    pub(super) narrator: Narrator,
    /// The connection.
    pub(super) client: Client,
    /// The driver, while it runs.
    pub(super) driver: Option<Driver>,
    /// The kernel, for looking.
    pub(super) kernel: Arc<dyn Kernel>,
    /// What the person asked for.
    pub(super) setup: Setup,
    /// The pool as configured.
    pub(super) spec: PoolSpec,
    /// The same as a word of the command line.
    pub(super) pool_word: String,
    /// What the kernel had before.
    pub(super) baseline: Baseline,
    /// The paths in use.
    pub(super) ledger: Ledger,
    /// The driver's name, once it has said it.
    pub(super) driver_name: String,
    /// The topology of this node, once the driver has said it.
    pub(super) topology: Option<csi::Topology>,
    /// The volumes, by their names in the story.
    pub(super) volumes: BTreeMap<&'static str, Volume>,
    /// The snapshots, likewise.
    pub(super) snapshots: BTreeMap<&'static str, csi::Snapshot>,
    /// The group snapshot.
    pub(super) group: Option<csi::VolumeGroupSnapshot>,
    /// Checksums to hold later content against, by what they are of.
    pub(super) digests: BTreeMap<&'static str, String>,
    /// Names of the story, by ID.
    pub(super) aliases: BTreeMap<String, String>,
    picture: Picture,
}

impl World {
    /// A world before anything has happened in it.
    pub(super) fn new(
        tree: Tree,
        narrator: Narrator,
        client: Client,
        kernel: Arc<dyn Kernel>,
        setup: Setup,
        pool: (PoolSpec, String),
    ) -> Result<World> {
        let baseline = Baseline::take(&tree, &*kernel)?;
        let ledger = Ledger {
            pool: pool.1.clone(),
            ..Ledger::default()
        };
        Ok(World {
            tree,
            narrator,
            client,
            driver: None,
            kernel,
            setup,
            spec: pool.0,
            pool_word: pool.1,
            baseline,
            ledger,
            driver_name: String::new(),
            topology: None,
            volumes: BTreeMap::new(),
            snapshots: BTreeMap::new(),
            group: None,
            digests: BTreeMap::new(),
            aliases: BTreeMap::new(),
            picture: Picture::default(),
        })
    }

    /// Calls the driver and tells of it.
    pub(super) fn call<T>(
        &mut self,
        rpc: &'static str,
        about: impl Into<String>,
        call: impl AsyncFnOnce(Channel) -> std::result::Result<Response<T>, Status>,
    ) -> Result<T> {
        let made = self
            .client
            .call(async |channel| Ok(call(channel).await?.into_inner()))?;
        self.tell(rpc, &about.into(), &made);
        made.answer.map_err(|status| Error::Call {
            call: rpc,
            code: status.code(),
            message: status.message().to_owned(),
        })
    }

    /// Calls the driver where it must refuse with this code, and checks that it does.
    pub(super) fn refused<T>(
        &mut self,
        rpc: &'static str,
        about: impl Into<String>,
        code: tonic::Code,
        call: impl AsyncFnOnce(Channel) -> std::result::Result<Response<T>, Status>,
    ) -> Result<()> {
        let made = self
            .client
            .call(async |channel| Ok(call(channel).await?.into_inner()))?;
        self.tell(rpc, &about.into(), &made);
        match made.answer {
            Err(status) => {
                self.narrator.fact("answer", status.message());
                self.narrator.check("it is refused", status.code() == code);
            }
            Ok(_) => self.narrator.check("it is refused", false),
        }
        Ok(())
    }

    fn tell<T>(&mut self, rpc: &str, about: &str, made: &Made<T>) {
        let code = made
            .answer
            .as_ref()
            .err()
            .map_or(tonic::Code::Ok, Status::code);
        self.narrator.call(rpc, about, code, made.time);
    }

    /// Looks at disk and kernel, and tells what changed since the last look.
    pub(super) fn look(&mut self) -> Result<()> {
        let now = self.see()?;
        let changes = now.since(&self.picture);
        self.narrator.changes(changes);
        self.picture = now;
        Ok(())
    }

    /// Looks without telling.
    pub(super) fn see(&self) -> Result<Picture> {
        let survey = self.survey()?;
        let alias = |id: &str| self.alias(id);
        Ok(Picture::of(&survey, &self.tree, &alias))
    }

    /// What is on the disk and in the kernel now.
    pub(super) fn survey(&self) -> Result<Survey> {
        let specs = std::slice::from_ref(&self.spec);
        Ok(Survey::take(specs, &self.tree.state(), &*self.kernel)?)
    }

    /// The name of the story for an ID.
    pub(super) fn alias(&self, id: &str) -> String {
        let known = self.aliases.get(id).cloned();
        known.unwrap_or_else(|| crate::status::units::shorten(id))
    }

    /// A volume of the story.
    pub(super) fn volume(&self, name: &'static str) -> Result<&Volume> {
        self.volumes.get(name).ok_or(Error::NeverMade(name))
    }

    /// The same, to change it.
    pub(super) fn volume_mut(&mut self, name: &'static str) -> Result<&mut Volume> {
        self.volumes.get_mut(name).ok_or(Error::NeverMade(name))
    }

    /// A snapshot of the story.
    pub(super) fn snapshot(&self, name: &'static str) -> Result<&csi::Snapshot> {
        self.snapshots.get(name).ok_or(Error::NeverMade(name))
    }

    /// Whether the pool shares blocks between files, as far as that can be told.
    pub(super) fn reflinks(&self) -> Result<bool> {
        let survey = self.survey()?;
        let known = survey.contents().next().and_then(|(_, c)| c.reflinks);
        Ok(known.unwrap_or(self.spec_kind() == PoolKind::Image))
    }

    fn spec_kind(&self) -> PoolKind {
        match self.spec.image_bytes {
            Some(_) => PoolKind::Image,
            None => PoolKind::Directory,
        }
    }
}
