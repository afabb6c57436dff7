#!/bin/sh
# Builds the template pi: the template clawbot, and the pi coding agent with the Node that it wants in /opt/pi.
# Needs root, npm, jq, and the template clawbot (sudo bin/clawjail template build clawbot). CLAWJAIL names another program.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
clawjail=${CLAWJAIL:-$here/../../bin/clawjail}
work=$(mktemp -d "${TMPDIR:-/var/tmp}/pi.XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM HUP

# The tree of clawbot is the one layer of its image.
mkdir "$work/tree"
"$clawjail" template image clawbot --output "$work/image.tar"
layer=$(tar -xOf "$work/image.tar" manifest.json | jq -er '.[0].Layers[0]')
tar -xOf "$work/image.tar" "$layer" | tar -xpf - --numeric-owner -C "$work/tree"
rm "$work/image.tar"

pi=$work/tree/opt/pi
mkdir -p "$pi"
cp "$here/agent/package.json" "$here/agent/package-lock.json" "$here/agent/models.json" "$here/agent/clawjail.ts" "$pi/"
# Node comes as a package whose script puts the program in its place; it is the only one whose script is run.
(cd "$pi" && npm ci --ignore-scripts --no-audit --no-fund --loglevel=error && npm rebuild node --loglevel=error)
install -D -m 755 "$here/agent/pi" "$work/tree/usr/local/bin/pi"
chown -R root:root "$pi"
"$clawjail" template build pi --from "dir:$work/tree" --replace
