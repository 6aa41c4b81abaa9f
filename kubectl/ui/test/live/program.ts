/** `kubectl hostloop ui` as a process, and a connection to it that a test can cut. */

import { spawn, type ChildProcess } from "node:child_process";
import { once } from "node:events";
import { connect, createServer, type Socket } from "node:net";
import { createInterface } from "node:readline";
import { after } from "node:test";
import type { Page } from "playwright-core";
import { profile, watch } from "../browser/harness.ts";
import { variable } from "./cluster.ts";

const PATIENCE_MS = 300_000;

/** Forwards connections to a port of this machine. */
class Wire {
  port = 0;
  private broken = false;
  private readonly sockets = new Set<Socket>();
  private readonly server = createServer((near) => {
    if (this.broken) {
      near.destroy();
      return;
    }
    const far = connect(this.target, "127.0.0.1");
    for (const [socket, other] of [[near, far], [far, near]] as const) {
      this.sockets.add(socket);
      socket.on("error", () => other.destroy());
      socket.on("close", () => {
        this.sockets.delete(socket);
        other.destroy();
      });
      socket.pipe(other);
    }
  });
  private readonly target: number;

  private constructor(target: number) {
    this.target = target;
  }

  static async start(port: number): Promise<Wire> {
    const wire = new Wire(port);
    wire.server.listen(0, "127.0.0.1");
    await once(wire.server, "listening");
    const address = wire.server.address();
    if (typeof address !== "object" || address === null) throw new Error("the wire has no port");
    wire.port = address.port;
    return wire;
  }

  /** Breaks all connections, and refuses others until it is mended. */
  cut(): void {
    this.broken = true;
    for (const socket of this.sockets) socket.destroy();
  }

  mend(): void {
    this.broken = false;
  }

  close(): void {
    this.cut();
    this.server.close();
  }
}

export interface Visit {
  page: Page;
  wire: Wire;
  /** Errors of the page, and what its policy blocked. */
  errors: string[];
}

/** Starts the program with the rights of a kubeconfig, and opens its page. `init` runs before the page. */
export async function visit(kubeconfig: string, init: () => void = () => {}): Promise<Visit> {
  const child = spawn(variable("HOSTLOOP_LIVE_PLUGIN"), ["ui", "--no-open", "--page", "dist/index.html"], {
    env: { ...process.env, KUBECONFIG: kubeconfig },
    stdio: ["ignore", "pipe", "inherit"],
  });
  // Also after a failure that no hook sees.
  process.on("exit", () => child.kill());
  const address = new URL(await printedAddress(child));
  const wire = await Wire.start(Number(address.port));
  after(() => wire.close());
  address.port = String(wire.port);
  // All tests of the file use it.
  const context = await profile();
  context.setDefaultTimeout(PATIENCE_MS);
  after(() => context.close());
  const page = await context.newPage();
  await page.addInitScript(init);
  const errors = watch(page);
  await page.goto(address.href);
  return { page, wire, errors };
}

/** The address that the program prints. */
async function printedAddress(child: ChildProcess): Promise<string> {
  for await (const line of createInterface({ input: child.stdout! })) {
    if (line.startsWith("http://")) {
      child.stdout!.resume();
      return line;
    }
  }
  throw new Error(`the program printed no address and ended with ${child.exitCode}`);
}
