//! Sources of copies: volumes and snapshots, and the freeze of volumes during the copy.

use std::fs::File;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hostloop_terminal::humanize::exact_bytes;
use uuid::Uuid;

use super::capacity::SpaceRequest;
use super::copy_image::{self, NewImage};
use super::copy_rate::{self, Measured, Route, SAMPLE};
use super::freeze::{self, FreezeLimits, FreezeTarget, Intents};
use super::{Access, Error, Format, FreezeIntent, Pool, PoolId, Pools, Provisioning, Result};
use super::{SnapshotRecord, Source, VolumeHandle, VolumeId, VolumeRecord};
use crate::kernel::file::{self, Copied, Pace};
use crate::kernel::{self, FileId, extents};
use crate::record::now_ns;

mod fault_disk;
mod live_clone;

pub(super) use live_clone::CloneTime;

/// A volume or snapshot that exists, as the source of a copy.
#[derive(Clone, Debug)]
pub enum LocatedSource {
    Snapshot(Arc<SnapshotRecord>),
    Volume(Arc<VolumeRecord>),
}

impl LocatedSource {
    /// The source, as the record of the copy names it.
    pub fn recorded(&self) -> Source {
        match self {
            LocatedSource::Snapshot(snapshot) => Source::Snapshot(snapshot.id),
            LocatedSource::Volume(volume) => Source::Volume(volume.id),
        }
    }

    /// The size of the source, in bytes. A copy has at least as many.
    pub fn bytes(&self) -> u64 {
        match self {
            LocatedSource::Snapshot(snapshot) => snapshot.size_bytes,
            LocatedSource::Volume(volume) => volume.capacity_bytes,
        }
    }

    /// The source's state of formatting.
    pub fn format(&self) -> Format {
        match self {
            LocatedSource::Snapshot(snapshot) => snapshot.format,
            LocatedSource::Volume(volume) => volume.format,
        }
    }

    /// The default provisioning of a copy.
    pub fn provisioning(&self) -> Provisioning {
        match self {
            LocatedSource::Snapshot(snapshot) => snapshot.provisioning,
            LocatedSource::Volume(volume) => volume.settings.provisioning,
        }
    }

    /// The eldest image with which a copy may share blocks, unless that is the source itself.
    fn ancestor(&self) -> Option<Uuid> {
        match self {
            LocatedSource::Snapshot(snapshot) => Some(snapshot.eldest()),
            LocatedSource::Volume(volume) => volume.eldest(),
        }
    }

    fn pool(&self) -> PoolId {
        match self {
            LocatedSource::Snapshot(snapshot) => snapshot.id.pool(),
            LocatedSource::Volume(volume) => volume.id.pool(),
        }
    }

    /// The volume; `None` if the source is a snapshot.
    fn volume(&self) -> Option<&Arc<VolumeRecord>> {
        match self {
            LocatedSource::Snapshot(_) => None,
            LocatedSource::Volume(volume) => Some(volume),
        }
    }
}

/// A copy to make into a new, empty image.
#[derive(Debug)]
pub(super) struct CopyJob {
    pub(super) source: LocatedSource,
    /// The source's image, open for reading.
    pub(super) from: File,
    from_id: FileId,
    /// The length of the source's image in bytes.
    pub(super) source_len: u64,
    /// Bytes allocated to the source's image.
    pub(super) allocated: u64,
    /// The pool of the new image.
    pool: PoolId,
    /// The properties of the new image.
    image: NewImage,
}

impl CopyJob {
    /// The ancestor in the record of the copy, if its pool needs one: see
    /// [`VolumeRecord::ancestor`].
    pub(super) fn ancestor(&self, pool: &Pool) -> Option<Uuid> {
        let shares = self.image.reflinks && pool.counts_families();
        self.source.ancestor().filter(|_| shares)
    }

    fn route(&self) -> Route {
        (self.source.recorded(), self.pool)
    }

    /// The volume to freeze during the copy; `None` for a snapshot.
    fn target(&self) -> Option<FreezeTarget> {
        let volume = self.source.volume()?;
        let staged = volume.stage.as_ref().map(|s| &s.capability.access);
        Some(FreezeTarget {
            volume: volume.id,
            image: self.from_id,
            raw_staged: staged == Some(&Access::Block),
            freeze_intent: volume.freeze.is_some(),
        })
    }

    /// The space that a volume made by this copy requests from its pool.
    pub(super) fn space_request(&self) -> Result<SpaceRequest> {
        if self.source_len > self.image.len {
            return Err(Error::Refused(format!(
                "the source has {}, more than the {} of the new volume",
                exact_bytes(self.source_len),
                exact_bytes(self.image.len)
            )));
        }
        let whole = SpaceRequest::volume(self.image.len, self.image.provisioning);
        Ok(SpaceRequest {
            take: whole.take.max(self.takes()),
            ..whole
        })
    }

    /// Bytes that the copy allocates at once. A copy without shared blocks allocates all of them.
    /// So does a copy of a thick volume, because the volume gets unshared blocks again.
    pub(super) fn takes(&self) -> u64 {
        if self.image.reflinks && !self.image.thick_source {
            0
        } else {
            self.allocated.min(self.source_len)
        }
    }

    /// Bytes to copy while the source is frozen: none if the image is cloned.
    fn bytes(&self, to: &File) -> Result<u64> {
        if copy_image::may_share(&self.image, to) {
            Ok(0)
        } else {
            Ok(file::data_bytes(&self.from)?)
        }
    }

    /// Copies the start of the source, measures that, and discards it. The source may change
    /// meanwhile.
    fn sample(&self, to: &File) -> Result<Measured> {
        /// The longest time that a sample takes.
        const LONGEST: Duration = Duration::from_secs(2);
        let began = Instant::now();
        let copied = file::copy_sparse(&self.from, to, Pace::Fast, &|| {
            let allocated = file::allocated_bytes(to).unwrap_or(SAMPLE);
            allocated >= SAMPLE || began.elapsed() >= LONGEST
        });
        let bytes = match copied {
            Ok(copied) | Err(kernel::Error::Stopped { copied, .. }) => copied,
            Err(e) => return Err(e.into()),
        };
        let measured = Measured {
            bytes,
            took: began.elapsed(),
        };
        file::set_len(to, 0)?;
        Ok(measured)
    }
}

/// Copies of images at one point in time.
pub(super) struct CopiedImages {
    /// When they were made, in nanoseconds since 1970.
    pub(super) taken_ns: u64,
    /// False if bytes were copied while a filesystem was frozen: they did not wait for the disk.
    pub(super) is_written_back: bool,
}

impl Pools {
    /// Finds the source that a record names.
    pub(super) fn source(&self, source: &Source) -> Result<LocatedSource> {
        Ok(match source {
            Source::Snapshot(id) => LocatedSource::Snapshot(self.snapshot(id)?),
            Source::Volume(id) => LocatedSource::Volume(self.volume(&VolumeHandle::Id(*id))?),
        })
    }

    /// Opens the image of a source for reading.
    pub fn open_source(&self, source: &LocatedSource) -> Result<File> {
        match source {
            LocatedSource::Snapshot(snapshot) => self.open_snapshot(snapshot),
            LocatedSource::Volume(volume) => self.open_image(volume, false),
        }
    }

    /// Opens a source to copy it into a new image of this pool. The image gets `len` bytes, or as
    /// many as the source's image.
    pub(super) fn copy_job(
        &self,
        source: LocatedSource,
        pool: &Pool,
        len: Option<u64>,
        provisioning: Provisioning,
    ) -> Result<CopyJob> {
        let volume = source.volume();
        if let Some(volume) = volume.filter(|volume| volume.growth.is_some()) {
            // The copy would not have the intent, and so no way back to a sound filesystem.
            return Err(Error::Refused(format!(
                "the growth of the filesystem of volume {} was interrupted: start a pod that mounts \
                 it, which completes the growth, and then copy it",
                volume.id
            )));
        }
        let thick_source = volume.is_some_and(|v| v.settings.provisioning == Provisioning::Thick);
        let from = self.open_source(&source)?;
        let source_len = file::length(&from)?;
        let image = NewImage {
            len: len.unwrap_or(source_len),
            provisioning,
            reflinks: pool.reflinks && source.pool() == pool.id,
            thick_source,
        };
        Ok(CopyJob {
            source,
            from_id: kernel::file_id(&from)?,
            source_len,
            allocated: file::allocated_bytes(&from)?,
            from,
            pool: pool.id,
            image,
        })
    }

    /// Copies images at one point in time, each into the new one beside it. Filesystems in use are
    /// frozen meanwhile.
    pub(super) fn copy_images(&self, jobs: &[(&CopyJob, &File)]) -> Result<CopiedImages> {
        let targets: Vec<FreezeTarget> = jobs.iter().filter_map(|(job, _)| job.target()).collect();
        for (job, _) in jobs {
            self.end_disk_delays(job);
            self.end_fault_disk(job)?;
        }
        let max_freeze = self.options.max_freeze;
        let limits = FreezeLimits {
            max_freeze,
            check: &|| {
                self.room_to_freeze(&targets)?;
                self.time_to_freeze(jobs, max_freeze)
            },
        };
        let (copied, pace, taken_ns) =
            freeze::quiesced(&self.kernel, &targets, &limits, &Recorded(self), |still| {
                for (job, _) in jobs {
                    self.flush_fault_disk(job)?;
                }
                let taken_ns = now_ns();
                let mut series = self.copy_rates.series(still.since());
                let copied = jobs.iter().map(|(job, to)| {
                    series.measured(
                        job.route(),
                        Box::new(move || extents::clone::count(&job.from)),
                        || still.copy(job.from_id, &job.from, to, &job.image),
                        || still.stop(),
                    )
                });
                Ok((copied.collect::<Result<Vec<_>>>()?, still.pace(), taken_ns))
            })?;
        let has_bytes = copied
            .iter()
            .any(|copied| matches!(copied, Copied::Bytes(_)));
        for ((job, to), copied) in jobs.iter().zip(copied) {
            self.finish_copy(job, to, copied)?;
        }
        Ok(CopiedImages {
            taken_ns,
            is_written_back: !(has_bytes && pace == Pace::Fast),
        })
    }

    /// Completes a copy after the thaw. A thick source volume gets unshared blocks again.
    fn finish_copy(&self, job: &CopyJob, to: &File, copied: Copied) -> Result<()> {
        copy_image::finish(&*self.kernel, to, &job.image, copied)?;
        match job.source.volume() {
            Some(volume) if job.image.thick_source => {
                let image = self.open_image(volume, true)?;
                copy_image::keep_thick(&image, job.source_len, copied)
            }
            _ => Ok(()),
        }
    }

    /// Fails if the copies would take longer than their filesystems may stay frozen.
    fn time_to_freeze(&self, jobs: &[(&CopyJob, &File)], max_freeze: Duration) -> Result<()> {
        let mut copies = Vec::new();
        let mut volumes = Vec::new();
        let mut clones = Vec::new();
        for (job, to) in jobs {
            let known = self.copy_rates.known_clone(job.route());
            if let (Some(measured), true) = (known, copy_image::may_share(&job.image, to)) {
                clones.push((extents::clone::count(&job.from), measured));
            }
            let bytes = job.bytes(to)?;
            let measured = match self.copy_rates.known(job.route()) {
                _ if bytes == 0 => continue,
                Some(measured) => measured,
                None if bytes > SAMPLE => job.sample(to)?,
                None => continue,
            };
            copies.push((bytes, measured));
            volumes.extend(job.source.volume().map(|v| format!("volume {}", v.id)));
        }
        copy_rate::check(&volumes.join(", "), &copies, max_freeze)?;
        let sources: Vec<String> = jobs
            .iter()
            .filter_map(|(job, _)| job.source.volume())
            .map(|v| format!("volume {}", v.id))
            .collect();
        copy_rate::check_clones(&sources.join(", "), &clones, max_freeze)
    }

    /// Fails if a pool is nearly full: a freeze writes back first, and hangs in the kernel without
    /// space for that.
    fn room_to_freeze(&self, targets: &[FreezeTarget]) -> Result<()> {
        for target in targets {
            let pool = self.with_id(target.volume.pool())?;
            if !pool.restore_reserve()? {
                return Err(Error::CannotFreeze(format!(
                    "pool {} is nearly full, and freezing a filesystem in it might not end: free some space first",
                    pool.name()
                )));
            }
        }
        Ok(())
    }
}

/// Stores freeze intents in the records of the volumes.
struct Recorded<'a>(&'a Pools);

impl Intents for Recorded<'_> {
    fn write(&self, volumes: &[VolumeId]) -> Result<()> {
        let freeze = Some(FreezeIntent { since_ns: now_ns() });
        for id in volumes {
            self.0.update_volume(id, |record| record.freeze = freeze)?;
        }
        Ok(())
    }

    fn clear(&self, volumes: &[VolumeId]) -> Result<()> {
        for id in volumes {
            self.0.clear_in_volume(id, |record| record.freeze = None)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use rstest::rstest;

    use super::*;
    use crate::kernel::wanted::Wanted;
    use crate::storage::NewVolume;
    use crate::testkit::{MI, Site, new};

    fn freezes(site: &Site) -> usize {
        site.kernel
            .effects()
            .iter()
            .filter(|e| e.op == "freeze")
            .count()
    }

    /// A small image is not sampled, so only the stopped copy shows that it is slow. The copy of
    /// another volume is not refused.
    #[rstest]
    #[case::the_first(None)]
    #[case::after_a_faster_one(Some(64 << 30))]
    fn a_copy_that_was_stopped_freezes_only_once(#[case] earlier: Option<u64>) {
        /// Each of them is a step of the copy.
        const PIECES: u64 = 2_000;
        let mut site = Site::fake(&["a", "b"]);
        site.options.max_freeze = Duration::from_secs(5);
        site.open();
        let volume = site.create(NewVolume {
            capacity_bytes: 32 * MI,
            ..new("one")
        });
        let image = site.pools().open_image(&volume, true).unwrap();
        for piece in 0..PIECES {
            image.write_all_at(&[1; 4096], MI + piece * 8192).unwrap();
        }
        assert!(file::data_bytes(&image).unwrap() < SAMPLE);
        let _mounted = site.mounted(&volume, "mount");
        if let Some(bytes) = earlier {
            let route = (Source::Volume(volume.id), site.named("b").id);
            let mut series = site.pools().copy_rates.series(Instant::now());
            series
                .measured(route, Box::new(|| 0), || Ok(Copied::Bytes(bytes)), || true)
                .unwrap();
        }

        // All steps together take four times as long as the freeze, on any machine.
        let slow = Arc::new(Wanted::with_step(|| {
            std::thread::sleep(Duration::from_millis(10))
        }));
        for says in ["copying takes longer", "copying the "] {
            let source = Some(Source::Volume(volume.id));
            let copy = NewVolume {
                source,
                capacity_bytes: 32 * MI,
                ..new("copy")
            };
            match slow.run(|| site.pools().create_volume(&site.named("b"), copy)) {
                Err(Error::CannotFreeze(why)) if why.starts_with(says) => {}
                other => panic!("{other:?} does not start with {says}"),
            }
            assert_eq!(freezes(&site), 1);
        }

        let other = site.make("two");
        site.pools()
            .open_image(&other, true)
            .unwrap()
            .write_all_at(&[1; 4096], MI)
            .unwrap();
        let _also_mounted = site.mounted(&other, "other");
        let copy = NewVolume {
            source: Some(Source::Volume(other.id)),
            ..new("copy")
        };
        site.pools().create_volume(&site.named("b"), copy).unwrap();
        assert_eq!(freezes(&site), 2);
    }

    /// The source is mounted, and so frozen, or a snapshot.
    #[rstest]
    fn a_copy_that_nobody_wants_leaves_nothing(#[values(true, false)] mounted: bool) {
        let mut site = Site::fake(&["a"]);
        site.options.max_freeze = Duration::from_secs(60);
        site.open();
        let large = |name| NewVolume {
            capacity_bytes: 32 * MI,
            ..new(name)
        };
        let volume = site.create(large("one"));
        let image = site.pools().open_image(&volume, true).unwrap();
        image.write_all_at(&vec![1; 20 << 20], MI).unwrap();
        let source = if mounted {
            Source::Volume(volume.id)
        } else {
            Source::Snapshot(site.snapshot(&volume, "snap").id)
        };
        let _mounted = mounted.then(|| site.mounted(&volume, "mount"));
        let before = (site.entries(), site.pool().index.read().promised());

        let unwanted = Arc::new_cyclic(|this: &std::sync::Weak<Wanted>| {
            let (this, steps) = (this.clone(), AtomicUsize::new(0));
            Wanted::with_step(move || {
                if steps.fetch_add(1, Ordering::SeqCst) == 2 {
                    this.upgrade().unwrap().end();
                }
            })
        });
        let copy = NewVolume {
            source: Some(source),
            ..large("copy")
        };
        let copied = unwanted.run(|| site.pools().create_volume(&site.pool(), copy));
        refused!(copied, Error::Kernel(kernel::Error::Unwanted { .. }));
        assert_eq!(
            (site.entries(), site.pool().index.read().promised()),
            before
        );
        assert_eq!(*site.pool().under_way.lock(), SpaceRequest::default());
        assert!(site.volume(volume.id).freeze.is_none());
        let thaws = site
            .kernel
            .effects()
            .iter()
            .filter(|e| e.op == "thaw")
            .count();
        assert_eq!(
            (freezes(&site), thaws),
            if mounted { (1, 1) } else { (0, 0) }
        );
        // A later call is a new one.
        let copy = NewVolume {
            source: Some(source),
            ..large("copy")
        };
        site.pools().create_volume(&site.pool(), copy).unwrap();
    }

    /// Two pools never share blocks, so a clone from one to the other copies bytes.
    #[rstest]
    #[case::too_long(Duration::from_millis(1), true)]
    #[case::short_enough(Duration::from_secs(3600), false)]
    fn a_copy_that_would_freeze_too_long_is_refused_before_the_freeze(
        #[case] max_freeze: Duration,
        #[case] refused: bool,
    ) {
        let mut site = Site::fake(&["a", "b"]);
        site.options.max_freeze = max_freeze;
        site.open();
        let large = |name| NewVolume {
            capacity_bytes: 96 * MI,
            ..new(name)
        };
        let volume = site.create(large("one"));
        let image = site.pools().open_image(&volume, true).unwrap();
        image.write_all_at(&vec![1; 80 << 20], MI).unwrap();
        let _mounted = site.mounted(&volume, "mount");

        let source = Some(Source::Volume(volume.id));
        let copy = NewVolume {
            source,
            ..large("copy")
        };
        let copied = site.pools().create_volume(&site.named("b"), copy);
        let freezes = freezes(&site);
        if !refused {
            let copy = site.pools().open_image(&copied.unwrap(), false).unwrap();
            assert_eq!(
                file::data_bytes(&copy).unwrap(),
                file::data_bytes(&image).unwrap()
            );
            assert_eq!(freezes, 1);
            return;
        }
        let bytes = file::data_bytes(&image).unwrap();
        let says = format!(
            "copying the {} of volume {} takes about",
            exact_bytes(bytes),
            volume.id
        );
        match copied {
            Err(Error::CannotFreeze(why)) if why.starts_with(&says) => {}
            other => panic!("{other:?}"),
        }
        assert_eq!(freezes, 0);
        assert!(site.volume(volume.id).freeze.is_none());
        assert_eq!(
            std::fs::read_dir(site.named("b").root().join("incoming"))
                .unwrap()
                .count(),
            0
        );
    }
}
