use super::*;

/// What an attach at the minor returns: the minor, or an error with this number.
fn at(minor: u32, errno: i32) -> Result<u32> {
    if errno == 0 {
        Ok(minor)
    } else {
        Err(Error::errno("LOOP_CONFIGURE", loop_path(minor), errno))
    }
}

#[test]
fn a_busy_device_is_tried_once_and_then_the_next_one() {
    use libc::{EBUSY, EIO, ENXIO};
    // The kernel offers 3. Minors that are not entered; the answers at the others, in the order in
    // which they are tried first (the last one for all further minors) → the minors tried.
    let table: [(&[u32], &[i32], &[u32]); 8] = [
        (&[], &[0], &[3]),
        (&[3, 4], &[0], &[5]),
        (&[], &[EBUSY, 0], &[3, 4]),
        (&[], &[ENXIO, 0], &[3, 4]),
        (&[4], &[EBUSY, EBUSY, ENXIO, 0], &[3, 5, 6, 7]),
        (&[], &[EIO, 0], &[3]),
        (&[], &[EBUSY, EIO, 0], &[3, 4]),
        (&[3], &[EBUSY], &(4..4 + ATTEMPTS).collect::<Vec<_>>()),
    ];
    for (taken, answers, expected) in table {
        let (mut tried, mut last) = (Vec::new(), 0);
        let enter = |minor| (!taken.contains(&minor)).then_some(());
        let attach = |minor: u32| {
            tried.push(minor);
            // A busy device stays busy.
            let first = tried.iter().position(|before| *before == minor).unwrap();
            last = *answers.get(first).or(answers.last()).unwrap();
            at(minor, last)
        };
        let attached = first_free(|| Ok(3), enter, attach);
        assert_eq!(tried, expected, "{taken:?} {answers:?}");
        match attached {
            Ok((minor, at)) => assert_eq!((minor, at, last), (tried[tried.len() - 1], minor, 0)),
            Err(e) => assert_ne!(last, 0, "{taken:?} {answers:?}: {e}"),
        }
    }
}
