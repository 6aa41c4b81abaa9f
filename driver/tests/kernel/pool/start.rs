//! Starting with many volumes.

use hostloop_driver::storage::{Provisioning, VolumeId};

use super::support::*;

const MANY: usize = 10_000;

#[test]
fn ten_thousand_volumes_are_opened() {
    let mut world = World::new(&["p=DIR/p"]);
    world.open();
    let made = world.create(thin("0", MI));
    let volumes = world.path("volumes");
    let record = volumes.join(format!("{}/volume.json", made.id));
    let record = std::fs::read_to_string(record).unwrap();
    for i in 1..MANY {
        let id = VolumeId::generate(made.id.pool());
        let entry = volumes.join(id.to_string());
        std::fs::create_dir(&entry).unwrap();
        let text = record.replace(&made.id.to_string(), &id.to_string());
        let text = text.replace("\"name\": \"0\"", &format!("\"name\": \"{i}\""));
        std::fs::write(entry.join("volume.json"), text).unwrap();
        let image = std::fs::File::create(entry.join("image")).unwrap();
        image.set_len(MI).unwrap();
    }
    world.close();
    world.open();
    assert_eq!(world.pools().volumes().len(), MANY);
    assert!(world.pools().noted_problems().is_empty());
    world.available(Provisioning::Thin);
}
