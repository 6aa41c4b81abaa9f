//! Opening pools: an error at every effect, and a death before every effect.

use std::os::unix::fs::FileExt;

use hostloop_driver::kernel::Mounts;
use hostloop_driver::storage::VolumeHandle;

use super::*;

/// Opening a pool for the first time, in a directory or in an image.
#[test]
fn an_error_at_every_effect_of_the_first_start() {
    let _scenario = fail::FailScenario::setup();
    for spec in [
        "p=DIR/new/pool",
        "p=DIR/new/pool,image=300Mi",
        "p=DIR/new/pool,image=300Mi,preallocate",
    ] {
        let effects = effects_of(|| site(spec).try_open()?.named(None).map(drop));
        assert!(effects > 0, "{spec}");
        for n in 0..effects {
            let site = site(spec);
            fail::cfg("effect", &format!("{n}*off->1*return(ENOSPC)->off")).unwrap();
            let first = site.try_open().unwrap();
            fail::remove("effect");
            testkit::tend(&first);
            let context = format!("{spec}, effect {n}");
            let pool = first.named(None);
            let id = pool.unwrap_or_else(|e| panic!("{context}: {e}")).id();
            drop(first);
            let again = site.try_open().unwrap();
            assert_eq!(again.named(None).unwrap().id(), id, "{context}");
            let problems = again.noted_problems();
            assert!(problems.is_empty(), "{context}: {problems:?}");
        }
        println!("{spec}: {effects} effects");
    }
}

/// The ways to open a pool.
#[derive(Clone, Copy, Debug)]
enum Opening {
    /// For the first time.
    New,
    /// A node without state opens a pool that has data.
    Adopted,
    /// A node with state opens the pool after a reboot.
    Known,
    /// By the next process, with everything mounted.
    Mounted,
}

/// What goes wrong with mounts on the first open after the death.
const TROUBLE: [i32; 3] = [libc::EINVAL, libc::EUCLEAN, libc::EIO];

/// The process dies before an effect (all its later effects fail). The next process can't mount the
/// pool. The one after that must find everything: identity, volumes and their bytes.
#[test]
fn a_death_before_every_effect_of_an_opening() {
    let _scenario = fail::FailScenario::setup();
    let mut deaths = 0;
    for spec in ["p=DIR/pool", "p=DIR/pool,image=300Mi"] {
        use Opening::*;
        for opening in [New, Adopted, Known, Mounted] {
            let prepared = Prepared::new(spec, opening);
            let effects = effects_of(|| prepared.open().map(drop));
            for n in 0..effects {
                let prepared = Prepared::new(spec, opening);
                fail::cfg("effect", &format!("{n}*off->return(EIO)")).unwrap();
                let died = prepared.open().map(drop);
                fail::remove("effect");
                let context = format!("{spec}, {opening:?}, effect {n} of {effects}: {died:?}");
                prepared.judge(TROUBLE[n % TROUBLE.len()], &context);
                deaths += 1;
            }
            println!("{spec}, {opening:?}: {effects} effects");
        }
    }
    println!("{deaths} deaths");
    assert!(deaths > 60, "{deaths}");
}

struct Prepared {
    site: Site,
    /// The volume in the pool, if there is one.
    volume: Option<VolumeId>,
}

impl Prepared {
    fn new(spec: &'static str, opening: Opening) -> Prepared {
        let mut prepared = Prepared {
            site: site(spec),
            volume: None,
        };
        if matches!(opening, Opening::New) {
            return prepared;
        }
        let pools = prepared.open().unwrap();
        let pool = pools.named(None).unwrap();
        let made = pools.create_volume(&pool, new("v", None)).unwrap();
        let image = pools.open_image(&made, true).unwrap();
        image.write_all_at(b"precious", 4096).unwrap();
        prepared.volume = Some(made.id);
        drop((pools, pool, image));
        if !matches!(opening, Opening::Mounted) {
            prepared.site.kernel.reboot();
        }
        if matches!(opening, Opening::Adopted) {
            std::fs::remove_file(prepared.site.options.state_dir.join("pools.json")).unwrap();
        }
        prepared
    }

    fn open(&self) -> Result<Arc<Pools>> {
        let pools = self.site.try_open()?;
        pools.named(None)?;
        Ok(pools)
    }

    fn judge(&self, trouble: i32, context: &str) {
        // The dead process's autoclear devices are already gone.
        let before = self.site.kernel.effects().len();
        self.site.kernel.hook("mount", move |path| {
            let trouble = std::io::Error::from_raw_os_error(trouble);
            Err(hostloop_driver::kernel::Error::io("mount", path, trouble))
        });
        let troubled = self.open().map(drop);
        let effects = self.site.kernel.effects();
        let formatted = effects[before..].iter().any(|effect| effect.op == "mkfs");
        assert!(
            !formatted || self.volume.is_none(),
            "{context}: formatted over data; {troubled:?}"
        );
        self.site.kernel.behave();
        let pools = self.open().unwrap_or_else(|e| panic!("{context}: {e}"));
        let problems = pools.noted_problems();
        assert!(problems.is_empty(), "{context}: {problems:?}");
        if self.site.specs[0].image_bytes.is_some() {
            let mounts = self.site.kernel.mounts().unwrap();
            let pool = pools.named(None).unwrap();
            let options = &mounts.at(pool.root()).unwrap().options;
            assert!(options.has("rw"), "{context}: {options:?}");
        }
        if let Some(id) = self.volume {
            let volume = pools.volume(&VolumeHandle::Id(id)).unwrap();
            let image = pools.open_image(&volume, false).unwrap();
            let mut read = [0; 8];
            image.read_exact_at(&mut read, 4096).unwrap();
            assert_eq!(&read, b"precious", "{context}");
        }
    }
}

/// A process died in the middle of mkfs.
fn died_in_mkfs() -> Prepared {
    let prepared = Prepared::new("p=DIR/pool,image=300Mi", Opening::New);
    prepared.site.kernel.fail_afterwards("mkfs", 1, libc::EIO);
    prepared.open().map(drop).unwrap_err();
    prepared
}

/// Kills the second try before each effect, and at the end in the middle of its mkfs. Every state
/// must be one that the next start recognizes.
#[test]
fn a_death_in_the_middle_of_mkfs_and_another_in_the_next_start() {
    let _scenario = fail::FailScenario::setup();
    let prepared = died_in_mkfs();
    let effects = effects_of(|| prepared.open().map(drop));
    for n in 0..=effects {
        let prepared = died_in_mkfs();
        if n == effects {
            prepared.site.kernel.fail_afterwards("mkfs", 1, libc::EIO);
        } else {
            fail::cfg("effect", &format!("{n}*off->return(EIO)")).unwrap();
        }
        let died = prepared.open().map(drop);
        fail::remove("effect");
        let context = format!("effect {n} of {effects}: {died:?}");
        prepared.judge(TROUBLE[n % TROUBLE.len()], &context);
    }
}
