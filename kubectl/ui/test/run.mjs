// Bundles the tests of a folder and runs them with node's test runner.
//
//   node test/run.mjs unit|browser|speed|live [--filter WORD]
import { spawn } from "node:child_process";
import { readdir, rm } from "node:fs/promises";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const [kind, option, word] = process.argv.slice(2);
const root = dirname(dirname(fileURLToPath(import.meta.url)));
const folder = join(root, "test", kind);
const output = join(root, "dist", "test", kind);
const tests = (await readdir(folder)).filter((name) => /\.test\.tsx?$/.test(name)).sort();
await rm(output, { recursive: true, force: true });
await build({
  entryPoints: tests.map((name) => join(folder, name)),
  bundle: true,
  outdir: output,
  outExtension: { ".js": ".mjs" },
  platform: "node",
  format: "esm",
  packages: "external",
  sourcemap: "inline",
  logLevel: "warning",
});
const filter = option === "--filter" ? [`--test-name-pattern=${word}`] : [];
// One browser at a time: it takes all processors. The time limit is that of a whole file: each
// wait in it has its own.
const serial = kind !== "unit" ? ["--test-concurrency=1", "--test-timeout=1800000", "--test-force-exit"] : [];
const files = tests.map((name) => join(output, name.replace(/\.tsx?$/, ".mjs")));
const options = ["--enable-source-maps", "--test", "--test-reporter=spec", ...filter, ...serial, ...files];
const child = spawn(process.execPath, options, { stdio: ["inherit", "pipe", "inherit"] });
let said = "";
child.stdout.on("data", (data) => {
  process.stdout.write(data);
  said += data;
});
child.on("close", (code) => {
  const count = (what) => Number(said.match(new RegExp(`^ℹ ${what} (\\d+)$`, "m"))?.[1] ?? 0);
  // The closing line of cargo's tests, which scripts/test counts.
  const [passed, failed] = [count("pass"), count("fail")];
  console.log(`test result: ${failed ? "FAILED" : "ok"}. ${passed} passed; ${failed} failed; in ${kind}`);
  const none = passed === 0;
  if (none) console.error("no test ran");
  process.exit(none ? 1 : code ?? 1);
});
