//! The messages of FUSE that a filesystem of one file needs.
//!
//! A library would read a request into one piece of memory, in which its data is not aligned for
//! direct I/O, and would have 16 MiB for each thread. So these few are written here, as
//! `include/uapi/linux/fuse.h` has them. All numbers are those of the machine.

use crate::aligned_buffer::ALIGNMENT;

/// The most bytes of a read or a write. The kernel splits larger ones.
pub(crate) const LARGEST_OPERATION: usize = 128 * 1024;

/// The bytes before the data of a write: two headers. The kernel wants room for both and for the
/// largest data.
pub(crate) const HEAD: usize = 40 + 40;

/// How many operations the kernel has under way at a time. A loop device has as many requests.
pub(crate) const MOST_OPERATIONS: u16 = 128;

/// The node of the filesystem's root.
const ROOT: u64 = 1;
/// The node of its one file.
pub(crate) const FILE: u64 = 2;

const MAJOR: u32 = 7;
/// The oldest minor with all that is needed here, and the one that the answers are written for.
const OLDEST_MINOR: u32 = 31;
const MINOR: u32 = 36;

const ASYNC_READ: u32 = 1 << 0;
const BIG_WRITES: u32 = 1 << 5;
const ASYNC_DIRECT_IO: u32 = 1 << 15;
const MAX_PAGES: u32 = 1 << 22;

const OPEN_DIRECT_IO: u32 = 1 << 0;
const OPEN_NO_FLUSH: u32 = 1 << 5;
const OPEN_PARALLEL_DIRECT_WRITES: u32 = 1 << 6;

const PUNCH_HOLE: u32 = 0x02 | KEEP_SIZE;
const ZERO_RANGE: u32 = 0x10 | KEEP_SIZE;
const KEEP_SIZE: u32 = 0x01;

const INVALIDATE_INODE: i32 = 2;

/// The time that the kernel keeps attributes, in seconds: a year. A server that has stopped then
/// blocks no question about the loop device.
const VALID: u64 = 365 * 24 * 3600;

/// What the kernel asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    /// The name of the file. Each name is right: only its server opens it.
    Lookup,
    /// The attributes of a node.
    Attributes {
        node: u64,
    },
    Open,
    Read {
        offset: u64,
        len: usize,
    },
    Write {
        offset: u64,
        len: usize,
    },
    Sync,
    Zero {
        offset: u64,
        len: u64,
        is_punch: bool,
    },
    Filesystem,
    Close,
    /// Another way to change the space of the file.
    OtherSpace,
    /// Nothing is to be answered.
    Silent,
    Unknown,
}

/// The number of a request, and what it asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) unique: u64,
    pub(crate) call: Call,
}

/// A request of so many bytes, of which these are the first. Of a write, the data is behind them.
/// `None` if it is too short.
pub(crate) fn parse(head: &[u8; HEAD], len: usize) -> Option<Request> {
    if len < 40 || u32_at(head, 0) as usize != len {
        return None;
    }
    // The first one is the handle of the file, of which there is one.
    let (second, third) = (u64_at(head, 48), u64_at(head, 56));
    let size = u32_at(head, 56) as usize;
    let (call, least) = match u32_at(head, 4) {
        1 => (Call::Lookup, 40),
        3 => (
            Call::Attributes {
                node: u64_at(head, 16),
            },
            40,
        ),
        14 => (Call::Open, 40),
        15 => (
            Call::Read {
                offset: second,
                len: size,
            },
            HEAD,
        ),
        16 => (
            Call::Write {
                offset: second,
                len: size,
            },
            HEAD.checked_add(size)?,
        ),
        17 => (Call::Filesystem, 40),
        18 => (Call::Close, 40),
        20 => (Call::Sync, 40),
        43 => {
            let call = match u32_at(head, 64) {
                mode @ (PUNCH_HOLE | ZERO_RANGE) => Call::Zero {
                    offset: second,
                    len: third,
                    is_punch: mode == PUNCH_HOLE,
                },
                _ => Call::OtherSpace,
            };
            (call, 72)
        }
        // FORGET, DESTROY, NOTIFY_REPLY and BATCH_FORGET
        2 | 38 | 41 | 42 => (Call::Silent, 40),
        _ => (Call::Unknown, 40),
    };
    let is_too_large = match call {
        Call::Read { len, .. } | Call::Write { len, .. } => len > LARGEST_OPERATION,
        _ => false,
    };
    (len >= least && !is_too_large).then_some(Request {
        unique: u64_at(head, 8),
        call,
    })
}

/// The number of a request that can't be parsed.
pub(crate) fn unique(head: &[u8; HEAD]) -> u64 {
    u64_at(head, 8)
}

/// What the kernel offers in its first request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Offer {
    pub(crate) unique: u64,
    major: u32,
    minor: u32,
    flags: u32,
}

/// The kernel's first request. `None` if it is another one.
pub(crate) fn parse_init(head: &[u8; HEAD], len: usize) -> Option<Offer> {
    (len >= 56 && u32_at(head, 4) == 26).then(|| Offer {
        unique: u64_at(head, 8),
        major: u32_at(head, 40),
        minor: u32_at(head, 44),
        flags: u32_at(head, 52),
    })
}

/// The answer to the kernel's first request, or what the kernel lacks.
pub(crate) fn init(offer: &Offer) -> Result<Vec<u8>, String> {
    let Offer {
        major,
        minor,
        flags,
        ..
    } = *offer;
    if major != MAJOR || minor < OLDEST_MINOR {
        return Err(format!(
            "the kernel's FUSE is {major}.{minor}, and {MAJOR}.{OLDEST_MINOR} is needed"
        ));
    }
    if flags & ASYNC_DIRECT_IO == 0 {
        return Err("the kernel's FUSE has no asynchronous direct I/O".to_owned());
    }
    let wanted = ASYNC_READ | BIG_WRITES | ASYNC_DIRECT_IO | MAX_PAGES;
    let largest = LARGEST_OPERATION as u32;
    let mut answer = Vec::with_capacity(64);
    // Version, read-ahead, flags.
    for number in [MAJOR, MINOR, largest, flags & wanted] {
        answer.extend(number.to_ne_bytes());
    }
    // Requests in the background, and those from which the kernel reports congestion.
    for number in [MOST_OPERATIONS, MOST_OPERATIONS] {
        answer.extend(number.to_ne_bytes());
    }
    // The largest write, and the steps of times in nanoseconds.
    for number in [largest, 1] {
        answer.extend(number.to_ne_bytes());
    }
    let pages = (LARGEST_OPERATION / ALIGNMENT) as u16;
    answer.extend(pages.to_ne_bytes());
    answer.resize(64, 0);
    Ok(answer)
}

/// The file, as LOOKUP has it.
pub(crate) fn entry(inode: u64, size: u64) -> Vec<u8> {
    let mut answer = Vec::with_capacity(128);
    for number in [FILE, 0, VALID, VALID, 0] {
        answer.extend(number.to_ne_bytes());
    }
    answer.extend(attributes_of(FILE, inode, size));
    answer
}

/// Attributes, as GETATTR has them.
pub(crate) fn attributes(node: u64, inode: u64, size: u64) -> Vec<u8> {
    let mut answer = Vec::with_capacity(104);
    for number in [VALID, 0] {
        answer.extend(number.to_ne_bytes());
    }
    answer.extend(attributes_of(node, inode, size));
    answer
}

fn attributes_of(node: u64, inode: u64, size: u64) -> Vec<u8> {
    let (inode, size, mode, links) = if node == ROOT {
        (ROOT, 0, 0o040_700, 2)
    } else {
        (inode, size, 0o100_600, 1)
    };
    let mut attributes = Vec::with_capacity(88);
    // Inode, size, blocks, and three times.
    for number in [inode, size, size / 512, 0, 0, 0] {
        attributes.extend(number.to_ne_bytes());
    }
    // Three times, mode, links, user, group, device, block size, flags.
    for number in [0, 0, 0, mode, links, 0, 0, 0, ALIGNMENT as u32, 0] {
        attributes.extend(number.to_ne_bytes());
    }
    attributes
}

/// The opened file.
pub(crate) fn open() -> Vec<u8> {
    let flags = OPEN_DIRECT_IO | OPEN_NO_FLUSH | OPEN_PARALLEL_DIRECT_WRITES;
    let mut answer = vec![0; 8];
    for number in [flags, 0] {
        answer.extend(number.to_ne_bytes());
    }
    answer
}

/// The number of bytes that were written.
pub(crate) fn written(len: usize) -> [u8; 8] {
    let mut answer = [0; 8];
    answer[..4].copy_from_slice(&(len as u32).to_ne_bytes());
    answer
}

/// The filesystem: its blocks are the unit of discards.
pub(crate) fn filesystem(block: u32, blocks: u64, free: u64) -> Vec<u8> {
    let mut answer = Vec::with_capacity(80);
    // Blocks, free ones, free ones for users, files, free files.
    for number in [blocks, free, free, 1, 0] {
        answer.extend(number.to_ne_bytes());
    }
    // Block, longest name, unit.
    for number in [block, 255, block] {
        answer.extend(number.to_ne_bytes());
    }
    answer.resize(80, 0);
    answer
}

/// What is before each answer.
pub(crate) fn header(unique: u64, error: i32, len: usize) -> [u8; 16] {
    let mut header = [0; 16];
    header[..4].copy_from_slice(&((16 + len) as u32).to_ne_bytes());
    header[4..8].copy_from_slice(&error.to_ne_bytes());
    header[8..].copy_from_slice(&unique.to_ne_bytes());
    header
}

/// Makes the kernel ask for the attributes of the file again.
pub(crate) fn attributes_have_changed() -> Vec<u8> {
    let mut message = header(0, INVALIDATE_INODE, 24).to_vec();
    message.extend(FILE.to_ne_bytes());
    // Below 0: no data of the file.
    message.extend((-1_i64).to_ne_bytes());
    message.extend(0_i64.to_ne_bytes());
    message
}

fn u32_at(bytes: &[u8; HEAD], at: usize) -> u32 {
    let mut number = [0; 4];
    number.copy_from_slice(&bytes[at..at + 4]);
    u32::from_ne_bytes(number)
}

fn u64_at(bytes: &[u8; HEAD], at: usize) -> u64 {
    let mut number = [0; 8];
    number.copy_from_slice(&bytes[at..at + 8]);
    u64::from_ne_bytes(number)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    /// A request of this opcode, with these numbers behind its header.
    fn request(opcode: u32, len: usize, numbers: &[u64]) -> [u8; HEAD] {
        let mut bytes = (len as u32).to_ne_bytes().to_vec();
        bytes.extend(opcode.to_ne_bytes());
        bytes.extend(77_u64.to_ne_bytes());
        bytes.extend(2_u64.to_ne_bytes());
        bytes.resize(40, 0);
        bytes.extend(numbers.iter().flat_map(|number| number.to_ne_bytes()));
        bytes.resize(HEAD, 0);
        bytes.try_into().unwrap()
    }

    #[rstest]
    #[case::read(15, 80, &[1, 8192, 4096], Some(Call::Read { offset: 8192, len: 4096 }))]
    #[case::a_short_read(15, 72, &[1, 8192, 4096], None)]
    #[case::a_large_read(15, 80, &[1, 0, 131_073], None)]
    #[case::write(16, 80 + 4096, &[1, 0, 4096], Some(Call::Write { offset: 0, len: 4096 }))]
    #[case::a_write_without_its_data(16, 80 + 4095, &[1, 0, 4096], None)]
    #[case::sync(20, 56, &[1, 0], Some(Call::Sync))]
    #[case::discard(43, 72, &[1, 4096, 8192, 3], Some(Call::Zero { offset: 4096, len: 8192, is_punch: true }))]
    #[case::zeroes(43, 72, &[1, 4096, 8192, 17], Some(Call::Zero { offset: 4096, len: 8192, is_punch: false }))]
    #[case::another_mode(43, 72, &[1, 4096, 8192, 0], Some(Call::OtherSpace))]
    #[case::attributes(3, 56, &[], Some(Call::Attributes { node: 2 }))]
    #[case::forget(2, 48, &[1], Some(Call::Silent))]
    #[case::a_link(6, 48, &[1], Some(Call::Unknown))]
    #[case::too_short(20, 39, &[], None)]
    fn requests(
        #[case] opcode: u32,
        #[case] len: usize,
        #[case] numbers: &[u64],
        #[case] expected: Option<Call>,
    ) {
        let parsed = parse(&request(opcode, len, numbers), len);
        assert_eq!(parsed.map(|request| request.call), expected);
        assert!(parsed.is_none_or(|request| request.unique == 77));
        assert_eq!(
            parse(&request(opcode, len, numbers), len + 1),
            None,
            "another length"
        );
    }

    #[test]
    fn answers_have_the_lengths_of_the_kernel() {
        assert_eq!(entry(7, 1).len(), 128);
        assert_eq!(attributes(1, 7, 1).len(), 104);
        assert_eq!(open().len(), 16);
        assert_eq!(filesystem(4096, 1, 1).len(), 80);
        assert_eq!(attributes_have_changed().len(), 40);
    }

    #[rstest]
    #[case::newer(7, 45, u32::MAX, None)]
    #[case::oldest(7, 31, u32::MAX, None)]
    #[case::older(7, 30, u32::MAX, Some("7.30"))]
    #[case::another(8, 31, u32::MAX, Some("8.31"))]
    #[case::without_direct_io(7, 31, !ASYNC_DIRECT_IO, Some("direct I/O"))]
    fn offers(
        #[case] major: u32,
        #[case] minor: u32,
        #[case] flags: u32,
        #[case] lacks: Option<&str>,
    ) {
        let offer = Offer {
            unique: 1,
            major,
            minor,
            flags,
        };
        match (init(&offer), lacks) {
            (Ok(answer), None) => assert_eq!(answer.len(), 64),
            (Err(reason), Some(lacks)) => assert!(reason.contains(lacks), "{reason}"),
            (answer, lacks) => panic!("{answer:?}, expected {lacks:?}"),
        }
    }
}
