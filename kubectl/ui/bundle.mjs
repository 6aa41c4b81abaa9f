// Makes dist/index.html: the whole page in one file.
//
//   node bundle.mjs [FILE]
import { createHash } from "node:crypto";
import { mkdir, readFile, rename, writeFile } from "node:fs/promises";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { gzipSync } from "node:zlib";
import { build } from "esbuild";

const root = dirname(fileURLToPath(import.meta.url));
const output = process.argv[2] ?? join(root, "dist", "index.html");
/** Compressed bytes: what a browser gets over a tunnel. */
const LIMIT = 200 * 1024;

/** `kubectl hostloop ui --replay` puts a recording here. */
const PLACE = "<!--recording-->";

async function bundled(entry, options = {}) {
  const result = await build({
    entryPoints: [join(root, entry)],
    bundle: true,
    minify: true,
    write: false,
    target: ["chrome120", "firefox121", "safari17"],
    format: "iife",
    legalComments: "none",
    charset: "utf8",
    logLevel: "warning",
    jsx: "automatic",
    jsxImportSource: "preact",
    ...options,
  });
  return result.outputFiles[0].text.trim();
}

const hash = (text) => `'sha256-${createHash("sha256").update(text).digest("base64")}'`;

const license = (await readFile(join(root, "node_modules/preact/LICENSE"), "utf8")).trim();
// The document is made by the same code that saves recordings.
const document = await build({
  entryPoints: [join(root, "src/recording/document.ts")],
  bundle: true,
  write: false,
  format: "esm",
});
const { page } = await import(`data:text/javascript;base64,${Buffer.from(document.outputFiles[0].contents).toString("base64")}`);

const style = await bundled("src/style.css");
const program = `/*! With Preact:\n${license}\n*/\n${await bundled("src/main.tsx")}`;
if (/<\/script|<!--/i.test(program)) throw new Error("the program contains the end of a script or the start of a comment");
const policy = [
  "default-src 'none'",
  `script-src ${hash(program)}`,
  `style-src ${hash(style)}`,
  "connect-src 'self'",
  "img-src data:",
  "base-uri 'none'",
  "form-action 'none'",
].join("; ");
const html = page({ policy, style, program, data: { place: PLACE } });
const compressed = gzipSync(html, { level: 9 }).length;
if (compressed > LIMIT) throw new Error(`the page has ${compressed} bytes compressed, and ${LIMIT} are allowed`);
await mkdir(dirname(output), { recursive: true });
// Another run may read the page meanwhile.
await writeFile(`${output}.${process.pid}`, html);
await rename(`${output}.${process.pid}`, output);
console.log(`${output}: ${html.length} bytes, ${compressed} compressed`);
