// Builds the app into src/fulgur/assets/web, where the wheel takes it from. `bundle.json` names what it was built from:
// a test compares it with the sources, so that a bundle that was not built anew is found without Node.
import { createHash } from "node:crypto";
import { copyFileSync, mkdirSync, readFileSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { build } from "esbuild";

process.chdir(import.meta.dirname);
const out = join("..", "..", "src", "fulgur", "assets", "web");
const sources = [...readdirSync("src").map((name) => `src/${name}`), "build.mjs", "package-lock.json", "tsconfig.json"].sort();

rmSync(out, { recursive: true, force: true });
mkdirSync(out, { recursive: true });
await build({
  entryPoints: ["src/main.tsx", "src/app.css"],
  outdir: out,
  bundle: true,
  minify: true,
  splitting: true, // plots are loaded when they are looked at
  format: "esm",
  target: ["es2022", "chrome123", "firefox120", "safari17.5"],
  chunkNames: "[name]",
  jsx: "automatic",
  jsxImportSource: "preact",
  legalComments: "none",
  logLevel: "warning",
});
for (const name of ["index.html", "icon.svg"]) copyFileSync(join("src", name), join(out, name));
const hash = (files) => {
  const all = createHash("sha256");
  for (const file of files) all.update(`${file.name}\0${readFileSync(file.path).length}\0`).update(readFileSync(file.path));
  return all.digest("hex");
};
const built = readdirSync(out).sort();
const record = {
  sources: hash(sources.map((name) => ({ name, path: name }))),
  files: Object.fromEntries(built.map((name) => [name, hash([{ name, path: join(out, name) }])])),
};
writeFileSync(join(out, "bundle.json"), `${JSON.stringify(record, null, 1)}\n`);
