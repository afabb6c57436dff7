#!/bin/sh
# The first program of the container. What an engine gives to a container is closed in three places that clawjail must write to;
# it opens them for this container alone, and becomes clawjail. Other commands than `up` need none of it.
set -eu

die() {
	echo "clawjail: error: $1" >&2
	echo "clawjail: hint: $2" >&2
	exit 1
}

opened() {
	# The engine covers parts of /proc, and the kernel lets no jail with a user namespace have a whole one beneath that.
	mount -t proc -o nosuid,nodev,noexec proc /proc || die "this container may not mount" \
		"start it with packaging/container/compose.yaml, which names what it needs"
	[ -e /sys/fs/cgroup/cgroup.controllers ] || die "the engine has control groups of version 1" \
		"start the machine with control groups of version 2, or install clawjail without a container"
	[ "$(cat /proc/self/cgroup)" = 0::/ ] || die "the control groups that this container sees are not its own" \
		"start it with a namespace of its own for them: --cgroupns=private, which is the engine's default"
	mount -o remount,bind,rw,nosuid,nodev,noexec /sys/fs/cgroup
	# Groups for jails can be made where no process is beside them (cgroups(7), "no internal processes").
	own=/sys/fs/cgroup/clawjail
	mkdir -p "$own"
	while read -r process; do
		echo "$process" >"$own/cgroup.procs" || [ ! -e "/proc/$process" ] # it may end meanwhile
	done </sys/fs/cgroup/cgroup.procs
}

if [ "${1:-}" = up ]; then
	opened
fi
exec /usr/bin/clawjail "$@"
