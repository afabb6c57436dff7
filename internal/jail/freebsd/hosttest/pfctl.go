//go:build linux

package hosttest

import (
	"fmt"
	"io"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strings"
)

const pfctlUsage = "usage: pfctl [-AdeghMmNnOPqRSrvz] [-a anchor] [-D macro=value] [-F modifier]\n\t[-f file] [-i interface] [-K host | network]\n" +
	"\t[-k host | network | gateway | label | id] [-o level] [-p device]\n\t[-s modifier] [-t table -T command [address ...]] [-x level]"

// tableLength is PF_TABLE_NAME_SIZE without its NUL.
const tableLength = 31

func (c *command) pfctl() int {
	set, rest, bad := flags(c.args, "a:def:F:gk:K:nNqrs:t:T:v")
	if bad != 0 {
		return c.say(1, pfctlUsage)
	}
	for _, k := range c.Klds {
		if k == "!pf" {
			return c.fail(1, "/dev/pf: No such file or directory")
		}
	}
	name := strings.Trim(last(set['a']), "/")
	switch {
	case set['T'] != nil:
		if set['t'] == nil {
			return c.say(1, pfctlUsage)
		}
		return c.pfTable(name, last(set['t']), last(set['T']), rest, set['q'] != nil)
	case len(rest) > 0:
		return c.say(1, pfctlUsage)
	case set['k'] != nil:
		for _, host := range set['k'] {
			if _, err := netip.ParseAddr(host); err != nil {
				return c.fail(1, "getaddrinfo: Name does not resolve")
			}
		}
		fmt.Fprintf(&c.errs, "killed 0 states from %d sources and 0 destinations\n", len(set['k']))
		return 0
	case set['f'] != nil:
		return c.pfLoad(name, last(set['f']), set['n'] != nil)
	case set['F'] != nil:
		if a := c.Anchors[name]; a != nil && (last(set['F']) == "rules" || last(set['F']) == "all") {
			a.Rules = nil
			fmt.Fprintln(&c.errs, "rules cleared")
		}
		return 0
	case set['e'] != nil:
		if c.PF {
			return c.fail(1, "pf already enabled")
		}
		c.PF = true
		return c.say(0, "pf enabled")
	case set['d'] != nil:
		c.PF = false
		return c.say(0, "pf disabled")
	case set['s'] != nil:
		return c.pfShow(name, last(set['s']), set['v'] != nil)
	}
	return c.say(1, pfctlUsage)
}

func (c *command) pfShow(name, what string, verbose bool) int {
	switch {
	case strings.HasPrefix("info", what):
		status := "Disabled"
		if c.PF {
			status = "Enabled"
		}
		fmt.Fprintf(&c.out, "Status: %s for 0 days 00:10:00           Debug: Urgent\n\n", status)
		return 0
	case strings.HasPrefix("rules", what):
		a := c.Anchors[name]
		if a == nil && name != "" {
			return c.fail(1, "DIOCGETRULES: Invalid argument")
		}
		if a != nil {
			for _, r := range a.Rules {
				fmt.Fprintln(&c.out, r)
			}
		}
		return 0
	case strings.HasPrefix("Tables", what):
		a := c.Anchors[name]
		if a == nil {
			if name != "" {
				return c.fail(1, "Anchor does not exist.")
			}
			return 0
		}
		var list []string
		for t := range a.Tables {
			list = append(list, t)
		}
		slices.Sort(list)
		for _, t := range list {
			if verbose {
				mark := "-"
				if a.Tables[t].Declared {
					mark = "r"
				}
				fmt.Fprintf(&c.out, "-pa-%s--\t%s\t%s\n", mark, t, name)
				continue
			}
			fmt.Fprintln(&c.out, t)
		}
		return 0
	case strings.HasPrefix("Anchors", what):
		var list []string
		for a := range c.Anchors {
			if a != "" && (name == "" || strings.HasPrefix(a, name+"/")) {
				list = append(list, "  "+a)
			}
		}
		slices.Sort(list)
		for _, a := range list {
			fmt.Fprintln(&c.out, a)
		}
		return 0
	}
	return c.say(1, pfctlUsage)
}

// pfTable is -T: what it counts goes to standard error.
func (c *command) pfTable(anchorName, name, verb string, addresses []string, quiet bool) int {
	if len(name) > tableLength {
		return c.say(1, pfctlUsage)
	}
	count := func(format string, args ...any) {
		if !quiet {
			fmt.Fprintf(&c.errs, format+".\n", args...)
		}
	}
	for _, a := range addresses {
		if _, err := netip.ParseAddr(a); err != nil {
			if _, err := netip.ParsePrefix(a); err != nil {
				return c.fail(1, "cannot decode %s", a)
			}
		}
	}
	if c.Anchors[anchorName] == nil && (verb == "add" || verb == "replace") {
		c.Anchors[anchorName] = &anchor{Tables: map[string]*table{}}
	}
	var t *table
	if a := c.Anchors[anchorName]; a != nil {
		if t = a.Tables[name]; t == nil && (verb == "add" || verb == "replace") {
			t = &table{}
			a.Tables[name] = t
			count("1 table created")
		}
	}
	if t == nil {
		switch verb {
		case "delete", "show", "test", "flush", "kill", "zero", "expire":
			return c.fail(1, "Table does not exist.")
		}
	}
	if verb != "add" && verb != "delete" && verb != "test" && verb != "replace" && len(addresses) > 0 {
		return c.say(1, pfctlUsage)
	}
	switch verb {
	case "add":
		n := 0
		for _, a := range addresses {
			if !slices.Contains(t.Addresses, a) {
				t.Addresses = append(t.Addresses, a)
				n++
			}
		}
		count("%d/%d addresses added", n, len(addresses))
	case "delete":
		n := 0
		for _, a := range addresses {
			if slices.Contains(t.Addresses, a) {
				t.Addresses = without(t.Addresses, a)
				n++
			}
		}
		count("%d/%d addresses deleted", n, len(addresses))
	case "replace":
		t.Addresses = slices.Clone(addresses)
		count("%d addresses added", len(addresses))
	case "flush":
		count("%d addresses deleted", len(t.Addresses))
		t.Addresses = nil
	case "kill":
		delete(c.Anchors[anchorName].Tables, name)
		count("1 table deleted")
	case "show":
		slices.SortFunc(t.Addresses, strings.Compare)
		for _, a := range t.Addresses {
			fmt.Fprintf(&c.out, "   %s\n", a)
		}
	case "test":
		n := 0
		for _, a := range addresses {
			if slices.Contains(t.Addresses, a) {
				n++
			}
		}
		count("%d/%d addresses match", n, len(addresses))
		if n < len(addresses) {
			return 2
		}
	default:
		c.fail(0, "pfctl_table: unknown command '%s'", verb)
		return 0
	}
	return 0
}

// pfLoad replaces the rules of an anchor. The rules are not understood, but for the tables that they declare; a table that
// persists stays with its members.
func (c *command) pfLoad(name, file string, dry bool) int {
	var text []byte
	var err error
	if file == "-" {
		text, err = io.ReadAll(os.Stdin)
	} else {
		text, err = os.ReadFile(file)
	}
	if err != nil {
		return c.fail(1, "%s: %v", file, errno(err))
	}
	if dry {
		return 0
	}
	a := c.Anchors[name]
	if a == nil {
		a = &anchor{Tables: map[string]*table{}}
		c.Anchors[name] = a
	}
	a.Rules = nil
	for _, t := range a.Tables {
		t.Declared = false
	}
	declares, names := regexp.MustCompile(`^table\s+<([^>]+)>`), regexp.MustCompile(`<([^>]+)>`)
	joined := strings.ReplaceAll(string(text), "\\\n", " ")
	for line := range strings.Lines(joined) {
		line, _, _ = strings.Cut(strings.TrimSpace(line), "#")
		switch line = strings.TrimSpace(line); {
		case line == "":
			continue
		case declares.MatchString(line):
		case regexp.MustCompile(`^(pass|block|anchor|match|rdr|nat|scrub|set|antispoof|load)\b`).MatchString(line):
			a.Rules = append(a.Rules, line)
		case regexp.MustCompile(`^\w+\s*=`).MatchString(line):
			continue
		default:
			return c.say(1, "%s: syntax error\npfctl: Syntax error in config file: pf rules not loaded", file)
		}
		for _, m := range names.FindAllStringSubmatch(line, -1) {
			if len(m[1]) > tableLength {
				return c.say(1, "%s: table name too long, max %d chars\npfctl: Syntax error in config file: pf rules not loaded", file, tableLength)
			}
			if a.Tables[m[1]] == nil {
				a.Tables[m[1]] = &table{}
			}
			a.Tables[m[1]].Declared = true
		}
	}
	return 0
}
