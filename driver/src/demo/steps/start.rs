//! The driver comes up, says what it has, and dies and comes back.

use hostloop_proto::csi;
use hostloop_proto::csi::controller_client::ControllerClient;
use hostloop_proto::csi::identity_client::IdentityClient;
use hostloop_proto::csi::node_client::NodeClient;

use crate::status::units::bytes;

use crate::demo::child::Driver;
use crate::demo::error::{Error, Result};
use crate::demo::orchestrator::{Want, size};
use crate::demo::pod;
use crate::demo::world::World;

/// Starts the driver and asks who it is.
pub(super) fn start(w: &mut World) -> Result<()> {
    let driver = Driver::start(&w.tree, &w.pool_word)?;
    let pid = driver.pid();
    w.driver = Some(driver);
    let info = w.call("GetPluginInfo", "", async |channel| {
        let request = csi::GetPluginInfoRequest {};
        IdentityClient::new(channel).get_plugin_info(request).await
    })?;
    let capabilities = w.call("ControllerGetCapabilities", "", async |channel| {
        let request = csi::ControllerGetCapabilitiesRequest {};
        ControllerClient::new(channel)
            .controller_get_capabilities(request)
            .await
    })?;
    let node = w.call("NodeGetInfo", "", async |channel| {
        let request = csi::NodeGetInfoRequest {};
        NodeClient::new(channel).node_get_info(request).await
    })?;
    w.narrator.fact(
        "driver",
        format!("{} {} (pid {pid})", info.name, info.vendor_version),
    );
    let topology = node.accessible_topology.clone().unwrap_or_default();
    let segments = topology.segments.iter().map(|(k, v)| format!("{k}={v}"));
    let segments: Vec<String> = segments.collect();
    w.narrator
        .fact("node", format!("{}, {}", node.node_id, segments.join(", ")));
    let n = capabilities.capabilities.len();
    w.narrator.fact(
        "can",
        format!("{n} of the controller's optional capabilities"),
    );
    w.driver_name = info.name;
    w.topology = node.accessible_topology;
    probe(w)?;
    w.look()
}

fn probe(w: &mut World) -> Result<()> {
    let ready = w.call("Probe", "", async |channel| {
        IdentityClient::new(channel)
            .probe(csi::ProbeRequest {})
            .await
    })?;
    w.narrator.check("it is ready", ready.ready != Some(false));
    Ok(())
}

/// What can be promised.
pub(super) fn capacity(w: &mut World) -> Result<()> {
    let request = csi::GetCapacityRequest {
        volume_capabilities: vec![w.capability(&Want::default())],
        accessible_topology: w.topology.clone(),
        ..csi::GetCapacityRequest::default()
    };
    let answer = w.call("GetCapacity", "", async |channel| {
        ControllerClient::new(channel).get_capacity(request).await
    })?;
    let available = size(answer.available_capacity);
    let mut text = format!("{} can be promised", bytes(available));
    if let Some(largest) = answer.maximum_volume_size {
        text += &format!(", {} to one volume", bytes(size(largest)));
    }
    if let Some(smallest) = answer.minimum_volume_size {
        text += &format!(", no volume below {}", bytes(size(smallest)));
    }
    w.narrator.fact("room", text);
    w.narrator
        .check("the demo's volumes fit", available >= w.setup.bytes * 10);
    Ok(())
}

/// Kills the driver, uses the volume without one, and starts another.
pub(super) fn kill(w: &mut World) -> Result<()> {
    let before = w.see()?;
    let (count, first) = (w.volumes.len(), w.driver.as_ref().map(Driver::pid));
    if let Some(driver) = &mut w.driver {
        driver.kill()?;
    }
    w.narrator.fact("signal", "SIGKILL");
    let data = w.volume("data")?.target()?.join("without-a-driver");
    let digest = pod::write_random(&data, 0, 1 << 20)?;
    let same = pod::checksum(&data, None)? == digest;
    w.narrator
        .check("the pod writes and reads without a driver", same);
    let kept = w
        .see()?
        .since(&before)
        .iter()
        .all(|c| c.now.is_some() && c.before.is_some());
    w.narrator
        .check("every mount and loop device is still there", kept);
    w.driver = Some(Driver::start(&w.tree, &w.pool_word)?);
    w.client.reconnect(&w.tree)?;
    let second = w.driver.as_ref().map(Driver::pid);
    w.narrator
        .check("another driver has taken over", first != second);
    probe(w)?;
    let request = csi::ListVolumesRequest::default();
    let list = w.call("ListVolumes", "", async |channel| {
        ControllerClient::new(channel).list_volumes(request).await
    })?;
    let ids = list
        .entries
        .into_iter()
        .filter_map(|e| Some(e.volume?.volume_id));
    let known = ids
        .filter(|id| w.volumes.values().any(|v| v.id == *id))
        .count();
    w.narrator
        .check(format!("it knows all {count} volumes"), known == count);
    std::fs::remove_file(&data).map_err(Error::io("unlink", &data))?;
    w.look()
}
