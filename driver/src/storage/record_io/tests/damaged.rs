//! Each JSON file of a pool and of its state directory, with each kind of damage.

use super::*;
use crate::storage::{NewVolume, Pools, SnapshotId};
use crate::testkit::MI;

/// What happens to a file.
#[derive(Clone, Copy)]
enum Damage {
    Empty,
    Garbage,
    CutOff,
    Missing,
    /// These fields get this number.
    Numbers(&'static [&'static str], &'static str),
}

use Damage::{CutOff, Empty, Garbage, Missing, Numbers};

const LARGEST: &str = "18446744073709551615";

impl Damage {
    /// The damaged content; `None` if the file is removed.
    fn of(self, text: &str) -> Option<String> {
        match self {
            Empty => Some(String::new()),
            Garbage => Some("\u{1}\u{0}{".to_owned()),
            CutOff => Some(text[..text.len() / 2].to_owned()),
            Missing => None,
            Numbers(fields, number) => Some(fields.iter().fold(text.to_owned(), |text, field| {
                let (before, after) = text.split_once(&format!("\"{field}\": ")).unwrap();
                let end = after.find([',', '\n']).unwrap();
                format!("{before}\"{field}\": {number}{}", &after[end..])
            })),
        }
    }
}

/// A pool with a volume, a snapshot, and a group of one volume.
struct Content {
    site: Site,
    volume: VolumeId,
    snapshot: SnapshotId,
    group: GroupId,
    member: SnapshotId,
}

impl Content {
    fn new() -> Content {
        let mut site = Site::fake(&["a"]);
        site.options.node_id = Some("n1".to_owned());
        site.open();
        let volume = site.make("one");
        let snapshot = site.snapshot(&volume, "snapshot").id;
        let other = site.create(NewVolume {
            capacity_bytes: 8 * MI,
            ..new("two")
        });
        let group = site
            .pools()
            .create_group("group", &[other.id], &Default::default())
            .unwrap();
        let (volume, member) = (volume.id, group.snapshots[0]);
        Content {
            volume,
            snapshot,
            member,
            group: group.id,
            site,
        }
    }

    /// Damages a file while the driver is down, and starts it.
    fn damage(&mut self, file: &Path, damage: Damage) {
        self.site.close();
        match damage.of(&read(file)) {
            Some(damaged) => std::fs::write(file, damaged).unwrap(),
            None => std::fs::remove_file(file).unwrap(),
        }
        self.site.open();
    }

    /// The bytes that the pool promises.
    fn promised(&self) -> u64 {
        self.site.pool().index.read().promised()
    }

    /// The number of volumes, snapshots and groups with a usable record.
    fn counted(&self) -> [usize; 3] {
        let pools: &Pools = self.site.pools();
        [
            pools.volumes().len(),
            pools.snapshots().len(),
            pools.groups().len(),
        ]
    }
}

/// The object is reported, the others and the pool's space are as before, and it can be deleted.
#[rstest]
fn a_damaged_record_harms_no_other_object(
    #[values("volume", "snapshot", "group")] kind: &str,
    #[values(Empty, Garbage, CutOff, Missing)] damage: Damage,
) {
    check_damaged(kind, damage);
}

#[rstest]
#[case("volume", &["capacity_bytes"], LARGEST)]
#[case("volume", &["capacity_bytes"], "0")]
#[case("volume", &["capacity_bytes"], "4097")]
#[case("volume", &["capacity_bytes"], "-1")]
#[case("snapshot", &["size_bytes"], LARGEST)]
#[case("snapshot", &["size_bytes", "allocated_bytes"], LARGEST)]
#[case("group", &["schema"], "0")]
fn an_absurd_record_harms_no_other_object(
    #[case] kind: &str,
    #[case] fields: &'static [&'static str],
    #[case] number: &'static str,
) {
    check_damaged(kind, Numbers(fields, number));
}

#[track_caller]
fn check_damaged(kind: &str, damage: Damage) {
    let mut content = Content::new();
    let before = content.promised();
    let (file, about, left) = match kind {
        "volume" => (
            format!("volumes/{}/volume.json", content.volume),
            About::Volume(content.volume),
            [1, 2, 1],
        ),
        "snapshot" => (
            format!("snapshots/{}/snapshot.json", content.snapshot),
            About::Snapshot(content.snapshot),
            [2, 1, 1],
        ),
        _ => (
            format!("groups/{}/group.json", content.group),
            About::Group(content.group),
            [2, 2, 0],
        ),
    };
    let file = content.site.path(file);
    content.damage(&file, damage);
    let site = &content.site;
    let noted = site.pools().noted_problems();
    assert_eq!(noted.iter().map(|f| &f.about).collect::<Vec<_>>(), [&about]);
    assert!(
        noted[0].problem.message().contains("restore the record"),
        "{noted:?}"
    );
    assert_eq!(content.counted(), left);
    assert_eq!(content.promised(), before);

    let pools = site.pools();
    let members = [content.member];
    match kind {
        "volume" => pools.delete_unrecorded_volume(content.volume).unwrap(),
        "snapshot" => pools.delete_snapshot(&content.snapshot).unwrap(),
        _ => pools
            .delete_unrecorded_group(content.group, &members)
            .unwrap(),
    }
    assert_eq!(pools.noted_problems(), []);
    let member_goes = usize::from(kind == "group");
    assert_eq!(content.counted(), [left[0], left[1] - member_goes, left[2]]);
    content.site.open();
    assert_eq!(content.site.pools().noted_problems(), []);
}

/// A group still lists its snapshot after the snapshot's own record was damaged.
#[test]
fn an_unreadable_member_is_deleted_with_its_group_only() {
    let mut content = Content::new();
    let file = content
        .site
        .path(format!("snapshots/{}/snapshot.json", content.member));
    content.damage(&file, Empty);
    let pools = content.site.pools();
    refused!(pools.delete_snapshot(&content.member), Error::InGroup(..));
    pools.delete_group(&content.group).unwrap();
    assert_eq!(
        (content.counted(), pools.noted_problems()),
        ([2, 1, 0], Vec::new())
    );
}

/// The pool is missing, and is back once a person has done what the message says.
#[rstest]
#[case::pool_empty("a/pool.json", Empty, "is not readable")]
#[case::pool_garbage("a/pool.json", Garbage, "is not readable")]
#[case::pool_missing("a/pool.json", Missing, "holds no pool.json, but its entries")]
#[case::owner_empty("a/node.json", Empty, "belongs to this node, n1, delete ")]
#[case::owner_garbage("a/node.json", Garbage, "belongs to this node, n1, delete ")]
#[case::registry_empty("state/pools.json", Empty, "or delete it")]
#[case::registry_garbage("state/pools.json", Garbage, "or delete it")]
fn the_advice_for_a_file_of_a_pool_works(
    #[case] file: &str,
    #[case] damage: Damage,
    #[case] expected: &str,
) {
    let mut content = Content::new();
    let path = content.site.root().join(file);
    content.damage(&path, damage);
    let why = content.site.why_missing();
    assert!(why.contains(expected), "{why}");
    // Its volumes can be unpublished meanwhile, and nothing is taken for deleted.
    let volume = content
        .site
        .pools()
        .volume(&VolumeHandle::Id(content.volume));
    refused!(volume, Error::Unavailable { .. });
    match why
        .split_once("write ")
        .and_then(|(_, rest)| rest.split_once(" into it"))
    {
        Some((text, _)) => std::fs::write(path, text).unwrap(),
        None => std::fs::remove_file(path).unwrap(),
    }
    content.site.tend();
    assert_eq!(content.counted(), [2, 2, 1]);
    assert_eq!(content.site.pools().noted_problems(), []);
}

/// Neither the pool nor the node's registry remembers the pool.
#[test]
fn a_pool_is_known_by_its_entries() {
    let mut content = Content::new();
    std::fs::remove_file(content.site.root().join("state/pools.json")).unwrap();
    let identity = content.site.path("pool.json");
    let id = content.volume.pool().to_string();
    content.site.close();
    std::fs::remove_file(&identity).unwrap();
    let refused = content.site.try_open().map(drop).unwrap_err().to_string();
    assert!(
        refused.contains(&format!("the entries of pool {id}")),
        "{refused}"
    );
}

/// Nothing is lost with these: they are written again, or describe the running kernel.
#[rstest]
#[case::no_owner("a/node.json", Missing)]
#[case::no_registry("state/pools.json", Missing)]
fn a_file_that_is_written_again_is_not_missed(#[case] file: &str, #[case] damage: Damage) {
    let mut content = Content::new();
    let path = content.site.root().join(file);
    content.damage(&path, damage);
    assert_eq!(
        (content.counted(), content.site.pools().noted_problems()),
        ([2, 2, 1], Vec::new())
    );
    assert!(path.exists());
}

/// A record promises more than its image can hold: only the image counts.
#[test]
fn a_record_with_too_large_a_size_takes_no_space() {
    let mut content = Content::new();
    let before = content.promised();
    let file = content
        .site
        .path(format!("volumes/{}/volume.json", content.volume));
    let sound = read(&file);
    content.damage(&file, Numbers(&["capacity_bytes"], "4611686018427387904"));
    assert_eq!(content.promised(), before);
    assert_eq!(content.site.pools().noted_problems().len(), 1);
    content
        .site
        .update(content.volume, |record| record.fresh = false);
    assert_eq!(content.promised(), before);
    std::fs::write(&file, sound).unwrap();
    content.site.open();
    assert_eq!(content.promised(), before);
    assert_eq!(content.site.pools().noted_problems(), []);
}

#[test]
fn a_large_file_or_a_pipe_is_not_read() {
    let mut content = Content::new();
    let file = content
        .site
        .path(format!("volumes/{}/volume.json", content.volume));
    content.damage(&file, Missing);
    content.site.close();
    rustix::fs::mkfifoat(rustix::fs::CWD, &file, rustix::fs::Mode::RWXU).unwrap();
    assert_eq!(content.site.open().volumes().len(), 1);
    content.site.close();
    std::fs::remove_file(&file).unwrap();
    std::fs::File::create(&file)
        .unwrap()
        .set_len(1 << 40)
        .unwrap();
    assert_eq!(content.site.open().volumes().len(), 1);
}

/// The field and its value, and whether it can be true.
#[rstest]
#[case(0, false)]
#[case(4096, true)]
#[case(4097, false)]
#[case(1 << 62, true)]
#[case((1 << 63) - 4096, true)]
#[case(1 << 63, false)]
#[case(u64::MAX, false)]
#[case(u64::MAX - 4095, false)]
fn a_size_can_be_true(#[case] bytes: u64, #[case] expected: bool) {
    assert_eq!(absurd_size("f", bytes).is_none(), expected);
}
