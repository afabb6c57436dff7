#!/bin/bash
# alone.sh PROGRAM ARGUMENT…: runs a test binary in namespaces of its own, so that several run side by side. It is for
# `go test -exec`, needs root, and is what scripts/test.sh uses.
#
# Its own: network (one link with IPv4 and IPv6 and a default route that leads nowhere), mounts, System V IPC, host name,
# /tmp, /var/tmp, /run, /dev/shm. Shared: processes, control groups, all other files.
#
#   CLAWJAIL_TEST_SLOT  1 to 8, nobody else's at this moment: what has to be unique on the host is numbered by it
#   CLAWJAIL_TEST_HOST  a process in the host's own network: nsenter --net=/proc/$CLAWJAIL_TEST_HOST/ns/net
#
# When the tests fail, what they left in /tmp and /var/tmp is kept, and the place is printed.
set -euo pipefail

base=/var/cache/clawjail-test/alone

take_slot() {
	local slot
	for slot in 1 2 3 4 5 6 7 8; do
		exec {lock}>"$base/$slot.lock"
		if flock --nonblock "$lock"; then
			export CLAWJAIL_TEST_SLOT=$slot
			return
		fi
		exec {lock}>&-
	done
	echo "alone.sh: eight test binaries run already" >&2
	exit 1
}

# clear_slot removes a slot's folder, with files that tests have made append-only.
clear_slot() {
	rm -rf --one-file-system "$1" 2>/dev/null && return
	chattr -R -f -a -i "$1" || :
	rm -rf --one-file-system "$1"
}

# furnish runs in the new namespaces.
furnish() {
	# A link that looks for a second of its address first gets it after a second: a browser drops its connections then.
	sysctl --quiet --write net.ipv6.conf.{all,default}.accept_dad=0
	ip -batch - <<-END
		link set lo up
		link add up0 type veth peer name up1
		address add 198.18.0.2/15 dev up0
		address add 2001:db8::2/64 dev up0 nodad
		link set up0 up
		link set up1 up
		route add default via 198.18.0.1 dev up0
		route add ::/0 via 2001:db8::1 dev up0
	END
	# Nobody is at the router, which is known after a tenth of a second instead of three.
	# Ports that a test has found free are below those that connections are given.
	sysctl --quiet --write net.{ipv4,ipv6}.neigh.up0.{mcast_solicit=1,retrans_time_ms=100} net.ipv4.ip_local_port_range='40000 60999'

	# What is needed may lie below what is about to be covered: the checkout, and the folder of the test binary.
	local own=$1 resolver dir n=0
	shift
	resolver=$(cat /etc/resolv.conf)
	for dir; do
		mkdir "$own/keep-$((++n))"
		mount --bind "$dir" "$own/keep-$n"
	done
	mount --bind "$own/tmp" /tmp
	mount --bind "$own/var-tmp" /var/tmp
	mount -t tmpfs -o mode=1777 tmpfs /dev/shm
	mount -t tmpfs -o mode=755 tmpfs /run
	mkdir -p /run/lock /run/user
	n=0
	for dir; do
		mkdir -p "$dir"
		mount --move "$own/keep-$((++n))" "$dir"
	done
	# Where it is a link into /run, it would lead nowhere.
	if ! [ -e /etc/resolv.conf ] && [ -L /etc/resolv.conf ]; then
		mkdir -p "$(dirname "$(readlink -m /etc/resolv.conf)")"
		echo "$resolver" >"$(readlink -m /etc/resolv.conf)"
	fi
}

if [ "$1" = --inside ]; then
	own=$2 folder=$3 checkout=$4 program=$5
	shift 5
	furnish "$own" "$checkout" "$(dirname "$program")"
	cd "$folder"
	exec "$program" "$@"
fi

mkdir -p "$base"
take_slot
export CLAWJAIL_TEST_HOST=$$
own=$base/$CLAWJAIL_TEST_SLOT
clear_slot "$own" # of a run that was killed
mkdir -p "$own/tmp" "$own/var-tmp"
chmod 1777 "$own/tmp" "$own/var-tmp"
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
program=$(realpath "$1")
shift
# go test keeps a result if this file says what it came from, and does not ask for it where there is an -exec.
log=$(dirname "$program")/testlog.txt
set -- "$@" "-test.testlogfile=$log"

# Job control: without it the shell would have the tests, and all that they start, ignore interrupts. The lock is this
# shell's alone: what a test leaves running does not hold it.
set -m
unshare --net --mount --ipc --uts --propagation private \
	"$here/scripts/alone.sh" --inside "$own" "$PWD" "$here" "$program" "$@" {lock}>&- &
for signal in INT TERM QUIT; do
	# shellcheck disable=SC2064 # the process is known now
	trap "kill -$signal $! 2>/dev/null" "$signal"
done
status=0
wait "$!" || status=$?
while kill -0 "$!" 2>/dev/null; do # a signal has ended the wait
	status=0
	wait "$!" || status=$?
done
# A result that is good for this run alone (testenv.Fresh) came from nothing that go test has to look at again: tests that
# wait for processes to end name a million files of /proc.
if grep -qsx 'getenv CLAWJAIL_TEST_RUN' "$log"; then
	printf '# test log\ngetenv CLAWJAIL_TEST_RUN\n' >"$log"
fi
if [ "$status" != 0 ]; then
	find /var/tmp -maxdepth 1 -name 'clawjail-failed-*' -mtime +7 -exec rm -rf {} + || :
	kept=$(mktemp -d "/var/tmp/clawjail-failed-$(basename "$program" .test).XXXXXX")
	cp -a "$own/tmp" "$own/var-tmp" "$kept/" || :
	rmdir --ignore-fail-on-non-empty "$kept/tmp" "$kept/var-tmp" "$kept" 2>/dev/null || :
	[ ! -e "$kept" ] || echo "alone.sh: files of the failed tests: $kept" >&2
fi
clear_slot "$own"
exit "$status"
