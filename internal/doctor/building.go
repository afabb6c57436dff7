package doctor

import (
	"context"
	"errors"
	"io/fs"
	"net/netip"
	"strings"
)

// resolver checks that /etc/resolv.conf names a DNS server. It sends no query.
func resolver(_ context.Context, e *exam) Result {
	const path, hint = "etc/resolv.conf", "name a server in /etc/resolv.conf, or start systemd-resolved: without one no page can be loaded"
	text, err := e.read(path)
	if errors.Is(err, fs.ErrNotExist) {
		return warning("there is no /etc/resolv.conf, so the names of sites have no addresses").hint(hint)
	}
	if err != nil {
		return e.failed(err)
	}
	var servers []string
	for line := range strings.Lines(text) {
		words := strings.Fields(line)
		if len(words) < 2 || words[0] != "nameserver" { // resolv.conf(5): a keyword begins its line
			continue
		}
		if _, err := netip.ParseAddr(words[1]); err == nil {
			servers = append(servers, words[1])
		}
	}
	if len(servers) == 0 {
		return warning("/etc/resolv.conf names no server, so the names of sites have no addresses").hint(hint)
	}
	return fine("names are resolved by %s", strings.Join(servers, ", ")).fact("servers", servers)
}

// buildTools looks for the programs that templates are built with. Templates that are there work without them.
func buildTools(_ context.Context, e *exam) Result {
	var missing, packages []string
	for _, tool := range []struct{ name, pkg string }{{"debootstrap", "debootstrap"}, {"apt-get", "apt"}, {"apt-config", "apt"}} {
		if e.installedProgram(tool.name) {
			continue
		}
		missing = append(missing, tool.name)
		if n := len(packages); n == 0 || packages[n-1] != tool.pkg {
			packages = append(packages, tool.pkg)
		}
	}
	if len(missing) > 0 {
		return warning("templates cannot be built here without %s", strings.Join(missing, ", ")).fact("missing", missing).
			hint("sudo apt install %s", strings.Join(packages, " "))
	}
	return fine("templates can be built: debootstrap and apt are there")
}

// installedProgram reports whether a program is in a folder of administrators' programs.
func (e *exam) installedProgram(name string) bool {
	for _, dir := range []string{"usr/sbin", "usr/bin", "sbin", "bin"} {
		if e.exists(dir + "/" + name) {
			return true
		}
	}
	return false
}
