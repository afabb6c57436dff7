#!/bin/sh
# After the files are there: the user of the control plane; and after an upgrade the halves that ran are started anew. Nothing is
# enabled or started by an installation: a service that runs as root is for the operator to begin.
set -e

case ${1:-} in
configure) upgrade=${2:-} ;;         # Debian: the version before
1) upgrade= ;;                       # rpm: how many there are now
2) upgrade=yes ;;
*) exit 0 ;;
esac

if ! getent passwd clawjail >/dev/null 2>&1; then
	if command -v systemd-sysusers >/dev/null 2>&1; then
		systemd-sysusers clawjail.conf
	else
		useradd --system --user-group --no-create-home --home-dir /var/lib/clawjail --shell /usr/sbin/nologin \
			--comment 'clawjail control plane' clawjail
	fi
fi

if [ -d /run/systemd/system ]; then
	systemctl daemon-reload
	if [ -n "$upgrade" ]; then
		# The jails of agents run on meanwhile: the unit stops the daemon alone.
		systemctl try-restart clawjail-hostd.service clawjail.service
	fi
fi
