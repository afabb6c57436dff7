#!/bin/sh
# Runs every test: the ones that need root as root, and one package after the other, because they share the host's
# kernel, its firewall and its processors. Arguments are packages; without any it is ./...
set -eu
cd "$(dirname "$0")/.."
[ $# -gt 0 ] || set -- ./...

# Building is done side by side, before the tests, which are not.
go build "$@"

# Test binaries are built by the user who calls, so that no file of root's gets into the build cache; only running
# them needs root.
if [ "$(id -u)" != 0 ]; then
	command -v sudo >/dev/null 2>&1 || {
		echo "error: the tests need root" >&2
		echo "hint: run this as root, or install sudo; \`make check\` needs neither" >&2
		exit 1
	}
	set -- -exec "sudo --preserve-env=CI,PATH,HOME,GOTOOLCHAIN,CLAWJAIL_TEST_TEMPLATES,CLAWJAIL_TEST_CHROMIUM,CLAWJAIL_TEST_CHROMIUM_SHELL" "$@"
fi

log=$(mktemp)
trap 'rm -f "$log"' EXIT
status=0
go tool gotestsum --format standard-quiet --jsonfile "$log" -- -count=1 -p 1 -timeout 60m "$@" || status=$?
echo "the slowest tests:"
go tool gotestsum tool slowest --jsonfile "$log" --num 20
exit "$status"
