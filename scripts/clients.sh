#!/bin/sh
# Installs the clients that the tests drive browsers with (Playwright, Puppeteer and MCP servers that use them), and a
# Node that all of them run on, as they come from their registry. Nothing is installed outside test/clients. When
# everything is there it only looks.
set -eu

here=$(cd "$(dirname "$0")/.." && pwd)/test/clients
node_version=24.9.0
case $(uname -m) in
x86_64) arch=x64 ;;
aarch64 | arm64) arch=arm64 ;;
*)
	echo "note: there is no Node for $(uname -m) here; tests of stock clients are skipped" >&2
	exit 0
	;;
esac

cd "$here"
wanted="$(cksum <package-lock.json) node $node_version $arch"
if [ "$(cat node_modules/.installed 2>/dev/null)" = "$wanted" ]; then
	exit 0
fi
# Scripts of packages are not run: none of these needs its own.
npm ci --ignore-scripts --loglevel=error
npm install --prefix .node --ignore-scripts --no-save --no-package-lock --loglevel=error "node-linux-$arch@$node_version"
ln -sfn "../.node/node_modules/node-linux-$arch/bin/node" node_modules/.node
printf '%s' "$wanted" >node_modules/.installed
