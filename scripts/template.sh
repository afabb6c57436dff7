#!/bin/sh
# Builds the template "browser" unless it is there and as it was built. Building needs root and takes minutes; looking
# takes a moment. The binary is built first: see `make template`.
set -eu
cd "$(dirname "$0")/.."
. scripts/root.sh

if as_root bin/clawjail template verify --quick browser >/dev/null 2>&1; then
	exit 0
fi
# It may be there and have changed. A test run with a changed template is worth nothing, so it is built anew.
as_root bin/clawjail template build browser --replace
