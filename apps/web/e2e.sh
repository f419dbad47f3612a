#!/usr/bin/env bash
# Build the web app, see that the shipped bundle is the same, and drive it in Chromium (Debian's, or $CHROMIUM).
# `e2e.sh fetch` only downloads what the rest needs.
set -euo pipefail
cd "$(dirname "$0")"
root=$(cd ../.. && pwd)
source ../node.sh
packages
[ "${1:-}" != fetch ] || exit 0

npm run --silent check
npm run --silent test
shipped=$(cat "$root/src/fulgur/assets/web/bundle.json")
npm run --silent build
[ "$shipped" = "$(cat "$root/src/fulgur/assets/web/bundle.json")" ] || { echo "the bundle was stale: commit what was built" >&2; exit 1; }
node test/e2e.mjs "$root/.venv/bin/fulgur" "$root/build/web"
