/** The cluster of a live test: its API server, and kubectl for commands in pods. */

import { execFile } from "node:child_process";
import { Agent, request, type RequestOptions } from "node:https";
import { setTimeout as sleep } from "node:timers/promises";
import { promisify } from "node:util";

/** The namespace of the tests' objects. */
export const NAMESPACE = "page";
/** How long the cluster may take for something. */
const PATIENCE_MS = 300_000;

/** A variable of the environment, which `scripts/ui --live` needs. */
export function variable(name: string): string {
  const value = process.env[name];
  if (value === undefined || value === "") throw new Error(`the variable ${name} is missing; scripts/ui --help names them`);
  return value;
}

/** Runs kubectl, and returns what it prints. */
export async function kubectl(...args: string[]): Promise<string> {
  const [program, ...first] = variable("HOSTLOOP_LIVE_KUBECTL").split(" ");
  const { stdout } = await promisify(execFile)(program!, [...first, ...args], { maxBuffer: 64 << 20 });
  return stdout;
}

/** Runs a command in the shell of a pod. */
export const inPod = (pod: string, command: string) => kubectl("exec", "-n", NAMESPACE, pod, "--", "sh", "-c", command);

export interface Meta {
  name: string;
  namespace?: string;
  uid?: string;
}

export interface KubeObject {
  apiVersion: string;
  kind: string;
  metadata: Meta;
  spec?: unknown;
  status?: Record<string, unknown>;
}

/** A connection that stays open: a new kubectl for each request would take longer than what is measured. */
async function connect(): Promise<RequestOptions> {
  const config = JSON.parse(await kubectl("config", "view", "--raw", "--flatten", "-o", "json"));
  const { cluster } = config.clusters[0];
  const { hostname, port } = new URL(cluster.server);
  return {
    host: hostname,
    port,
    ca: Buffer.from(cluster["certificate-authority-data"], "base64"),
    headers: { authorization: `Bearer ${config.users[0].user.token}`, "content-type": "application/json" },
    agent: new Agent({ keepAlive: true }),
  };
}

const connection = connect();

async function send(method: string, path: string, body?: unknown): Promise<KubeObject> {
  const options = { ...(await connection), method, path };
  return new Promise((resolve, reject) => {
    const sent = request(options, (response) => {
      let text = "";
      response.on("data", (part) => (text += part));
      response.on("end", () => {
        if ((response.statusCode ?? 500) < 400) resolve(JSON.parse(text));
        else reject(new Error(`${method} ${path}: ${response.statusCode}: ${text}`));
      });
    });
    sent.on("error", reject);
    sent.end(body === undefined ? undefined : JSON.stringify(body));
  });
}

const PATHS: Readonly<Record<string, string>> = {
  Namespace: "/api/v1/namespaces",
  PersistentVolumeClaim: `/api/v1/namespaces/${NAMESPACE}/persistentvolumeclaims`,
  Pod: `/api/v1/namespaces/${NAMESPACE}/pods`,
  VolumeSnapshot: `/apis/snapshot.storage.k8s.io/v1/namespaces/${NAMESPACE}/volumesnapshots`,
};

export const create = (object: KubeObject) => send("POST", PATHS[object.kind]!, object);
export const get = (kind: string, name: string) => send("GET", `${PATHS[kind]}/${name}`);
export const remove = (kind: string, name: string) => send("DELETE", `${PATHS[kind]}/${name}`);

export const claim = (name: string, size = "256Mi"): KubeObject => ({
  apiVersion: "v1",
  kind: "PersistentVolumeClaim",
  metadata: { name },
  spec: { storageClassName: "hostloop-ext4", accessModes: ["ReadWriteOnce"], resources: { requests: { storage: size } } },
});

/** A pod that uses a claim at /data. */
export const pod = (name: string, claimName: string): KubeObject => ({
  apiVersion: "v1",
  kind: "Pod",
  metadata: { name },
  spec: {
    terminationGracePeriodSeconds: 0,
    containers: [{ name: "main", image: "busybox:1", command: ["sleep", "1000000"], volumeMounts: [{ name: "data", mountPath: "/data" }] }],
    volumes: [{ name: "data", persistentVolumeClaim: { claimName } }],
  },
});

export const snapshot = (name: string, claimName: string): KubeObject => ({
  apiVersion: "snapshot.storage.k8s.io/v1",
  kind: "VolumeSnapshot",
  metadata: { name },
  spec: { volumeSnapshotClassName: "hostloop", source: { persistentVolumeClaimName: claimName } },
});

/** Waits until something holds. After a time it fails with what was seen last. */
export async function until<T>(what: string, look: () => Promise<T>, holds: (seen: T) => boolean, most = PATIENCE_MS): Promise<T> {
  const end = Date.now() + most;
  for (;;) {
    const seen = await look();
    if (holds(seen)) return seen;
    if (Date.now() > end) throw new Error(`${what}: not within ${most / 1000} s; seen last: ${JSON.stringify(seen, undefined, 1)}`);
    await sleep(100);
  }
}
