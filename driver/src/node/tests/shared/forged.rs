//! A forged marker: a user of a read-only raw block volume can put a file of any name behind its device,
//! and /sys shows the nonces of all nodes in every pod.

use std::fs::File;

use super::*;
use crate::kernel::LoopSpec;
use crate::reach::markers::Marker;
use crate::reach::pins;

#[test]
fn a_forged_marker_frees_no_device_of_another_node() {
    let m = Machine::new();
    let id = m.o.create(ext4(), BYTES);
    let context = m.o.attach(id, "w", &single()).unwrap();
    m.w.use_it(id, &context, &single()).unwrap();
    let minor = m.o.device(id).minor;
    let held = pins::of(&m.kernel.loops().unwrap());
    let forged = Marker {
        kernel: "kernel".to_owned(),
        node: "u".to_owned(),
        nonce: held[0].nonce.clone(),
    };
    let file = File::create_new(m.o.site.root().join(forged.file_name())).unwrap();
    file.set_len(MI).unwrap();
    let device = m.kernel.loop_attach(&LoopSpec {
        backing: &file,
        label: "anything",
        offset: 0,
        read_only: true,
        direct_io: false,
        autoclear: true,
        minor: None,
    });
    let device = device.unwrap();

    refused!(
        m.u.stage(id, &context, &single()),
        Error::FailedPrecondition(_)
    );
    m.u.unstage(id).unwrap();
    assert_eq!(m.o.pins_over(minor), 1);
    refused!(m.o.detach(id, "w"), Error::FailedPrecondition(_));

    // The node itself gives its pin back, and only the forged marker held anything.
    m.w.end_use(id).unwrap();
    assert_eq!(m.o.pins_over(minor), 0);
    drop(device);
    m.o.detach(id, "w").unwrap();
    m.assert_unused(id, "detached");
}
