#!/bin/sh
# Runs every test, as root, several test binaries at a time: scripts/alone.sh gives each a network, mounts and temporary
# folders of its own. Arguments are packages; without any it is ./..., the longest first.
#
#   scripts/test.sh --long   what `make test` leaves out, because it takes minutes, or asks servers of others: tests, eight
#                            seconds of each fuzz target, and one round of each part of `make bench`
set -eu
cd "$(dirname "$0")/.."

# As the Makefile has it: the program links no C, and some tests run it where there is no C library.
export CGO_ENABLED="${CGO_ENABLED:-0}"
# Without paths in them the objects of one checkout serve all others.
GOFLAGS="$(go env GOFLAGS) -trimpath"
export GOFLAGS
together=${CLAWJAIL_TEST_TOGETHER:-3}
long=
# By its name only: go test keeps results by it, for other checkouts too.
export PATH="$PWD/scripts:$PATH"
exec=alone.sh
sudo=
# What asks something of the machine is run although nothing has changed (testenv.Fresh).
CLAWJAIL_TEST_RUN=$(date +%s).$$
export CLAWJAIL_TEST_RUN
count=
rerun=
if [ "${1:-}" = --long ]; then
	shift
	[ $# -gt 0 ] || long=yes
	export CLAWJAIL_TEST_LONG=1
	together=1 exec= # they need the network of the machine
	count=-count=1   # with other seeds
	# shellcheck disable=SC2046 # folders of packages have no spaces
	[ $# -gt 0 ] || set -- $(grep -rlE --include='*_test.go' 'testenv\.(Is)?Long|property\.Check|anyBuild' internal packaging test | xargs dirname | sort -u | sed 's|^|./|')
elif [ $# -eq 0 ]; then
	set -- ./internal/browser ./test/console ./test/browsers ./test/jails ./test/containers ./test/agents ./test/docs ./test/operators ./packaging/... ./internal/jail/... ./internal/cdp/... ./internal/template/... ./...
	# A test that fails by chance does not throw a whole run away. It is named at the end, and mended.
	rerun='--rerun-fails=1 --rerun-fails-max-failures=5 --rerun-fails-run-root-test'
fi

# Test binaries are built by the user who calls, so that no file of root's gets into the build cache; only running
# them needs root.
if [ "$(id -u)" != 0 ]; then
	command -v sudo >/dev/null 2>&1 || {
		echo "error: the tests need root" >&2
		echo "hint: run this as root, or install sudo; \`make check\` needs neither" >&2
		exit 1
	}
	sudo="sudo --preserve-env=CI,PATH,HOME,GOFLAGS,GOTOOLCHAIN,CLAWJAIL_TEST_LONG,CLAWJAIL_TEST_PROGRAM,CLAWJAIL_TEST_TEMPLATES,CLAWJAIL_TEST_CHROMIUM,CLAWJAIL_TEST_CHROMIUM_SHELL"
	exec="$sudo ${exec:+$PWD/scripts/$exec}"
fi

# Tests build for every system, and packages, and have no network for what is missing.
go mod download
go vet ./...
(cd packaging/nfpm && go build -o /dev/null github.com/goreleaser/nfpm/v2/cmd/nfpm)
# The program that the tests of ./test start. The folder is closed to others, as a home is.
mkdir -p out/test
chmod 700 out/test
go build -tags barriers -ldflags=-w -o out/test/ ./cmd/clawjail
export CLAWJAIL_TEST_PROGRAM="$PWD/out/test/clawjail"

# processors prints for how many seconds the machine's were busy since it started.
processors() { awk -v tick="$(getconf CLK_TCK)" '$1 == "cpu" { printf "%d", ($2 + $3 + $4 + $7 + $8) / tick }' /proc/stat; }

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
status=0
from=$(date +%s) busy=$(processors)
# shellcheck disable=SC2086 # options have no spaces
go tool gotestsum --format standard-quiet --jsonfile "$work/log" $rerun ${rerun:+--rerun-fails-report "$work/again"} --packages "$*" -- \
	$count -p "$together" -vet=off -ldflags=-w -timeout 60m ${exec:+-exec "$exec"} || status=$?
took=$(($(date +%s) - from)) busy=$(($(processors) - busy))
echo "the slowest tests:"
go tool gotestsum tool slowest --jsonfile "$work/log" --num 20
if [ -s "$work/again" ]; then
	printf '\033[31mfailed, and were run again:\033[0m\n'
	cat "$work/again"
	# Where nobody reads this, as on a machine that only says whether all went well, it is found later, with what they printed.
	{
		date -u +%FT%TZ
		cat "$work/again"
		sed -n 's/.*\.\(Test[A-Za-z0-9_]*\).*: [0-9]* runs.*/\1/p' "$work/again" | sort -u | while read -r name; do
			grep -F '"Action":"output"' "$work/log" | grep -E "\"Test\":\"$name[\"/]" || :
		done
	} | $sudo tee -a /var/cache/clawjail-test/again >/dev/null || :
fi
echo "the tests took $took s, and $busy s of processor"
if [ -n "$long" ]; then
	grep -rE --include='*_test.go' '^func Fuzz' internal | sed 's|\(.*\)/[^/]*:func \(Fuzz[A-Za-z0-9_]*\).*|\1 \2|' | sort >"$work/targets"
	while read -r package target; do
		# A target that lasts leaves the new case in the package's testdata.
		for again in yes yes ''; do
			go test -vet=off -run '^$' -fuzz "^$target\$" -fuzztime 8s "./$package" >"$work/fuzz" 2>&1 </dev/null && break
			# On a busy machine Go takes the end of the time for a failure, without an input that failed (go.dev/issue/75804; Go 1.27 does not).
			if [ -n "$again" ] && grep -qxF '    context deadline exceeded' "$work/fuzz" && ! grep -qF 'Failing input' "$work/fuzz"; then
				echo "$(date -u +%FT%TZ) $target in ./$package was ended by Go without an input, and is tried again" |
					$sudo tee -a /var/cache/clawjail-test/again || :
				continue
			fi
			status=1
			cat "$work/fuzz"
			break
		done
	done <"$work/targets"
	echo "$(wc -l <"$work/targets") fuzz targets were tried"
	scripts/bench.sh
	mkdir "$work/bench" # so that its owner can remove what root leaves there
	$sudo bin/bench -runs 1 -cycles 1 -out "$work/bench" || status=1
	echo "all of it took $(($(date +%s) - from)) s"
fi
# Machines differ, so this is no failure.
if [ -n "$rerun" ] && { [ "$took" -gt 780 ] || [ "$busy" -gt 1400 ]; }; then
	printf '\033[31mthat is more than 780 s or 1400 s of processor: make the slowest quicker, or leave cases to make test-long\033[0m\n'
fi
exit "$status"
