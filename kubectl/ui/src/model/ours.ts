/** Which claims and snapshots belong to the driver: the stream has those of all drivers. */

import { text } from "./json.ts";
import { gather, lifeKey, type Life } from "./lives.ts";
import type { State } from "./state.ts";

const DRIVER = "hostloop.csi.dev";

const driverOf = (state: State): string => state.hello?.driver || DRIVER;

/** True if the driver has something to do with the life. */
export function isOurs(life: Life, state: State): boolean {
  if (life.kind === "volume" || life.spans.length > 0) return true;
  return life.kind === "claim" ? isOurClaim(life, state) : isOurSnapshot(life, state);
}

function isOurClaim({ main, objects }: Life, state: State): boolean {
  // Volumes and contents of other drivers are not in the stream.
  if (objects.some((object) => object.kind === "PersistentVolume")) return true;
  const claim = main?.object;
  // Also without the right to see volumes.
  const provisioner = text(claim, "metadata", "annotations", "volume.kubernetes.io/storage-provisioner");
  if (provisioner !== "") return provisioner === driverOf(state);
  if (text(claim, "spec", "volumeName") !== "") return false;
  const name = text(claim, "spec", "storageClassName");
  const storageClass = state.current.get(`StorageClass ${name}`);
  // A class that does not exist may become ours.
  return storageClass ? text(storageClass.object, "provisioner") === driverOf(state) : name !== "";
}

function isOurSnapshot({ kind, main, objects }: Life, state: State): boolean {
  if (objects.some((object) => object.kind.endsWith("Content"))) return true;
  if (text(main?.object, "status", kind === "group" ? "boundVolumeGroupSnapshotContentName" : "boundVolumeSnapshotContentName") !== "") {
    return false;
  }
  const name = text(main?.object, "spec", "source", "persistentVolumeClaimName");
  const claim = state.current.get(`PersistentVolumeClaim ${text(main?.object, "metadata", "namespace")}/${name}`);
  if (!claim) return name === "" && kind === "group";
  const source = gather(state, lifeKey("claim", claim.uid));
  return source !== undefined && isOurs(source, state);
}
