use super::*;

fn image(id: &str, source: &str, allocated: u64, written_ns: u64) -> Image {
    let source = Some(source.to_owned()).filter(|source| !source.is_empty());
    Image {
        id: id.to_owned(),
        source,
        allocated,
        written_ns: Some(written_ns),
    }
}

/// A map with this many runs.
fn map(id: &str, runs: usize) -> ImageMap {
    let run = ReportedRun {
        offset: 0,
        len: 1,
        physical: 0,
        shared: false,
    };
    ImageMap {
        id: id.to_owned(),
        extents: Some(vec![run; runs]),
        problem: None,
    }
}

/// Answers all that is due. Returns the IDs in order.
fn read(maps: &mut BlockMaps, node: &str) -> Vec<String> {
    let mut due = maps.due(node);
    maps.answered(node, &due, due.iter().map(|id| map(id, 1)).collect());
    due.sort();
    due
}

#[test]
fn a_map_is_read_if_it_may_differ() {
    let data = || image("data", "", 1, 1);
    let snapshot = || image("monday", "data", 1, 1);
    let restored = || image("restored", "monday", 1, 1);
    let other = || image("other", "", 1, 1);
    // The images of a report, those of the next one, and the maps that are read then and after it.
    for (before, now, first, second) in [
        (vec![data(), other()], vec![data(), other()], vec![], vec![]),
        (
            vec![data(), other()],
            vec![image("data", "", 2, 1), other()],
            vec!["data"],
            vec![],
        ),
        (
            vec![data(), other()],
            vec![image("data", "", 1, 2), other()],
            vec!["data"],
            vec![],
        ),
        // A write splits what was shared with relatives.
        (
            vec![data(), snapshot(), other()],
            vec![image("data", "", 1, 2), snapshot(), other()],
            vec!["data", "monday"],
            vec![],
        ),
        // A copy shares blocks of its source from now on.
        (
            vec![data(), other()],
            vec![data(), snapshot(), other()],
            vec!["data", "monday"],
            vec![],
        ),
        // Its end leaves them to the relatives, once they are freed.
        (
            vec![data(), snapshot(), restored(), other()],
            vec![data(), restored(), other()],
            vec!["data", "restored"],
            vec!["data", "restored"],
        ),
        (
            vec![image("a", "gold", 1, 1), image("b", "gold", 1, 1), other()],
            vec![image("b", "gold", 1, 1), other()],
            vec!["b"],
            vec!["b"],
        ),
    ] {
        let mut maps = BlockMaps::default();
        let all = before.len();
        maps.see("n", before.clone());
        assert_eq!(
            read(&mut maps, "n").len(),
            all,
            "each image has a map at first"
        );
        maps.see("n", now.clone());
        assert_eq!(read(&mut maps, "n"), first, "{before:?}, {now:?}");
        maps.see("n", now.clone());
        assert_eq!(read(&mut maps, "n"), second, "{before:?}, {now:?}");
        maps.see("n", now);
        assert!(read(&mut maps, "n").is_empty());
    }
}

#[test]
fn a_request_is_bounded_and_all_images_get_their_turn() {
    let mut maps = BlockMaps::default();
    let busy = |time| {
        (0..100)
            .map(|n| image(&format!("{n:03}"), "", 1, time))
            .collect::<Vec<_>>()
    };
    let mut asked = BTreeMap::new();
    for look in 1..=25 {
        maps.see("n", busy(look));
        let due = read(&mut maps, "n");
        assert_eq!(due.len(), AT_ONCE);
        due.into_iter()
            .for_each(|id| *asked.entry(id).or_insert(0) += 1);
    }
    assert_eq!(
        (asked.len(), asked.values().sum::<usize>()),
        (100, 25 * AT_ONCE)
    );
    assert!(
        asked.values().all(|times| (15..=17).contains(times)),
        "{asked:?}"
    );
}

#[test]
fn what_an_answer_lacks_stays_due_and_a_problem_is_not_asked_for_again() {
    let mut maps = BlockMaps::default();
    maps.see(
        "n",
        vec![
            image("a", "", 1, 1),
            image("b", "", 1, 1),
            image("c", "", 1, 1),
        ],
    );
    let due = maps.due("n");
    let problem = |id: &str| ImageMap {
        extents: None,
        problem: Some("why".into()),
        ..map(id, 0)
    };
    let sent = maps.answered("n", &due, vec![map("a", 2), problem("b")]);
    assert_eq!(
        sent.iter().map(|(id, _)| id.as_str()).collect::<Vec<_>>(),
        ["a"]
    );
    assert_eq!(maps.due("n"), ["c"]);
    // The request failed.
    maps.answered("n", &["c".to_owned()], vec![]);
    assert_eq!(maps.due("n"), ["c"]);
    assert!(maps.due("another").is_empty());
}

#[test]
fn a_map_is_sent_only_if_it_differs_and_ends_with_its_image() {
    let mut maps = BlockMaps::default();
    let mut changed = |time, runs| {
        maps.see("n", vec![image("a", "", 1, time)]);
        let due = maps.due("n");
        maps.answered("n", &due, vec![map("a", runs)]).len()
    };
    assert_eq!(
        [changed(1, 2), changed(2, 2), changed(3, 3), changed(4, 3)],
        [1, 0, 1, 0]
    );
    maps.see("n", vec![image("a", "", 1, 4), image("b", "", 1, 1)]);
    assert_eq!(maps.see("n", vec![]), ["a"], "b has no map");
    maps.see("n", vec![image("a", "", 1, 4)]);
    maps.keep(&BTreeSet::from(["m"]));
    assert!(maps.due("n").is_empty());
}

#[test]
fn further_images_have_no_map_once_all_maps_are_large() {
    let mut maps = BlockMaps::default();
    maps.see("n", vec![image("a", "", 1, 1), image("b", "", 1, 1)]);
    maps.see("m", vec![image("c", "", 1, 1)]);
    maps.answered("n", &["a".to_owned()], vec![map("a", ROOM)]);
    assert_eq!(
        (maps.due("n"), maps.due("m"), maps.left_out()),
        (vec![], vec![], 2)
    );
    // What has a map keeps it up to date.
    maps.see("n", vec![image("a", "", 2, 1), image("b", "", 1, 1)]);
    assert_eq!(maps.due("n"), ["a"]);
    maps.see("n", vec![image("b", "", 1, 1)]);
    assert_eq!(
        (maps.due("n"), maps.due("m"), maps.left_out()),
        (vec!["b".into()], vec!["c".into()], 0)
    );
}
