#!/bin/sh
# Installs the clients that the tests drive browsers with (Playwright, Puppeteer and MCP servers that use them), those
# that they ask models with, a Node that all of them run on, and three older ones whose programs agents have too, as they
# come from their registry. They are kept outside of the checkout, by what they are made of, so that a fresh checkout has
# them at once; test/clients/node_modules is a link to them. When everything is there it only looks.
set -eu

here=$(cd "$(dirname "$0")/.." && pwd)/test/clients
node_version=24.9.0
older_versions='22.23.3 20.20.2 12.22.12'
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
cache=/var/cache/clawjail-test
[ "$(id -u)" = 0 ] || cache=${XDG_CACHE_HOME:-$HOME/.cache}/clawjail-test
kept=$cache/clients/$(printf '%s' "$wanted" | cksum | cut -d ' ' -f 1)

# install_node FOLDER VERSION LINK: FOLDER/node_modules/LINK is that Node.
install_node() {
	mkdir -p "$1/.$3"
	npm install --prefix "$1/.$3" --ignore-scripts --no-save --no-package-lock --loglevel=error "node-linux-$arch@$2"
	ln -sfn "../.$3/node_modules/node-linux-$arch/bin/node" "$1/node_modules/.$3"
}

if ! [ -d "$kept" ]; then
	mkdir -p "$cache/clients"
	work=$(mktemp -d "$cache/clients/.new.XXXXXX")
	trap 'rm -rf "$work"' EXIT
	trap 'exit 130' INT TERM HUP
	chmod 755 "$work"
	cp .npmrc package.json package-lock.json "$work/"
	# Scripts of packages are not run: none of these needs its own.
	npm ci --prefix "$work" --ignore-scripts --loglevel=error
	install_node "$work" "$node_version" node
	for version in $older_versions; do
		install_node "$work" "$version" "node${version%%.*}"
	done
	mv -T "$work" "$kept" 2>/dev/null || [ -d "$kept" ] # somebody else was quicker
fi
touch "$kept"
find "$cache/clients" -mindepth 1 -maxdepth 1 -mtime +30 -exec rm -rf {} + # of checkouts that are gone
[ -L node_modules ] || rm -rf node_modules .node # an earlier version of this script installed here
ln -sfn "$kept/node_modules" node_modules
