//go:build linux

package hosttest

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// params are the parameters of a jail, by name, with the values that were given: several for a list.
type params map[string][]string

func (p params) value(name string) string { return last(p[name]) }

// on says whether a boolean is set: "persist", "persist = true", and not "nopersist".
func (p params) on(name string) bool {
	dot := strings.LastIndex(name, ".") + 1
	if _, off := p[name[:dot]+"no"+name[dot:]]; off {
		return false
	}
	v, given := p[name]
	return given && (len(v) == 0 || last(v) == "true" || last(v) == "1" || last(v) == "")
}

// known are the parameters that are modelled: jail(8) and `sysctl -d security.jail.param`. A real host has more.
func known() map[string]string {
	out := map[string]string{}
	for kind, list := range map[string]string{
		"bool": "persist vnet exec.clean mount.devfs mount.fdescfs mount.procfs allow.dying allow.set_hostname allow.sysvipc allow.raw_sockets allow.chflags " +
			"allow.mount allow.mount.devfs allow.mount.tmpfs allow.mount.nullfs allow.mount.zfs allow.mount.procfs allow.mount.fdescfs allow.quotas allow.read_msgbuf allow.socket_af " +
			"allow.mlock allow.nfsd allow.reserved_ports allow.unprivileged_proc_debug allow.suser allow.extattr allow.adjtime allow.settime allow.routing",
		"int":     "devfs_ruleset securelevel enforce_statfs children.max exec.timeout stop.timeout exec.fib",
		"jailsys": "ip4 ip6 host vnet sysvmsg sysvsem sysvshm linux",
		"text": "path name jid host.hostname host.hostuuid vnet.interface ip4.addr ip6.addr interface exec.prestart exec.start exec.poststart exec.created exec.prestop exec.stop exec.poststop " +
			"exec.jail_user exec.system_user exec.system_jail_user exec.consolelog mount mount.fstab command depend osrelease osreldate mac.do mac.do.rules",
	} {
		for _, name := range strings.Fields(list) {
			out[name] = kind
			if kind == "bool" {
				dot := strings.LastIndex(name, ".") + 1
				out[name[:dot]+"no"+name[dot:]] = kind
			}
		}
	}
	return out
}

// check refuses what jail(8) or the kernel would refuse of the parameters, and says it.
func (p params) check() string {
	for _, name := range slices.Sorted(maps.Keys(p)) {
		kind, given := known()[name], p[name]
		switch {
		case kind == "":
			return "unknown parameter: " + name
		case kind == "int":
			v := strings.TrimPrefix(last(given), "-")
			if v == "" || strings.Trim(v, "0123456789") != "" {
				return fmt.Sprintf("%s: non-integer value %q", name, last(given))
			}
		case kind == "jailsys" && len(given) > 0 && !slices.Contains([]string{"new", "inherit", "disable", ""}, last(given)):
			return fmt.Sprintf("%s: unknown jailsys value %q", name, last(given))
		case kind == "bool" && len(given) > 0 && !slices.Contains([]string{"true", "false", "1", "0", ""}, last(given)):
			return fmt.Sprintf("%s: unknown boolean value %q", name, last(given))
		}
	}
	for _, bad := range []string{"exec.prestart", "exec.start", "exec.poststart", "exec.created", "exec.prestop", "exec.stop", "exec.poststop", "mount", "mount.fstab", "mount.procfs",
		"mount.fdescfs", "depend", "exec.consolelog"} {
		if len(p[bad]) > 0 {
			return "simulator: " + bad + " is not modelled"
		}
	}
	if name := p.value("name"); strings.Contains(name, ".") || strings.Trim(name, "0123456789") == "" && name != "" {
		// A dot separates a jail from its parent, which has to be there; a number would be a jid.
		return fmt.Sprintf("name %q is not modelled: jail(8) takes a dot for a child of another jail and digits for a jid", name)
	}
	if (p.on("vnet") || p.value("vnet") == "new") && (len(p["ip4.addr"]) > 0 || len(p["ip6.addr"]) > 0) {
		return "vnet jails cannot have IP address restrictions"
	}
	if v := p.value("enforce_statfs"); v != "" && v != "0" && v != "1" && v != "2" {
		return "enforce_statfs: Invalid argument"
	}
	return ""
}

// parseConf reads jail.conf(5): blocks of a name and parameters, which also may stand before all blocks.
func parseConf(text string) (map[string]params, error) {
	words, err := tokens(text)
	if err != nil {
		return nil, err
	}
	all, blocks := params{}, map[string]params{}
	at, name := all, ""
	for i := 0; i < len(words); {
		w := words[i]
		i++
		switch {
		case w.text == "}" && !w.quoted:
			if name == "" {
				return nil, fmt.Errorf("line %d: syntax error", w.line)
			}
			at, name = all, ""
			continue
		case w.text == ";" && !w.quoted:
			continue
		case i < len(words) && words[i].text == "{" && !words[i].quoted:
			if name != "" {
				return nil, fmt.Errorf("line %d: syntax error", w.line)
			}
			i++
			name = w.text
			at = params{}
			for k, v := range all {
				at[k] = slices.Clone(v)
			}
			if _, twice := blocks[name]; twice {
				at = blocks[name]
			}
			blocks[name] = at
			at["name"] = []string{name}
			continue
		}
		if i < len(words) && (words[i].text == "=" || words[i].text == "+=") && !words[i].quoted {
			more := words[i].text == "+="
			i++
			var values []string
			for ; i < len(words) && (words[i].quoted || words[i].text != ";"); i++ {
				if words[i].text == "}" && !words[i].quoted || words[i].text == "{" && !words[i].quoted {
					return nil, fmt.Errorf("line %d: syntax error", words[i].line)
				}
				if words[i].text != "," || words[i].quoted {
					values = append(values, words[i].text)
				}
			}
			if more {
				values = append(at[w.text], values...)
			}
			if len(values) == 0 {
				return nil, fmt.Errorf("line %d: syntax error", w.line)
			}
			at[w.text] = values
		} else {
			at[w.text] = []string{}
		}
		if i >= len(words) || words[i].quoted || words[i].text != ";" {
			return nil, fmt.Errorf("line %d: syntax error", w.line)
		}
		i++
	}
	if name != "" {
		return nil, fmt.Errorf("syntax error at the end")
	}
	return blocks, nil
}

type word struct {
	text   string
	quoted bool
	line   int
}

// tokens are the words of a jail.conf. Variables are not modelled.
func tokens(text string) ([]word, error) {
	var out []word
	line := 1
	for i := 0; i < len(text); {
		switch c := text[i]; {
		case c == '\n':
			line++
			i++
		case c == ' ' || c == '\t':
			i++
		case c == '#' || strings.HasPrefix(text[i:], "//"):
			for i < len(text) && text[i] != '\n' {
				i++
			}
		case strings.IndexByte("{};=,", c) >= 0:
			out = append(out, word{string(c), false, line})
			i++
		case strings.HasPrefix(text[i:], "+="):
			out = append(out, word{"+=", false, line})
			i += 2
		case c == '"' || c == '\'':
			var b strings.Builder
			for i++; i < len(text) && text[i] != c; i++ {
				if text[i] == '\\' && c == '"' && i+1 < len(text) {
					i++
				}
				if text[i] == '$' && c == '"' {
					return nil, fmt.Errorf("line %d: variables are not modelled", line)
				}
				b.WriteByte(text[i])
			}
			if i >= len(text) {
				return nil, fmt.Errorf("line %d: unterminated string", line)
			}
			i++
			out = append(out, word{b.String(), true, line})
		default:
			from := i
			for i < len(text) && strings.IndexByte(" \t\n{};=,\"'#", text[i]) < 0 && !strings.HasPrefix(text[i:], "+=") {
				i++
			}
			if strings.Contains(text[from:i], "$") {
				return nil, fmt.Errorf("line %d: variables are not modelled", line)
			}
			out = append(out, word{text[from:i], false, line})
		}
	}
	return out, nil
}
