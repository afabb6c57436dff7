#!/bin/sh
# Builds templates unless they are there and as they were built: those that are named, else "browser". Building needs
# root and takes minutes; looking takes a moment. The binary is built first: see `make template`.
set -eu
cd "$(dirname "$0")/.."
. scripts/root.sh

[ $# -gt 0 ] || set -- browser
for name in "$@"; do
	if report=$(as_root bin/clawjail template verify --quick --json "$name" 2>/dev/null); then
		case $report in *'"lacks"'*) ;; *) continue ;; esac
	fi
	# It may be there and have changed, or an earlier version may have built it. A test run with such a template is worth
	# nothing, so it is built anew.
	as_root bin/clawjail template build "$name" --replace
done
