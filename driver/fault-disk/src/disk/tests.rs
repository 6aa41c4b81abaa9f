use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use rstest::rstest;

use super::*;
use crate::rules::Effect;
use crate::write_cache::SMALLEST;

const SIZE: u64 = 4 << 20;

/// A disk over an image with bytes of 1, and the image.
fn disk(cache_bytes: usize, settings: Settings) -> (Disk, File) {
    let image = tempfile::tempfile().unwrap();
    image.write_all_at(&vec![1; SIZE as usize], 0).unwrap();
    let other = image.try_clone().unwrap();
    let disk = Disk::new("vol-a".to_owned(), image, cache_bytes, settings).unwrap();
    (disk, other)
}

/// A time that only a failing test waits for.
fn later() -> Instant {
    Instant::now() + Duration::from_secs(120)
}

fn block(byte: u8) -> AlignedBuffer {
    let mut block = AlignedBuffer::new(ALIGNMENT);
    block.fill(byte);
    block
}

/// The byte of a block, all of which are the same.
fn byte_of(image: &File, offset: u64) -> u8 {
    let mut bytes = vec![0; ALIGNMENT];
    image.read_exact_at(&mut bytes, offset).unwrap();
    assert!(bytes.iter().all(|byte| *byte == bytes[0]));
    bytes[0]
}

fn read(disk: &Disk, offset: u64) -> u8 {
    let mut block = block(9);
    disk.read(&mut block, offset).unwrap();
    assert!(block.iter().all(|byte| *byte == block[0]));
    block[0]
}

#[rstest]
#[case::without_a_cache(0, 2)]
#[case::with_a_cache(SMALLEST, 1)]
fn a_write_reaches_the_image(#[case] cache_bytes: usize, #[case] before_the_flush: u8) {
    let (disk, image) = disk(cache_bytes, Settings::default());
    disk.write(&block(2), 4096).unwrap();
    assert_eq!(byte_of(&image, 4096), before_the_flush);
    assert_eq!((read(&disk, 0), read(&disk, 4096)), (1, 2));
    disk.zero(8192, 4096, Zeroing::Punch).unwrap();
    assert_eq!(read(&disk, 8192), 0);
    disk.flush().unwrap();
    let all = [0, 4096, 8192, 12_288].map(|offset| byte_of(&image, offset));
    assert_eq!(all, [1, 2, 0, 1]);
}

#[test]
fn a_small_cache_writes_back_its_oldest() {
    let (disk, image) = disk(SMALLEST, Settings::default());
    let blocks = SMALLEST as u64 / 4096 + 10;
    for number in 0..blocks {
        disk.write(&block(7), number * 4096 % SIZE).unwrap();
    }
    let written = (0..10).filter(|number| byte_of(&image, number * 4096) == 7);
    assert_eq!(written.count(), 10);
    assert_eq!(byte_of(&image, 10 * 4096), 1);
    disk.finish().unwrap();
    assert_eq!(byte_of(&image, 10 * 4096), 7);
}

#[rstest]
#[case::all(Loss::All)]
#[case::some(Loss::Some)]
#[case::blocks(Loss::TornBlocks)]
#[case::sectors(Loss::TornSectors)]
fn a_power_cut_loses_what_is_not_flushed(#[case] loss: Loss) {
    let (disk, image) = disk(SMALLEST, Settings::default());
    disk.write(&block(2), 0).unwrap();
    disk.flush().unwrap();
    for number in 1..=100 {
        disk.write(&block(3), number * 4096).unwrap();
    }
    let report = cut_power(&[&disk, &disk], later(), loss, 5).unwrap();
    assert_eq!(report.len(), 1, "a disk has one power cut");
    assert_eq!(report[0].unflushed, 100);

    let mut bytes = vec![0; 101 * 4096];
    image.read_exact_at(&mut bytes, 0).unwrap();
    assert!(
        bytes[..4096].iter().all(|byte| *byte == 2),
        "it was flushed"
    );
    let sectors = |of: &[u8]| of.chunks(512).filter(|sector| sector[0] == 3).count();
    let kept: Vec<usize> = bytes[4096..].chunks(4096).map(sectors).collect();
    let whole = kept.iter().filter(|sectors| **sectors == 8).count();
    let in_parts = kept
        .iter()
        .filter(|sectors| (1..8).contains(*sectors))
        .count();
    match loss {
        Loss::All => assert_eq!((whole, in_parts), (0, 0)),
        Loss::Some => assert!((30..70).contains(&whole) && in_parts == 0, "{kept:?}"),
        Loss::TornBlocks => assert!((20..60).contains(&whole) && in_parts == 0, "{kept:?}"),
        Loss::TornSectors => assert!(whole > 10 && in_parts > 10, "{kept:?}"),
    }
    let untouched = kept.iter().filter(|sectors| **sectors == 0).count();
    assert!(report[0].lost <= untouched, "{report:?}");
    assert!(report[0].torn >= in_parts, "{report:?}");

    // Nothing works any more, and nothing reaches the image.
    assert!(disk.write(&block(4), 0).is_err());
    assert!(disk.read(&mut block(0), 0).is_err());
    assert!(disk.flush().is_err());
    disk.finish().unwrap();
    assert_eq!(byte_of(&image, 0), 2);
}

#[test]
fn a_seed_repeats_a_power_cut() {
    fn after(seed: u64) -> Vec<u8> {
        let (disk, image) = disk(SMALLEST, Settings::default());
        for number in 0..200_u64 {
            let byte = (number % 50) as u8 + 2;
            disk.write(&block(byte), number * 7 % 64 * 4096).unwrap();
        }
        cut_power(&[&disk], later(), Loss::TornSectors, seed).unwrap();
        let mut bytes = vec![0; 64 * 4096];
        image.read_exact_at(&mut bytes, 0).unwrap();
        bytes
    }
    assert!(after(5) == after(5));
    assert!(after(5) != after(6));
}

/// Writers write the same number to one disk and then to the other one. Neither may have a number
/// that is later by more than the write under way.
#[test]
fn disks_lose_power_at_one_instant() {
    for round in 0..20 {
        let (first, first_image) = disk(0, Settings::default());
        let (second, second_image) = disk(0, Settings::default());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for number in 2..=u8::MAX {
                    let written = first
                        .write(&block(number), 0)
                        .and_then(|()| second.write(&block(number), 0));
                    if written.is_err() {
                        return;
                    }
                }
            });
            std::thread::sleep(Duration::from_micros(100 * round));
            let disks = if round.is_multiple_of(2) {
                [&first, &second]
            } else {
                [&second, &first]
            };
            cut_power(&disks, later(), Loss::All, 0).unwrap();
        });
        let (one, two) = (byte_of(&first_image, 0), byte_of(&second_image, 0));
        assert!(one == two || one == two + 1, "{one} and {two}");
    }
}

/// The images of disks that are held have what a power cut of all of them would leave. Afterwards the
/// disks go on.
#[rstest]
fn disks_are_held_at_one_instant(#[values(0, SMALLEST)] cache_bytes: usize) {
    for round in 0..20 {
        let (first, first_image) = disk(cache_bytes, Settings::default());
        let (second, second_image) = disk(cache_bytes, Settings::default());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for number in 2..=u8::MAX {
                    first.write(&block(number), 0).unwrap();
                    second.write(&block(number), 0).unwrap();
                }
            });
            std::thread::sleep(Duration::from_micros(100 * round));
            let disks = if round.is_multiple_of(2) {
                [&first, &second]
            } else {
                [&second, &first]
            };
            let found = || (byte_of(&first_image, 0), byte_of(&second_image, 0));
            let (before, after) = hold(&disks, later(), || {
                let before = found();
                std::thread::sleep(Duration::from_millis(2));
                (before, found())
            })
            .unwrap();
            assert_eq!(before, after, "nothing writes meanwhile");
            let (one, two) = before;
            assert!(one == two || one == two + 1, "{one} and {two}");
        });
        assert_eq!((read(&first, 0), read(&second, 0)), (u8::MAX, u8::MAX));
    }
}

#[test]
fn a_disk_without_power_or_with_others_is_not_held() {
    let (first, _) = disk(0, Settings::default());
    let (second, _) = disk(0, Settings::default());
    let held = hold(&[&first, &first], later(), || {
        hold(&[&second, &first], Instant::now(), || ())
    });
    let refused = held.unwrap().unwrap_err();
    assert!(matches!(refused, Error::Busy(_)), "{refused}");
    let cut = hold(&[&first], later(), || {
        cut_power(&[&second, &first], Instant::now(), Loss::All, 0)
    });
    let refused = cut.unwrap().unwrap_err();
    assert!(matches!(refused, Error::Busy(_)), "{refused}");
    assert!(!first.is_cut() && !second.is_cut(), "all or none");
    hold(&[&second, &first], later(), || ()).unwrap();
    cut_power(&[&second], later(), Loss::All, 0).unwrap();
    let refused = hold(&[&first, &second], later(), || ()).unwrap_err();
    assert!(matches!(refused, Error::Cut(_)), "{refused}");
    first.write(&block(2), 0).unwrap();
}

#[test]
fn a_disk_that_is_busy_delays_no_other() {
    let (busy, _) = disk(0, Settings::default());
    let (other, _) = disk(0, Settings::default());
    let operation = busy.cache.read();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| hold(&[&busy], later(), || ()));
        // No operation of a disk begins once a call waits for it.
        while busy.cache.try_read().is_some() {
            std::thread::yield_now();
        }
        hold(&[&other], Instant::now(), || ()).unwrap();
        cut_power(&[&other], Instant::now(), Loss::All, 0).unwrap();
        assert!(!waiting.is_finished());
        drop(operation);
        waiting.join().unwrap().unwrap();
    });
}

/// Each of them has another order, so one that locked in it would wait for the next one.
#[test]
fn groups_that_share_disks_take_turns() {
    let [first, second, third] = [(); 3].map(|()| disk(0, Settings::default()).0);
    let groups = [[&first, &second], [&second, &third], [&third, &first]];
    std::thread::scope(|scope| {
        for group in &groups {
            scope.spawn(move || {
                for _ in 0..500 {
                    hold(group, later(), || ()).unwrap();
                }
            });
        }
    });
}

#[test]
fn rules_and_limits_change_while_a_disk_is_in_use() {
    let fails = Settings {
        rules: vec![Rule {
            operations: vec![Operation::Write],
            bytes: Some(vec![0..2048, 2048..4096]),
            share: 1.0,
            effect: Effect::Fail(DiskError::NoSpace),
        }],
        ..Settings::default()
    };
    let (disk, _) = disk(0, fails.clone());
    assert_eq!(disk.settings(), fails);
    let decision = disk.decide(Operation::Write, 0..4096);
    assert_eq!(decision.error, Some(DiskError::NoSpace));
    assert_eq!(decision.due, None);
    assert_eq!(disk.decide(Operation::Write, 4096..8192).error, None);

    let slow = Settings {
        limits: Limits {
            riops: Some(20),
            ..Limits::default()
        },
        ..Settings::default()
    };
    disk.set(slow).unwrap();
    let delays = (0..20).map(|_| disk.decide(Operation::Read, 0..4096).due);
    let due = delays.last().flatten().expect("a limit takes time");
    let wait = due.saturating_duration_since(Instant::now());
    assert!((800..=1000).contains(&wait.as_millis()), "{wait:?}");
    let counts = disk.counts();
    assert_eq!((counts.operations, counts.failed), (22, 1));
    assert!((19..=20).contains(&counts.delayed), "{counts:?}");

    let wrong = Settings {
        limits: Limits {
            riops: Some(0),
            ..Limits::default()
        },
        ..Settings::default()
    };
    assert!(disk.set(wrong).is_err());
    assert_eq!(
        disk.settings().limits.riops,
        Some(20),
        "a mistake changes nothing"
    );
}

fn is_slow(disk: &Disk) -> bool {
    disk.decide(Operation::Read, 0..4096).due.is_some()
}

/// A driver that has died asks for nothing, and can't end them.
#[test]
fn delays_end_without_requests_for_the_disk() {
    let slow = Settings {
        rules: vec![Rule {
            operations: Vec::new(),
            bytes: None,
            share: 1.0,
            effect: Effect::DelayMicros(1_000_000),
        }],
        ..Settings::default()
    };
    let (mut disk, _image) = disk(0, slow.clone());
    assert!(is_slow(&disk));
    disk.made -= LONGEST_UNASKED + Duration::from_secs(1);
    assert!(!is_slow(&disk));
    disk.state();
    assert!(is_slow(&disk), "the same rules");
    disk.made -= LONGEST_UNASKED + Duration::from_secs(1);
    assert!(!is_slow(&disk));
    disk.set(slow).unwrap();
    assert!(is_slow(&disk));
}

#[test]
fn a_disk_grows_with_its_image() {
    let (disk, image) = disk(0, Settings::default());
    image.set_len(2 * SIZE).unwrap();
    assert_eq!(disk.size(), SIZE);
    assert_eq!((disk.grow().unwrap(), disk.size()), (2 * SIZE, 2 * SIZE));
    assert_eq!(read(&disk, SIZE), 0);
}
