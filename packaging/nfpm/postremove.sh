#!/bin/sh
# After the files are gone. A purge, which only Debian has, removes what clawjail has made on the disk, and its user. Names that
# clawjail does not give are not touched: there may be another installation in the folder.
set -e

if [ -d /run/systemd/system ]; then
	systemctl daemon-reload || true # the files are gone either way
fi
[ "${1:-}" = purge ] || exit 0

# mounted says whether something is mounted at a path or below it, such as a folder of the operator's that agents share, or
# whether that cannot be seen.
mounted() {
	! awk -v path="$(readlink -f "$1")" '$5 == path || index($5, path "/") == 1 { found = 1 } END { exit found }' </proc/self/mountinfo
}

data=/var/lib/clawjail
if [ -d "$data" ] && [ ! -L "$data" ]; then
	# The notes about the audit log can be appended to and not removed.
	if [ -f $data/audit/checkpoints ] && command -v chattr >/dev/null 2>&1; then
		chattr -a $data/audit/checkpoints 2>/dev/null || true # not every file system has this
	fi
	for name in .clawjail-backup .clawjail-restore clawjail.restored.yml agents audit cache clones container-journal containers control database journal logs pods.key state templates workspaces workspace-roots workspace-roots.new workspace-roots.lock installation.json; do
		if mounted "$data/$name"; then
			echo "clawjail: something is mounted below $data/$name, which stays" >&2
		else
			rm -rf --one-file-system "${data:?}/$name"
		fi
	done
	rmdir $data 2>/dev/null || echo "clawjail: $data is not empty, and stays" >&2
fi
rm -rf /run/clawjail
rm -f /etc/clawjail/clawjail.yml /etc/clawjail/clawjail.yml.dpkg-old /etc/clawjail/clawjail.yml.dpkg-dist
rmdir /etc/clawjail 2>/dev/null || true # the operator's own files stay
if getent passwd clawjail >/dev/null 2>&1; then
	userdel clawjail >/dev/null 2>&1 || echo "clawjail: the user clawjail is in use, and stays" >&2
fi
