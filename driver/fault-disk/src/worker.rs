//! The threads that answer requests.

use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;

use parking_lot::{Condvar, Mutex};
use rustix::io::Errno;

use crate::answer_queue::AnswerQueue;
use crate::disk::Disk;
use crate::fuse_message::{self, Call, Request};
use crate::image::Zeroing;
use crate::mount;
use crate::rules::Operation;
use crate::slots::{Slot, Slots};

/// What the threads of a disk share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) disk: Disk,
    pub(crate) fuse: OwnedFd,
    pub(crate) slots: Slots,
    pub(crate) later: AnswerQueue<Answer>,
    /// The threads that still read requests.
    pub(crate) workers: Mutex<usize>,
    /// True once the last of them has ended, and the image has all that it is to have.
    pub(crate) has_ended: Mutex<bool>,
    pub(crate) end: Condvar,
}

/// The answer to an operation.
#[derive(Debug)]
pub(crate) struct Answer {
    unique: u64,
    result: Result<Content, Errno>,
    /// What was read.
    slot: Option<Slot>,
}

#[derive(Clone, Copy, Debug)]
enum Content {
    Nothing,
    /// So many bytes were written.
    Written(usize),
    /// So many bytes of the slot.
    Read(usize),
}

/// Answers requests until the filesystem has gone.
pub(crate) fn work(shared: &Shared) {
    let _ending = Ending(shared);
    let mut slot = shared.slots.take();
    loop {
        match mount::read(&shared.fuse, &mut slot) {
            Ok(len) => {
                if let Some(request) = fuse_message::parse(&slot.head, len) {
                    slot = answer(shared, request, slot);
                } else {
                    tracing::error!(disk = shared.disk.name, len, "not a request of FUSE");
                    report(
                        shared,
                        fail(shared, fuse_message::unique(&slot.head), Errno::IO),
                    );
                }
            }
            // A request has been taken back, or a signal has come.
            Err(Errno::NOENT | Errno::INTR | Errno::AGAIN) => (),
            // Nothing uses the filesystem any more.
            Err(Errno::NODEV) => break,
            Err(e) => {
                tracing::error!(disk = shared.disk.name, error = %e, "to read a request failed");
                break;
            }
        }
    }
    shared.slots.give(slot);
}

/// Answers what is due later.
pub(crate) fn answer_later(shared: &Shared) {
    while let Some(answer) = shared.later.next() {
        let data = answer.slot.as_ref().map_or(&[][..], |slot| &slot.data);
        send(shared, answer.unique, answer.result, data);
        if let Some(slot) = answer.slot {
            shared.slots.give(slot);
        }
    }
}

/// Answers a request, or leaves that for later. Returns this slot or another one.
fn answer(shared: &Shared, request: Request, mut slot: Slot) -> Slot {
    let disk = &shared.disk;
    let unique = request.unique;
    let (operation, bytes) = match request.call {
        Call::Read { offset, len } => (
            Operation::Read,
            offset..offset.saturating_add(len as u64).min(disk.size()),
        ),
        Call::Write { offset, len } => {
            (Operation::Write, offset..offset.saturating_add(len as u64))
        }
        Call::Zero { offset, len, .. } => (Operation::Discard, offset..offset.saturating_add(len)),
        Call::Sync => (Operation::Flush, 0..0),
        call => {
            answer_about_the_file(shared, unique, call);
            return slot;
        }
    };
    let decision = disk.decide(operation, bytes.clone());
    let result = match decision.error {
        Some(error) => Err(error.errno()),
        None => perform(disk, request.call, &mut slot),
    };
    let result = result.map(|()| match request.call {
        Call::Read { .. } => Content::Read(length(&bytes)),
        Call::Write { .. } => Content::Written(length(&bytes)),
        _ => Content::Nothing,
    });
    let Some(due) = decision.due else {
        send(shared, unique, result, &slot.data);
        return slot;
    };
    // What was written is not needed any more.
    let has_data = matches!(result, Ok(Content::Read(_)));
    let (kept, own) = if has_data {
        (Some(slot), None)
    } else {
        (None, Some(slot))
    };
    let answer = Answer {
        unique,
        result,
        slot: kept,
    };
    shared.later.push(due, answer);
    own.unwrap_or_else(|| shared.slots.take())
}

/// The length of an operation, which a slot has room for.
fn length(bytes: &Range<u64>) -> usize {
    usize::try_from(bytes.end.saturating_sub(bytes.start)).unwrap_or(0)
}

fn perform(disk: &Disk, call: Call, slot: &mut Slot) -> Result<(), Errno> {
    let done = match call {
        Call::Read { offset, len } => disk.read(&mut slot.data[..len], offset),
        Call::Write { offset, len } => disk.write(&slot.data[..len], offset),
        Call::Zero {
            offset,
            len,
            is_punch,
        } => {
            let zeroing = if is_punch {
                Zeroing::Punch
            } else {
                Zeroing::Keep
            };
            disk.zero(offset, len, zeroing)
        }
        Call::Sync => disk.flush(),
        _ => return Err(Errno::NOSYS),
    };
    done.map_err(|e| errno(&e))
}

/// Answers at once, without rules: only operations of a disk have them.
fn answer_about_the_file(shared: &Shared, unique: u64, call: Call) {
    let disk = &shared.disk;
    let answer = match call {
        Call::Lookup => Ok(fuse_message::entry(disk.inode, disk.size())),
        Call::Attributes { node } => Ok(fuse_message::attributes(node, disk.inode, disk.size())),
        Call::Open => Ok(fuse_message::open()),
        Call::Close => Ok(Vec::new()),
        Call::Filesystem => disk
            .filesystem()
            .map(|below| {
                let block = u32::try_from(below.f_bsize).unwrap_or(4096);
                fuse_message::filesystem(block, below.f_blocks, below.f_bavail)
            })
            .map_err(|e| errno(&e)),
        Call::Silent => return,
        // ENOSYS would end all discards.
        Call::OtherSpace => Err(Errno::OPNOTSUPP),
        _ => Err(Errno::NOSYS),
    };
    let sent = match answer {
        Ok(answer) => mount::write(&shared.fuse, unique, 0, &answer),
        Err(e) => fail(shared, unique, e),
    };
    report(shared, sent);
}

fn send(shared: &Shared, unique: u64, result: Result<Content, Errno>, data: &[u8]) {
    let sent = match result {
        // Nothing is acknowledged after a power cut.
        _ if shared.disk.is_cut() => fail(shared, unique, Errno::IO),
        Err(e) => fail(shared, unique, e),
        Ok(Content::Nothing) => mount::write(&shared.fuse, unique, 0, &[]),
        Ok(Content::Written(len)) => {
            let answer = fuse_message::written(len);
            mount::write(&shared.fuse, unique, 0, &answer)
        }
        Ok(Content::Read(len)) => mount::write(&shared.fuse, unique, 0, &data[..len]),
    };
    report(shared, sent);
}

fn fail(shared: &Shared, unique: u64, error: Errno) -> rustix::io::Result<()> {
    mount::write(&shared.fuse, unique, -error.raw_os_error(), &[])
}

fn report(shared: &Shared, sent: rustix::io::Result<()>) {
    match sent {
        // The request has been taken back, or its filesystem has gone.
        Ok(()) | Err(Errno::NOENT | Errno::NODEV) => (),
        Err(e) => tracing::error!(disk = shared.disk.name, error = %e, "to answer FUSE failed"),
    }
}

fn errno(error: &io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

/// Counts the end of a worker, also if it panics.
struct Ending<'s>(&'s Shared);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        let mut workers = self.0.workers.lock();
        *workers = workers.saturating_sub(1);
        if *workers > 0 {
            return;
        }
        drop(workers);
        if let Err(e) = self.0.disk.finish() {
            tracing::error!(disk = self.0.disk.name, error = %e, "to write the cache back failed");
        }
        self.0.later.close();
        *self.0.has_ended.lock() = true;
        self.0.end.notify_all();
    }
}
