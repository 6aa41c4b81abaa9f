//! What is left of a node once its container has ended.

use super::*;
use crate::kernel::LoopSpec;

/// Attaches a device over a volume's, as kubelet does for each raw block volume of a pod.
fn attach_as_kubelet(m: &Machine, id: VolumeId) {
    let opened = m.kernel.loop_reopen(&m.o.device(id)).unwrap();
    let attached = m.kernel.loop_attach(&LoopSpec {
        backing: &opened.file,
        label: "/kubelet/volumeDevices/pvc-1/dev/pod",
        read_only: false,
        direct_io: false,
        autoclear: false,
        minor: None,
    });
    attached.unwrap();
}

/// A raw block volume's pod has a device of its kubelet, which nothing detaches once that is gone.
#[test]
fn the_device_of_a_kubelet_that_is_gone_holds_no_volume() {
    let mut m = Machine::new();
    let capability = block_as(Mode::SingleNodeWriter);
    let id = m.o.create(Access::Block, BYTES);
    let context = m.o.attach(id, "u", &capability).unwrap();
    m.u.use_it(id, &context, &capability).unwrap();
    attach_as_kubelet(&m, id);
    m.u.die();
    refused!(m.o.detach(id, "u"), Error::FailedPrecondition(_));
    // One for the volume, the pin and that of kubelet.
    assert_eq!(m.devices(), 3, "as long as the container lives, all stays");
    m.u.site.kernel.end();
    certainly(|| m.o.detach(id, "u"));
    assert_eq!(m.o.loops(id), []);
    let loops = m.kernel.loops().unwrap();
    assert_eq!(loops.len(), 2, "two markers: {loops:?}");
    let context = m.o.attach(id, "w", &capability).unwrap();
    m.w.use_it(id, &context, &capability).unwrap();
    m.w.end_use(id).unwrap();
    m.o.detach(id, "w").unwrap();
}
