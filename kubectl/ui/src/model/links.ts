/** What a Kubernetes object refers to, as keys under which it can be found. */

import { fields, list, text, type Fields } from "./json.ts";

export const claimName = (namespace: string, name: string) => `claim ${namespace}/${name}`;
export const claimUid = (uid: string) => `claim uid ${uid}`;
export const volumeName = (name: string) => `pv ${name}`;
export const handle = (id: string) => `handle ${id}`;
export const snapshotUid = (uid: string) => `snapshot uid ${uid}`;
export const groupUid = (uid: string) => `group uid ${uid}`;
export const objectUid = (uid: string) => `uid ${uid}`;

/** The keys of an object. A key with an empty name is left out. */
export function links(kind: string, object: Fields): string[] {
  const namespace = text(object, "metadata", "namespace");
  const keys: string[] = [];
  const add = (name: string, key: string) => {
    if (name !== "") keys.push(key);
  };
  switch (kind) {
    case "PersistentVolume": {
      const id = text(object, "spec", "csi", "volumeHandle");
      add(id, handle(id));
      const uid = text(object, "spec", "claimRef", "uid");
      add(uid, claimUid(uid));
      break;
    }
    case "VolumeAttachment": {
      const name = text(object, "spec", "source", "persistentVolumeName");
      add(name, volumeName(name));
      break;
    }
    case "Pod":
      for (const name of podClaims(object)) add(name, claimName(namespace, name));
      break;
    case "VolumeSnapshot": {
      const name = text(object, "spec", "source", "persistentVolumeClaimName");
      add(name, claimName(namespace, name));
      for (const owner of list(object, "metadata", "ownerReferences")) {
        const uid = text(owner, "kind") === "VolumeGroupSnapshot" ? text(owner, "uid") : "";
        add(uid, groupUid(uid));
      }
      break;
    }
    case "VolumeSnapshotContent": {
      const uid = text(object, "spec", "volumeSnapshotRef", "uid");
      add(uid, snapshotUid(uid));
      const id = text(object, "status", "snapshotHandle");
      add(id, handle(id));
      break;
    }
    case "VolumeGroupSnapshotContent": {
      const uid = text(object, "spec", "volumeGroupSnapshotRef", "uid");
      add(uid, groupUid(uid));
      break;
    }
    case "Event": {
      const subject = fields(object, "involvedObject");
      const uid = text(subject, "uid") || text(object, "regarding", "uid");
      add(uid, objectUid(uid));
      break;
    }
    default:
  }
  return keys;
}

/** The names of the claims that a pod uses, those of generic ephemeral volumes included. */
export function podClaims(pod: Fields): string[] {
  const names: string[] = [];
  for (const volume of list(pod, "spec", "volumes")) {
    const name = text(volume, "persistentVolumeClaim", "claimName");
    if (name !== "") names.push(name);
    else if (Object.hasOwn(fields(volume), "ephemeral")) {
      names.push(`${text(pod, "metadata", "name")}-${text(volume, "name")}`);
    }
  }
  return names;
}
