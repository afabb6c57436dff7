#!/bin/sh
# Builds the template pi: the template clawbot, and the pi coding agent with the Node that it wants in /opt/pi.
# Needs root, npm, and the template clawbot (sudo clawjail template build clawbot).
set -eu
here=$(cd "$(dirname "$0")" && pwd)
clawjail=${CLAWJAIL:-clawjail}
base=$("$clawjail" template show clawbot --json | jq -r .path)
tree=$(mktemp -d "${TMPDIR:-/var/tmp}/pi.XXXXXX")
trap 'rm -rf "$tree"' EXIT INT TERM
cp -a "$base/rootfs/." "$tree/"
mkdir -p "$tree/opt/pi"
cp "$here/agent/package.json" "$here/agent/package-lock.json" "$here/agent/models.json" "$here/agent/clawjail.ts" "$tree/opt/pi/"
# Node comes as a package whose installation puts the program in its place; of the others none needs to run anything.
(cd "$tree/opt/pi" && npm ci --no-audit --no-fund --loglevel=error)
install -D -m 755 "$here/agent/pi" "$tree/usr/local/bin/pi"
chown -R root:root "$tree/opt/pi"
"$clawjail" template build pi --from "dir:$tree" --replace
