// Package spawntest is a stand-in for what package jailspawn uses of FreeBSD: commands that say what they were given and do
// the least of what they are for, with chroot(2) for a jail. It is no model of FreeBSD: that is the simulator. And it is the
// table of what the keys of a JailConfig do, with the host daemon and without it.
package spawntest

import (
	"strings"

	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/problem"
)

// Way is how a program gets into a jail: by the host daemon, or by one of the modes of a host without it.
type Way string

// The ways.
const (
	Hostd  Way = "hostd"
	None   Way = "none"
	MDO    Way = "mdo"
	Sudo   Way = "sudo"
	Helper Way = "helper"
)

// Place is what the keys of a JailConfig can name on a host.
type Place struct {
	Named, Root string // a jail that runs, and its root where the host's commands know it
	Folder      string // that jails are made of
	User        string // of both
}

// Keys are those of a JailConfig.
type Keys struct{ Name, Path, RootPath, User, IP4 string }

// Row is a use of keys, and what comes of it on every way.
type Row struct {
	What string
	Jail Keys
	// Program runs /bin/sh with a script of the test's behind it, unless the row is about what is run.
	Program jail.Program
	// Refused are the codes of the ways that refuse it. On all others it runs: in the jail named, or in a new one.
	Refused map[Way]string
	// Isolated is a new jail that has no network, also not the gateway.
	Isolated bool
}

// Rows is the table of docs/spawn.md: what each key of a JailConfig does, on each way. script is what programs run.
func Rows(p Place, script string) []Row {
	shell := jail.Program{Argv: []string{"/bin/sh", "-c", script}}
	with := func(env map[string]string, dir string) jail.Program {
		return jail.Program{Argv: shell.Argv, Env: env, Dir: dir}
	}
	staged := with(map[string]string{"GREETING": "it's $HOME; `id`"}, "/etc")
	named, made := Keys{Name: p.Named, User: p.User}, Keys{Path: p.Folder, User: p.User}
	and := func(k Keys, change func(*Keys)) Keys {
		change(&k)
		return k
	}
	all := func(code string) map[Way]string {
		return map[Way]string{Hostd: code, None: code, MDO: code, Sudo: code, Helper: code}
	}
	// direct are the ways on which neither the host daemon nor the helper fills in what is left out.
	direct := func(code string) map[Way]string { return map[Way]string{None: code, MDO: code, Sudo: code} }
	but := func(codes map[Way]string, way Way, code string) map[Way]string {
		codes[way] = code
		return codes
	}
	return []Row{
		{What: "name goes before path", Jail: and(named, func(k *Keys) { k.Path = p.Folder }), Program: jail.Program{Argv: append([]string{"sh"}, shell.Argv[1:]...)}},
		{What: "name and root_path", Jail: and(named, func(k *Keys) { k.RootPath = p.Root }), Program: staged, Refused: map[Way]string{Hostd: problem.BadRequest}},
		{What: "name, and variables without root_path", Jail: named, Program: staged, Refused: direct(problem.BadRequest)},
		{What: "name of another's, or of none", Jail: and(named, func(k *Keys) { k.Name = "other" }), Program: shell, Refused: but(all(problem.NotFound), Hostd, problem.BadRequest)},
		{What: "name of a child jail", Jail: and(named, func(k *Keys) { k.Name += ".child" }), Program: shell, Refused: but(all(problem.BadName), Hostd, problem.BadRequest)},
		{What: "path, which is root_path too, without a network", Program: staged, Isolated: true,
			Jail: and(made, func(k *Keys) { k.RootPath, k.IP4 = p.Folder, "disable" })},
		{What: "path and another root_path", Jail: and(made, func(k *Keys) { k.RootPath = p.Root + "x" }), Program: shell, Refused: all(problem.BadRequest)},
		{What: "path of the host", Jail: and(made, func(k *Keys) { k.Path = "/" }), Program: shell, Refused: all(problem.Forbidden)},
		{What: "path that is not absolute", Jail: and(made, func(k *Keys) { k.Path = "jails/scratch" }), Program: shell, Refused: all(problem.BadRequest)},
		{What: "path with dots", Jail: and(made, func(k *Keys) { k.Path += "/../scratch" }), Program: shell, Refused: all(problem.BadRequest)},
		{What: "neither name nor path", Program: staged, Refused: but(direct(problem.BadRequest), Helper, problem.BadRequest)},
		{What: "no user", Jail: Keys{Path: p.Folder}, Program: shell, Refused: direct(problem.BadRequest)},
		{What: "user that there is not", Jail: and(made, func(k *Keys) { k.User = "nobody" }), Program: shell, Refused: but(all(problem.BadRequest), Helper, problem.Forbidden)},
		{What: "user root", Jail: and(made, func(k *Keys) { k.User = "root" }), Program: shell, Refused: all(problem.Forbidden)},
		{What: "user 0", Jail: and(named, func(k *Keys) { k.User = "0" }), Program: shell, Refused: all(problem.Forbidden)},
		{What: "ip4 of the host", Jail: and(made, func(k *Keys) { k.IP4 = "inherit" }), Program: shell, Refused: all(problem.Forbidden)},
		{What: "ip4 of the host, for a jail that runs", Jail: and(named, func(k *Keys) { k.IP4 = "inherit" }), Program: shell, Refused: all(problem.Forbidden)},
		{What: "ip4 of its own", Jail: and(made, func(k *Keys) { k.IP4 = "new" }), Program: shell, Refused: but(direct(problem.BadRequest), Helper, problem.BadRequest)},
		{What: "ip4 of a jail that runs", Jail: and(named, func(k *Keys) { k.IP4 = "disable" }), Program: shell, Refused: all(problem.BadRequest)},
		{What: "ip4 that is an address", Jail: and(made, func(k *Keys) { k.IP4 = "10.0.0.1" }), Program: shell, Refused: all(problem.BadRequest)},
		{What: "env without a name", Jail: made, Program: with(map[string]string{"A;id": "b"}, ""), Refused: all(problem.BadRequest)},
		{What: "env with a NUL", Jail: made, Program: with(map[string]string{"A": "b\x00c"}, ""), Refused: all(problem.BadRequest)},
		{What: "env that is too large", Jail: made, Program: with(map[string]string{"A": strings.Repeat("x", 65<<10)}, ""), Refused: all(problem.BadRequest)},
		{What: "working directory that is not absolute", Jail: made, Program: with(nil, "etc"), Refused: all(problem.BadRequest)},
		{What: "no program", Jail: made, Refused: all(problem.BadRequest)},
		{What: "program by a path that is not absolute", Jail: made, Program: jail.Program{Argv: []string{"bin/sh"}}, Refused: all(problem.BadRequest)},
	}
}
