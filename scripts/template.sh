#!/bin/sh
# Builds templates unless they are there and as they were built: those that are named, else "browser". Building needs
# root and takes minutes; looking takes a moment. The binary is built first: see `make template`.
set -eu
cd "$(dirname "$0")/.."
. scripts/root.sh

[ $# -gt 0 ] || set -- browser
for name in "$@"; do
	if as_root bin/clawjail template verify --quick "$name" >/dev/null 2>&1; then
		continue
	fi
	# It may be there and have changed. A test run with a changed template is worth nothing, so it is built anew.
	as_root bin/clawjail template build "$name" --replace
done
