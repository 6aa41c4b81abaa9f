use super::*;

fn fault(kind: FaultKind, seconds: Option<u64>, seed: u64) -> ClaimFault {
    ClaimFault {
        kind,
        file: None,
        lasts: seconds.map(Duration::from_secs),
        seed,
    }
}

fn taken(only: Operation, share_ppm: u32) -> DiskOperations {
    DiskOperations {
        only: Some(only),
        share_ppm,
    }
}

#[test]
fn faults_are_read_and_written() {
    use FaultKind::*;
    for (text, expected, written) in [
        ("gone", fault(Gone, Some(600), 0), "gone,for=600s"),
        (
            "gone,for=24h",
            fault(Gone, Some(86400), 0),
            "gone,for=86400s",
        ),
        (
            "gone, seed=7",
            fault(Gone, Some(600), 7),
            "gone,for=600s,seed=7",
        ),
        (
            "eio-from=1Gi,for=5m",
            fault(EioFrom(1 << 30), Some(300), 0),
            "eio-from=1073741824,for=300s",
        ),
        ("powercut", fault(Powercut, None, 0), "powercut"),
        (
            "powercut,seed=2",
            fault(Powercut, None, 2),
            "powercut,seed=2",
        ),
        ("frozen", fault(Frozen, Some(30), 0), "frozen,for=30s"),
        (
            "frozen,for=5m",
            fault(Frozen, Some(300), 0),
            "frozen,for=300s",
        ),
        ("full", fault(Full, Some(600), 0), "full,for=600s"),
        (
            "readonly",
            fault(ReadOnly, Some(600), 0),
            "readonly,for=600s",
        ),
        (
            "eio",
            fault(Eio(DiskOperations::ALL), Some(600), 0),
            "eio,for=600s",
        ),
        (
            "enospc,share=0.1,op=write,for=5m,seed=3",
            fault(NoSpace(taken(Operation::Write, 100_000)), Some(300), 3),
            "enospc,op=write,share=0.1,for=300s,seed=3",
        ),
        (
            "slow=20ms,op=flush",
            fault(
                Slow(Duration::from_millis(20), taken(Operation::Flush, WHOLE)),
                Some(600),
                0,
            ),
            "slow=0.02s,op=flush,for=600s",
        ),
        (
            "slow=30s",
            fault(Slow(MAX_DELAY, DiskOperations::ALL), Some(30), 0),
            "slow=30s,for=30s",
        ),
        (
            "powercut,loss=torn-sectors,seed=2",
            fault(DiskCut(Loss::TornSectors), None, 2),
            "powercut,loss=torn-sectors,seed=2",
        ),
    ] {
        let read = ClaimFault::parse(text).unwrap();
        assert_eq!(read, expected, "{text:?}");
        assert_eq!(read.to_string(), written);
        assert_eq!(ClaimFault::parse(written), Ok(expected));
    }
    let short = ClaimFault::parse("gone,for=1500ms").unwrap();
    assert_eq!(short.to_string(), "gone,for=1.5s");
}

#[test]
fn a_fault_of_a_file_is_read_and_written() {
    for (text, path, bytes, written) in [
        (
            "eio,file=data/log",
            "data/log",
            None,
            "eio,file=data/log,for=600s",
        ),
        (
            "slow=20ms, range=4Ki-1Mi, file=a b, op=read",
            "a b",
            Some(4096..1 << 20),
            "slow=0.02s,op=read,file=a b,range=4096-1048576,for=600s",
        ),
        (
            "enospc,file=x=y,for=5m,seed=3",
            "x=y",
            None,
            "enospc,file=x=y,for=300s,seed=3",
        ),
    ] {
        let read = ClaimFault::parse(text).unwrap();
        let expected = FilePart {
            path: path.to_owned(),
            bytes,
        };
        assert_eq!(read.file.as_ref(), Some(&expected), "{text}");
        assert_eq!(read.to_string(), written);
        assert_eq!(ClaimFault::parse(written), Ok(read));
    }
}

/// The driver records the written form, and reads it again.
#[test]
fn the_longest_fault_can_be_read_again() {
    let fault = ClaimFault {
        kind: FaultKind::Slow(
            Duration::new(29, 999_999_999),
            taken(Operation::Discard, 999_999),
        ),
        file: Some(FilePart {
            path: "a".repeat(100),
            bytes: Some(i64::MAX as u64 - 1..i64::MAX as u64),
        }),
        lasts: Some(Duration::new(299, 999_999_999)),
        seed: u64::MAX,
    };
    assert_eq!(ClaimFault::parse(&fault.to_string()), Ok(fault));
}

#[test]
fn every_word_begins_a_fault() {
    for word in FaultKind::WORDS {
        let value = match word {
            "eio-from=" => "4Ki",
            "slow=" => "1ms",
            _ => "",
        };
        let fault = ClaimFault::parse(&format!("{word}{value}")).unwrap();
        assert_eq!(fault.kind.name(), word.trim_end_matches('='));
    }
}

#[test]
fn messages_name_a_fault_as_it_is_written() {
    for (text, message, is_named) in [
        (
            "gone",
            "The volume has the fault gone,for=600s, which",
            true,
        ),
        ("gone", "gets the fault gone,for=600s once a pod", true),
        ("gone,for=5m", "The fault gone,for=600s has ended", false),
        ("gone", "The fault gone,for=600s,seed=1 has ended", false),
        ("gone,seed=1", "the fault gone,for=600s,seed=1: no", true),
        ("gone,seed=1", "the fault gone,for=600s,seed=12: no", false),
        ("powercut", "has had the fault powercut: delete", true),
        (
            "powercut",
            "has had the fault powercut,seed=1: delete",
            false,
        ),
        (
            "powercut",
            "has had the fault powercut,loss=all: delete",
            false,
        ),
        (
            "powercut,loss=all",
            "has had the fault powercut,loss=all: delete",
            true,
        ),
        (
            "powercut",
            "The annotation hostloop.csi.dev/fault has no effect",
            false,
        ),
    ] {
        let fault = ClaimFault::parse(text).unwrap();
        assert_eq!(fault.is_named_in(message), is_named, "{text}: {message}");
    }
}

#[test]
fn errors_name_the_field_and_the_reason() {
    let long = format!("gone,seed={}", "1".repeat(300));
    for (text, error) in [
        ("", "unknown fault \"\"; there are gone"),
        ("Gone", "unknown fault \"Gone\""),
        ("gone=1", "unknown fault \"gone=1\""),
        ("eio-from", "unknown fault \"eio-from\""),
        (
            "eio-from=0",
            "eio-from: \"0\" is not a positive multiple of 4096",
        ),
        (
            "eio-from=1000",
            "eio-from: \"1000\" is not a positive multiple",
        ),
        ("eio-from=-4Ki", "eio-from: \"-4Ki\" is not a size"),
        ("eio-from=much", "eio-from: \"much\" is not a size"),
        ("gone,", "unknown field \"\""),
        ("gone,speed=3", "unknown field \"speed=3\"; there are for"),
        ("gone,for", "unknown field \"for\""),
        ("gone,for=5", "for: \"5\" is not a duration"),
        ("gone,for=0s", "for: \"0s\" lasts for an instant only"),
        ("gone,for=25h", "for: \"25h\" is longer than 86400 s"),
        ("frozen,for=6m", "for: \"6m\" is longer than 300 s"),
        ("slow", "unknown fault \"slow\""),
        ("slow=0s", "slow: \"0s\" is not from 1 µs to 30 s"),
        ("slow=31s", "slow: \"31s\" is not from 1 µs to 30 s"),
        ("slow=5", "slow: \"5\" is not a duration"),
        ("slow=2s,for=6m", "for: \"6m\" is longer than 300 s"),
        ("eio,op=seek", "op: \"seek\" is none of read"),
        ("eio,share=0", "share: \"0\" is not a number above 0"),
        ("eio,share=1.5", "share: \"1.5\" is not a number above 0"),
        ("eio,share=-1", "share: \"-1\" is not a number above 0"),
        ("eio,share=1,share=1", "share: it is there twice"),
        ("gone,op=read", "unknown field \"op=read\""),
        ("gone,file=a", "unknown field \"file=a\""),
        ("powercut,file=a", "unknown field \"file=a\""),
        ("eio,file=/a", "file: \"/a\" is not a path from the root"),
        ("eio,file=a,file=b", "file: it is there twice"),
        ("eio,range=0-1", "range: it is of a file"),
        ("eio,file=a,range=5", "range: \"5\" is not two sizes"),
        ("eio,file=a,range=5-5", "range: \"5-5\" has no bytes"),
        ("eio,file=a,op=flush", "op: \"flush\" is of the whole disk"),
        ("frozen,loss=all", "unknown field \"loss=all\""),
        ("powercut,loss=none", "loss: \"none\" is none of all"),
        (
            "powercut,for=1s",
            "for: \"1s\" has no meaning: powercut happens",
        ),
        ("gone,for=1m,for=1m", "for: it is there twice"),
        ("gone,seed=1,seed=2", "seed: it is there twice"),
        ("gone,seed=+1", "seed: \"+1\" is not a whole number"),
        ("gone,seed=", "seed: \"\" is not a whole number"),
        (&long, "it has more than 256 bytes"),
    ] {
        let found = ClaimFault::parse(text).unwrap_err().to_string();
        assert!(found.starts_with(error), "{text:?}: {found}");
    }
}
