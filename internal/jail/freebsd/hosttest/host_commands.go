//go:build linux

package hosttest

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
)

// uname is uname(1) with the flags -s, -r, -m, -n: what is asked for stands in one line, in an order of its own.
func (c *command) uname() int {
	set, rest, bad := flags(c.args, "mnrs")
	if bad != 0 || len(rest) > 0 {
		return c.say(1, "usage: uname [-abiKmnoprsUv]")
	}
	if len(set) == 0 {
		set['s'] = []string{""}
	}
	gap := ""
	for _, w := range []struct {
		flag byte
		text string
	}{{'s', c.Sysctls["kern.ostype"]}, {'n', cmp.Or(c.Sysctls["kern.hostname"], "simulated")}, {'r', c.Sysctls["kern.osrelease"]}, {'m', "amd64"}} {
		if set[w.flag] != nil {
			fmt.Fprint(&c.out, gap, w.text)
			gap = " "
		}
	}
	fmt.Fprintln(&c.out)
	return 0
}

// devfs is devfs(8) as far as `devfs rule -s RULESET show`. A ruleset that is not there is an empty one, and no error. Ruleset 4711
// is the one of packaging/freebsd/devfs.rules; the others are one rule that stands for theirs.
func (c *command) devfs() (int, error) {
	if len(c.args) != 4 || c.args[0] != "rule" || c.args[1] != "-s" || c.args[3] != "show" {
		return broken, fmt.Errorf("of devfs only `rule -s RULESET show` is modelled")
	}
	if !slices.Contains(c.Rulesets, c.args[2]) {
		return 0, nil
	}
	rules := []string{"hide"}
	if c.args[2] == "4711" {
		for _, name := range []string{"null", "zero", "random", "urandom", "fd", "fd/*", "stdin", "stdout", "stderr"} {
			rules = append(rules, "path "+name+" unhide")
		}
	}
	for i, rule := range rules {
		fmt.Fprintf(&c.out, "%d %s\n", (i+1)*100, rule)
	}
	return 0, nil
}

// netstat is netstat(1) with -rn -f inet: the routes that the addresses of the host's interfaces make, and no default route.
func (c *command) netstat() (int, error) {
	if !slices.Equal(c.args, []string{"-rn", "-f", "inet"}) {
		return broken, fmt.Errorf("of netstat only -rn -f inet is modelled")
	}
	fmt.Fprintf(&c.out, "Routing tables\n\nInternet:\n%-18s %-18s %-9s %s\n", "Destination", "Gateway", "Flags", "Netif Expire")
	for n, i := range c.Ifaces {
		if i.VNet != 0 {
			continue
		}
		for _, a := range i.Inet {
			p, err := netip.ParsePrefix(a)
			if err != nil {
				return broken, err
			}
			row := func(to, flags, link string) {
				fmt.Fprintf(&c.out, "%-18s %-18s %-9s %s\n", to, fmt.Sprintf("link#%d", n+1), flags, link)
			}
			if i.Driver == "lo" {
				row(p.Addr().String(), "UH", i.Name)
				continue
			}
			row(p.Masked().String(), "U", i.Name)
			row(p.Addr().String(), "UHS", "lo0")
		}
	}
	return 0, nil
}
