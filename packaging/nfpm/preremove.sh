#!/bin/sh
# Before the files go: both halves are stopped, and every jail is ended. Data and configuration stay. An upgrade is no removal.
set -e

case ${1:-} in
remove | 0) ;;
*) exit 0 ;;
esac

if [ -d /run/systemd/system ]; then
	systemctl stop clawjail-template.service clawjail.service clawjail-hostd.service >/dev/null 2>&1 || true # what runs still is found below
fi
# With the program gone nobody could end the jails of agents, which outlive the daemon. Where this fails the package manager stops
# before the first file, and the package stays as it is.
/usr/bin/clawjail uninstall || {
	echo "clawjail: the package stays, because clawjail could not be taken off this machine. If 'clawjail up' runs, end it; then remove the package again" >&2
	exit 1
}
if [ -d /run/systemd/system ]; then
	systemctl disable clawjail.service clawjail-hostd.service >/dev/null 2>&1 || true # they may never have been enabled
fi
