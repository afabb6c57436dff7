#!/bin/sh
# Before the files go: both halves are stopped, and every jail is ended. Data and configuration stay. An upgrade is no removal.
set -e

case ${1:-} in
remove | 0) ;;
*) exit 0 ;;
esac

if [ -d /run/systemd/system ]; then
	systemctl disable --now clawjail.service clawjail-hostd.service >/dev/null 2>&1 || true # they may never have been enabled
fi
# With the program gone nobody could end the jails of agents, which outlive the daemon.
/usr/bin/clawjail uninstall
