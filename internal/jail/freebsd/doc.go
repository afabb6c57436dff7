//go:build linux || freebsd

// Package freebsd makes jails on FreeBSD: ZFS clones, VNET jails with an epair each, tables of pf, and rctl.
//
// Everything is done by the commands of the system (internal/hostcmd), so that the package builds and is tested on Linux as
// well, against the simulator in hosttest. It has not yet run on a FreeBSD host: what the commands print and do is taken
// from the manual pages and the source, and docs/freebsd.md lists what awaits a real one.
//
// An exit status is never believed alone. After each command the host is looked at (jls -d, zfs list, ifconfig -g epair,
// pfctl -T test, rctl, mount -p, ps -J), and what is seen there decides: jail(8) may end well without a jail, a removed jail
// may stay as a dying one and hold its file system, an epair may be left of a jail that did not start.
//
// The parts of a jail, all of them found by its name:
//
//	dataset <parent>/jails/NAME     mounted at <data>/clones/NAME, read-only once the jail is staged
//	<run>/jails/NAME/               jail.conf, and what is staged for programs that join
//	<run>/tokens/NAME/              the folder of the token
//	e0a_NAME, e0b_NAME              the epair; both halves are described "clawjail NAME"
//	jail NAME, rctl rules jail:NAME
//
// A jail here has no filter of system calls and no /dev/shm, and no user namespaces: Chromium's own sandbox cannot work in
// it, the jail is the sandbox.
package freebsd
