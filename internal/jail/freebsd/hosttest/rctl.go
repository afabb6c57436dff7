//go:build linux

package hosttest

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

const rctlUsage = "usage: rctl [ -h ] [-a rule | -l filter | -r filter | -u filter | filter]"

// resources are those of rctl(8), in the order in which it prints them; those that can be denied are marked. memoryuse and
// pcpu are taken with deny although the first then denies nothing and the second slows down.
func resources() []string {
	return []string{"cputime", "datasize+", "stacksize+", "coredumpsize+", "memoryuse", "memorylocked+", "maxproc+", "openfiles+", "vmemoryuse+", "pseudoterminals+",
		"swapuse+", "nthr+", "msgqqueued+", "msgqsize+", "nmsgq+", "nsem+", "nsemop+", "nshm+", "shmsize+", "wallclock", "pcpu", "readbps", "writebps", "readiops", "writeiops"}
}

func (c *command) rctl() int {
	set, rest, bad := flags(c.args, "ahlnru")
	if bad != 0 {
		return c.say(1, rctlUsage)
	}
	if c.Sysctls["kern.racct.enable"] == "" {
		return c.fail(1, "RACCT/RCTL support not present in kernel; see rctl(8) for details")
	}
	verbs := 0
	for _, v := range []byte("alru") {
		if set[v] != nil {
			verbs++
		}
	}
	if verbs > 1 {
		return c.fail(1, "at most one of -a, -l, -r, or -u may be specified")
	}
	if len(rest) == 0 && verbs > 0 {
		return c.say(1, rctlUsage)
	}
	if c.Sysctls["kern.racct.enable"] == "0" {
		return c.fail(1, "RACCT/RCTL present, but disabled; enable using kern.racct.enable=1 tunable")
	}
	if len(rest) == 0 {
		for _, r := range c.Limits {
			fmt.Fprintln(&c.out, r)
		}
		return 0
	}
	failures := 0
	for _, text := range rest {
		switch {
		case set['a'] != nil:
			rule, why := ruleOf(text)
			if why != "" {
				failures += c.fail(1, "failed to add rule '%s': %s", text, why)
				continue
			}
			c.addRule(rule)
		case set['r'] != nil:
			f := strings.TrimSuffix(text, ":")
			before := len(c.Limits)
			c.Limits = slices.DeleteFunc(c.Limits, func(r string) bool { return matches(r, f) })
			if len(c.Limits) == before {
				failures += c.fail(1, "failed to remove rule '%s': No such process", text)
			}
		case set['l'] != nil:
			failures += c.fail(1, "failed to get limits for '%s': Operation not supported", text)
		case set['u'] != nil:
			c.usage(text)
		default:
			for _, r := range c.Limits {
				if matches(r, strings.TrimSuffix(text, ":")) {
					fmt.Fprintln(&c.out, r)
				}
			}
		}
	}
	for _, j := range c.Jails {
		if err := c.enforce(j.Name); err != nil {
			return c.say(broken, "simulator: rctl: %v", err)
		}
	}
	return failures
}

// ruleOf checks a rule and writes it as the kernel prints it: a plain number, and no "per" that is the subject itself.
func ruleOf(text string) (string, string) {
	f := strings.Split(text, ":")
	if len(f) != 4 || f[0] != "jail" && f[0] != "j" || f[1] == "" {
		return "", "Invalid argument"
	}
	action, amount, ok := strings.Cut(f[3], "=")
	if !ok {
		return "", "Invalid argument"
	}
	amount, per, _ := strings.Cut(amount, "/")
	n, good := size(amount)
	if !good {
		return "", "Invalid argument"
	}
	known := slices.IndexFunc(resources(), func(r string) bool { return strings.TrimSuffix(r, "+") == f[2] })
	if known < 0 {
		return "", "Invalid argument"
	}
	deniable := strings.HasSuffix(resources()[known], "+") || f[2] == "memoryuse" || f[2] == "pcpu"
	switch {
	case action == "deny" && !deniable:
		return "", "Operation not supported"
	case action != "deny" && action != "log" && action != "devctl" && !strings.HasPrefix(action, "sig"):
		return "", "Invalid argument"
	}
	switch per {
	case "", "jail":
		per = ""
	case "process", "user":
		per = "/" + per
	default:
		return "", "Invalid argument"
	}
	return fmt.Sprintf("jail:%s:%s:%s=%d%s", f[1], f[2], action, n, per), ""
}

// addRule adds a rule. One of the same kind with deny is replaced, and the same one twice is one.
func (s *state) addRule(rule string) {
	kind, _, _ := strings.Cut(rule, "=")
	per := rule[strings.LastIndexAny(rule, "=/"):]
	s.Limits = slices.DeleteFunc(s.Limits, func(r string) bool {
		k, _, _ := strings.Cut(r, "=")
		p := r[strings.LastIndexAny(r, "=/"):]
		return r == rule || strings.HasSuffix(kind, ":deny") && k == kind && (p == per || per[0] == '=' && p[0] == '=')
	})
	s.Limits = append(s.Limits, rule)
}

// matches says whether a rule is one of a filter's: the same beginning, field by field.
func matches(rule, filter string) bool {
	r, f := strings.FieldsFunc(rule, separates), strings.FieldsFunc(filter, separates)
	return len(f) <= len(r) && slices.Equal(r[:len(f)], f)
}

func separates(r rune) bool { return r == ':' || r == '=' || r == '/' }

// limitsOf are the limits of a jail, by resource and per.
func (s *state) limitsOf(jail string) map[string]uint64 {
	out := map[string]uint64{}
	for _, r := range s.Limits {
		f := strings.Split(r, ":")
		if f[1] != jail {
			continue
		}
		action, amount, _ := strings.Cut(f[3], "=")
		amount, per, _ := strings.Cut(amount, "/")
		key := f[2]
		if per != "" {
			key += "/" + per
		}
		if action != "deny" {
			key += " " + action
		}
		out[key], _ = strconv.ParseUint(amount, 10, 64) // ruleOf wrote it
	}
	return out
}

// usage prints what a jail consumes: zeros for one that does not exist, which is no error.
func (c *command) usage(text string) {
	_, name, _ := strings.Cut(strings.TrimSuffix(text, ":"), ":")
	used := map[string]int64{}
	if j := c.prison(name, false); j != nil {
		for _, p := range c.processes(j) {
			used["maxproc"]++
			used["nthr"] += p.threads
			used["memoryuse"] += p.resident
			used["vmemoryuse"] += p.virtual
			used["cputime"] += p.cpu
		}
	}
	for _, r := range resources() {
		r = strings.TrimSuffix(r, "+")
		fmt.Fprintf(&c.out, "%s=%d\n", r, used[r])
	}
}
