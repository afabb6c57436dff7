#!/bin/sh
# Installs the clients that the tests drive browsers with (Playwright, Puppeteer and MCP servers that use them), those
# that they ask models with, a Node that all of them run on, and two older ones whose programs agents have too, as they
# come from their registry. Nothing is installed outside test/clients. When everything is there it only looks.
set -eu

here=$(cd "$(dirname "$0")/.." && pwd)/test/clients
node_version=24.9.0
older_versions='22.23.3 20.20.2'
case $(uname -m) in
x86_64) arch=x64 ;;
aarch64 | arm64) arch=arm64 ;;
*)
	echo "note: there is no Node for $(uname -m) here; tests of stock clients are skipped" >&2
	exit 0
	;;
esac

cd "$here"
wanted="$(cksum <package-lock.json) node $node_version $older_versions $arch"
if [ "$(cat node_modules/.installed 2>/dev/null)" = "$wanted" ]; then
	exit 0
fi
# Scripts of packages are not run: none of these needs its own.
npm ci --ignore-scripts --loglevel=error
# install_node VERSION FOLDER LINK: node_modules/LINK is that Node.
install_node() {
	npm install --prefix "$2" --ignore-scripts --no-save --no-package-lock --loglevel=error "node-linux-$arch@$1"
	ln -sfn "../$2/node_modules/node-linux-$arch/bin/node" "node_modules/$3"
}
install_node "$node_version" .node .node
for version in $older_versions; do
	mkdir -p ".node/${version%%.*}"
	install_node "$version" ".node/${version%%.*}" ".node${version%%.*}"
done
printf '%s' "$wanted" >node_modules/.installed
