#!/usr/bin/env bash
# Build the VSIX and drive it in a real code-server with Chromium (Debian's, or $CHROMIUM).
# What is downloaded (Node 24, code-server, playwright-core) stays in build; screenshots are in build/editors/screenshots.
# `e2e.sh fetch` only downloads what the rest needs.
set -euo pipefail
cd "$(dirname "$0")"
root=$(cd ../.. && pwd)
place=$root/build/editors
source ../node.sh
mkdir -p "$place"

# The editor and the extension at the same time. Install scripts do not run, and nothing is compiled: code-server does
# without its terminals and without the packages of its own extensions.
if [ ! -e "$place/ready" ]; then
  (
    quietly=(--silent --no-audit --no-fund --prefer-offline --ignore-scripts)
    npm install "${quietly[@]}" --prefix "$place" "code-server@4.139" "playwright-core@1.65"
    cd "$place/node_modules/code-server/lib/vscode"
    npm install "${quietly[@]}" --omit=dev
    touch "$place/ready"
  ) &
fi
packages
(cd ../web && packages) # the composer is made of its parts
wait
[ -e "$place/ready" ] || { echo "code-server could not be installed" >&2; exit 1; }
[ "${1:-}" != fetch ] || exit 0

npm run --silent check
npm run --silent build
npm run --silent test
npm run --silent package
PLAYWRIGHT=$place node test/e2e.mjs "$place/node_modules/code-server/out/node/entry.js" "$root/.venv/bin/fulgur" "$PWD/dist/fulgur.vsix" "$place/screenshots"
