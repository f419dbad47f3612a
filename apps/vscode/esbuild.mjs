// One file for the extension host, one for the page, and the plain logic for its tests.
import { build } from "esbuild";

const shared = { bundle: true, minify: true, sourcemap: false, logLevel: "warning" };
await build({ ...shared, entryPoints: ["src/extension.ts"], outfile: "dist/extension.js", platform: "node", format: "cjs", external: ["vscode"] });
// The page shares the parts of the web app, and one Preact with them.
const alias = Object.fromEntries(["preact", "@preact/signals"].map((name) => [name, `../web/node_modules/${name}`]));
const jsx = { jsx: "automatic", jsxImportSource: "preact" };
await build({ ...shared, ...jsx, alias, entryPoints: ["src/page.tsx"], outfile: "dist/page.js", platform: "browser", format: "iife" });
await build({ ...shared, entryPoints: ["src/page.css"], outfile: "dist/page.css" });
for (const name of ["ghost", "chat"])
  await build({ ...shared, minify: false, entryPoints: [`src/${name}.ts`], outfile: `dist/${name}.mjs`, platform: "node", format: "esm" });
