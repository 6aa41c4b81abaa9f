//! The list of attacks, which docs/security.md shows.

use futures::FutureExt;
use futures::future::BoxFuture;

use crate::tenant::Tenant;
use crate::{bombs, by_hand, copies, deletions, floods, groups, odd, ports, texts};

/// What a namespace's user tries.
pub(crate) struct Attack {
    /// A word for it, unique.
    pub(crate) name: &'static str,
    /// What it consists of.
    pub(crate) what: &'static str,
    /// What keeps others from harm.
    pub(crate) holds: &'static str,
    /// How many objects or connections: in a short run, and in a thorough one. A short run leaves
    /// out those with 0.
    pub(crate) sizes: [usize; 2],
    /// The file with the test.
    pub(crate) file: &'static str,
    pub(crate) run: Run,
}

/// Attacks with this many objects or connections. Returns what is wrong.
type Run = for<'a> fn(&'a Tenant<'a>, usize) -> BoxFuture<'a, Result<(), String>>;

/// Caches have no field that nothing reads, and no object that is large without these.
const CACHES: &str =
    "caches keep only what a controller reads, and no object that is still too large";
/// What a namespace has in a cache is limited.
const TOGETHER: &str = "the objects of a namespace have a limit together";
/// Queues are fair.
const QUEUES: &str = "queues serve namespaces in turn";

/// Threads are fair.
const COPIES: &str =
    "few copies run at once, none of the namespaces has all threads, and they take turns";

macro_rules! attack {
    ($name:literal, $what:literal, $holds:expr, $sizes:expr, $module:ident::$run:ident) => {
        Attack {
            name: $name,
            what: $what,
            holds: $holds,
            sizes: $sizes,
            file: concat!("test/tests/adversary/", stringify!($module), ".rs"),
            run: |tenant, size| $module::$run(tenant, size).boxed(),
        }
    };
}

pub(crate) const ATTACKS: &[Attack] = &[
    attack!(
        "large claims",
        "claims with 200 kB of annotations each",
        CACHES,
        [100, 1200],
        bombs::claims
    ),
    attack!(
        "labelled claims",
        "claims with 200 kB of labels each",
        CACHES,
        [40, 600],
        bombs::labels
    ),
    attack!(
        "kept claims",
        "claims with 200 kB of finalizers each",
        CACHES,
        [40, 600],
        bombs::finalizers
    ),
    attack!(
        "large pods",
        "pods with 200 kB of annotations or variables each",
        CACHES,
        [60, 1200],
        bombs::pods
    ),
    attack!(
        "large inline volumes",
        "pods with 200 kB of attributes of an inline volume each",
        CACHES,
        [40, 600],
        bombs::inline_pods
    ),
    attack!(
        "large snapshots",
        "VolumeSnapshots with 200 kB of annotations each",
        CACHES,
        [60, 1200],
        bombs::snapshots
    ),
    attack!(
        "large groups",
        "VolumeGroupSnapshots with 200 kB of annotations or selectors each",
        CACHES,
        [40, 600],
        bombs::groups
    ),
    attack!(
        "small claims",
        "claims with 11 kB of labels each, just small enough for the caches",
        TOGETHER,
        [0, 1200],
        bombs::kept
    ),
    attack!(
        "noisy claims",
        "claims with 1.6 kB of random labels each",
        TOGETHER,
        [100, 10000],
        bombs::noisy
    ),
    attack!(
        "snapshots of many finalizers",
        "VolumeSnapshots with 270 finalizers of six bytes each",
        TOGETHER,
        [50, 15000],
        bombs::brief
    ),
    attack!(
        "pods of many volumes",
        "pods with 590 `emptyDir` volumes each, which the caches keep",
        "an object in a cache takes at most 16 KiB, a pod 64 KiB",
        [0, 300],
        bombs::empty_dirs
    ),
    attack!(
        "churned claims",
        "claims that are deleted as soon as they are created",
        QUEUES,
        [100, 3000],
        floods::claims
    ),
    attack!(
        "churned snapshots",
        "VolumeSnapshots that are deleted as soon as they are created",
        QUEUES,
        [60, 1000],
        floods::snapshots
    ),
    attack!(
        "churned groups",
        "VolumeGroupSnapshots that are deleted as soon as they are created",
        QUEUES,
        [0, 1000],
        floods::groups
    ),
    attack!(
        "many expansions",
        "expansions of eight claims, again and again",
        QUEUES,
        [0, 2000],
        floods::expansions
    ),
    attack!(
        "many changes",
        "changes of the labels of one claim and one VolumeSnapshot",
        "many changes of an object are one key of a queue",
        [0, 5000],
        floods::changes
    ),
    attack!(
        "many volumes",
        "claims that are bound at once",
        QUEUES,
        [100, 2000],
        floods::immediate
    ),
    attack!(
        "many waiting claims",
        "claims that wait for a pod",
        "a claim without a selected node costs no call",
        [200, 3000],
        floods::waiting
    ),
    attack!(
        "many restores",
        "claims that are restored from one VolumeSnapshot",
        COPIES,
        [40, 200],
        copies::restores
    ),
    attack!(
        "many snapshots",
        "VolumeSnapshots of one claim",
        COPIES,
        [93, 300],
        copies::snapshots
    ),
    attack!(
        "many clones",
        "claims that clone one claim",
        COPIES,
        [20, 100],
        copies::clones
    ),
    attack!(
        "selected nodes",
        "claims with a `selected-node` that is tainted, cordoned or does not exist",
        "a node that takes no ordinary pods makes no volume, unless for a pod that may run there",
        [14, 210],
        by_hand::selected_nodes
    ),
    attack!(
        "bindings",
        "claims with annotations and names of volumes that the PV controller sets",
        "a volume is bound to the claim that its `claimRef` names, by its UID",
        [16, 200],
        by_hand::bindings
    ),
    attack!(
        "sources",
        "sources that belong to another namespace, have another kind, or do not exist",
        "a source is looked up in the claim's namespace, and a content names its snapshot by UID",
        [16, 200],
        by_hand::sources
    ),
    attack!(
        "protection",
        "claims with a VolumeSnapshot, without the finalizers that protect them",
        "volumes have finalizers of their own, which the user can't change",
        [4, 50],
        by_hand::protection
    ),
    attack!(
        "deletions without end",
        "claims, snapshots and groups that keep a finalizer, deleted",
        "a deletion that waits for others is tried rarely",
        [8, 100],
        deletions::never_end
    ),
    attack!(
        "odd order",
        "sources that are deleted before their copies are made",
        "sources are kept while they are copied",
        [8, 100],
        deletions::odd_order
    ),
    attack!(
        "groups of everything",
        "VolumeGroupSnapshots with selectors of everything, and of one value 430 times",
        "a namespace's claims are read once for all its groups, which keep only handles, and namespaces take turns",
        [8, 100],
        groups::of_everything
    ),
    attack!(
        "groups of blocks",
        "group snapshots of raw block volumes that are deleted at once, restored as filesystems",
        "a content keeps the mode of its volume, and without one becomes no filesystem",
        [1, 10],
        groups::of_blocks
    ),
    attack!(
        "odd names",
        "names of 253 characters with dots, the longest labels, control characters in annotations",
        "names are shortened with a hash where a limit is smaller",
        [8, 100],
        odd::names
    ),
    attack!(
        "odd sizes",
        "sizes of a byte, of 8 EiB, with exponents, and expansions to them",
        "sizes are rounded up to what a filesystem needs, and refused above what a pool has",
        [16, 200],
        odd::sizes
    ),
    attack!(
        "odd fields",
        "access modes, attributes classes, selectors and classes that can't be had",
        "a claim that can't be satisfied gets an event and waits with a growing backoff",
        [18, 200],
        odd::fields
    ),
    attack!(
        "restless claim",
        "changes of one claim's `selected-node`, to a text of 14 kB each",
        "a claim reserves room only on a node that exists",
        [200, 4000],
        texts::selected_nodes
    ),
    attack!(
        "long classes",
        "claims of classes that do not exist, with names of 14 kB",
        "metrics name only classes that exist, and no text is looked up that can't be a name",
        [20, 600],
        texts::classes
    ),
    attack!(
        "strayed sources",
        "sources named `?`, `?watch=true` and `../../../nodes`",
        "no text is looked up that can't be a name",
        [12, 200],
        texts::sources
    ),
    attack!(
        "long sources",
        "claims that wait for sources with names of 14 kB",
        TOGETHER,
        [40, 3000],
        texts::names
    ),
    attack!(
        "half-open connections",
        "connections to ports 9808 and 9809 without a request",
        "each server has a limited number of connections, and closes those of the peer with the most",
        [1500, 6000],
        ports::half_open
    ),
    attack!(
        "slow headers",
        "requests to ports 9808 and 9809 with a header that never ends",
        "the head of a request has a limit of time and size",
        [1500, 6000],
        ports::slow_headers
    ),
    attack!(
        "requests",
        "requests for the metrics, again and again",
        "a connection has one request, and each server has a limited number of connections",
        [200, 2000],
        ports::requests
    ),
];
