//go:build linux

package hosttest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// pids are the processes of the machine.
func pids() []int {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	var out []int
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil {
			out = append(out, pid)
		}
	}
	return out
}

// space is the file that holds a namespace of a jail: uts, which every process of it is in and none can leave, or net.
func (s *state) space(p *prison, kind string) string {
	return filepath.Join(s.Dir, "ns", fmt.Sprintf("%d.%s", p.JID, kind))
}

// processes are a jail's, those that have ended and that nobody has waited for included.
func (s *state) processes(p *prison) []process { return s.inhabitants(p)[p] }

// inhabitants are the processes of several jails, in one walk through those of the machine.
func (s *state) inhabitants(jails ...*prison) map[*prison][]process {
	out := map[*prison][]process{}
	add := func(p *prison, q process) {
		q.jid = p.JID
		out[p] = append(out[p], q)
	}
	spaces := map[string]*prison{}
	for _, p := range jails {
		var uts unix.Stat_t
		if err := unix.Stat(s.space(p, "uts"), &uts); err == nil {
			spaces[fmt.Sprintf("uts:[%d]", uts.Ino)] = p
		}
	}
	if len(spaces) > 0 {
		for _, pid := range pids() {
			if pid == os.Getpid() {
				continue // jail(8), which made the namespace and is not in the jail
			}
			to, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/uts", pid))
			if p := spaces[to]; err == nil && p != nil {
				if q, err := look(pid); err == nil {
					add(p, q)
				}
			}
		}
	}
	// One that ends has left its namespaces a moment before it is a zombie.
	for _, p := range jails {
		for _, e := range p.Entered {
			if q, err := look(e.PID); err == nil && q.started == e.Start && q.state != "X" && !slices.ContainsFunc(out[p], func(o process) bool { return o.pid == e.PID }) {
				add(p, q)
			}
		}
	}
	return out
}

// process is what /proc says of one.
type process struct {
	pid, ppid, jid         int
	uid, gid               [3]string // real, effective, saved
	state, started, name   string
	noNewPrivs             bool
	threads                int64
	resident, virtual, cpu int64 // bytes, bytes, seconds
}

func look(pid int) (process, error) {
	p := process{pid: pid}
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return p, err
	}
	open, end := strings.Index(string(text), "("), strings.LastIndex(string(text), ")")
	if open < 0 || end < 0 {
		return p, errors.New("no process")
	}
	p.name = string(text[open+1 : end])
	f := strings.Fields(string(text[end+1:]))
	if len(f) < 22 {
		return p, errors.New("no process")
	}
	number := func(i int) int64 {
		n, _ := strconv.ParseInt(f[i], 10, 64) // the kernel wrote it
		return n
	}
	p.state, p.ppid, p.started = f[0], int(number(1)), f[19]
	p.cpu, p.threads, p.virtual, p.resident = (number(11)+number(12))/100, number(17), number(20), number(21)*int64(os.Getpagesize())
	text, err = os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return p, err
	}
	for line := range strings.Lines(string(text)) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		words := strings.Fields(value)
		switch key {
		case "Uid":
			copy(p.uid[:], words)
		case "Gid":
			copy(p.gid[:], words)
		case "NoNewPrivs":
			p.noNewPrivs = words[0] == "1"
		}
	}
	return p, nil
}

// kill ends the processes of a jail and returns when none runs.
func (s *state) kill(p *prison) error {
	for deadline := time.Now().Add(10 * time.Second); ; {
		left := slices.DeleteFunc(s.processes(p), func(q process) bool { return q.state == "Z" || q.state == "X" })
		if len(left) == 0 {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%d processes of jail %s do not end", len(left), p.Name)
		}
		for _, q := range left {
			_ = unix.Kill(q.pid, unix.SIGKILL) // it may have ended
		}
		time.Sleep(time.Millisecond)
	}
}

// psKeys are the keywords of ps(1) that are modelled.
func psKeys() map[string]func(process) string {
	return map[string]func(process) string{
		"pid":  func(p process) string { return strconv.Itoa(p.pid) },
		"ppid": func(p process) string { return strconv.Itoa(p.ppid) },
		"jid":  func(p process) string { return strconv.Itoa(p.jid) },
		"ruid": func(p process) string { return p.uid[0] }, "uid": func(p process) string { return p.uid[1] }, "svuid": func(p process) string { return p.uid[2] },
		"rgid": func(p process) string { return p.gid[0] }, "gid": func(p process) string { return p.gid[1] }, "svgid": func(p process) string { return p.gid[2] },
		"comm": func(p process) string { return p.name }, "ucomm": func(p process) string { return p.name },
		"f2": func(p process) string {
			if p.noNewPrivs {
				return "00008000" // P2_NO_NEW_PRIVS
			}
			return "00000000"
		},
		"state": psState, "stat": psState,
		"etimes": func(p process) string {
			start, _ := strconv.ParseInt(p.started, 10, 64) // the kernel wrote it
			var up unix.Timespec
			if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &up); err != nil {
				return "0"
			}
			return strconv.FormatInt(max(up.Sec-start/100, 0), 10)
		},
		"rss": func(p process) string { return strconv.FormatInt(p.resident/1024, 10) },
	}
}

func psState(p process) string {
	first := map[string]string{"R": "R", "S": "S", "D": "D", "T": "T", "t": "T", "Z": "Z"}[p.state]
	if first == "" {
		first = "I"
	}
	if p.jid != 0 {
		return first + "J"
	}
	return first
}

// ps is ps(1) with -o and one of -J, -p, -ax. An item of -o that has a "=" is its last, so that "pid=,ppid=" is one column.
func (c *command) ps() int {
	set, rest, bad := flags(c.args, "J:p:o:axd")
	if bad != 0 || len(rest) > 0 {
		return c.say(1, "usage: ps [--libxo] [-AaCcdefHhjlmrSTuvwXxZ] [-O fmt | -o fmt]\n\t  [-G gid[,gid...]] [-J jid[,jid...]] [-M core] [-N system]\n\t  [-p pid[,pid...]] [-t tty[,tty...]] [-U user[,user...]]\n\tps [--libxo] -L")
	}
	type column struct {
		header string
		value  func(process) string
	}
	var columns []column
	for _, o := range set['o'] {
		for o != "" {
			item, more, _ := strings.Cut(o, ",")
			o = more
			if key, header, titled := strings.Cut(item, "="); titled {
				item, o = key, ""
				if more != "" {
					header += "," + more
				}
				if psKeys()[key] == nil {
					return c.say(1, "ps: %s: keyword not found\nps: no valid keywords; valid keywords:", key)
				}
				columns = append(columns, column{header, psKeys()[key]})
				continue
			}
			if psKeys()[item] == nil {
				return c.say(1, "ps: %s: keyword not found\nps: no valid keywords; valid keywords:", item)
			}
			columns = append(columns, column{strings.ToUpper(item), psKeys()[item]})
		}
	}
	if len(columns) == 0 {
		for _, key := range []string{"pid", "stat", "comm"} {
			columns = append(columns, column{strings.ToUpper(key), psKeys()[key]})
		}
	}
	var found []process
	for _, list := range set['J'] {
		for _, id := range strings.FieldsFunc(list, func(r rune) bool { return r == ',' || r == ' ' }) {
			p := c.prison(id, false)
			if p == nil {
				return c.fail(1, "Invalid jail id: %s", id)
			}
			found = append(found, c.processes(p)...)
		}
	}
	jids := map[int]int{}
	if set['p'] != nil || set['x'] != nil {
		for p, inside := range c.inhabitants(c.Jails...) {
			for _, q := range inside {
				jids[q.pid] = p.JID
			}
		}
	}
	wanted := pids()
	if set['x'] == nil {
		wanted = nil
		for _, list := range set['p'] {
			for _, text := range strings.Split(list, ",") {
				pid, err := strconv.Atoi(text)
				if err != nil {
					return c.fail(1, "Invalid process id: %s", text)
				}
				wanted = append(wanted, pid)
			}
		}
	}
	for _, pid := range wanted {
		if q, err := look(pid); err == nil {
			q.jid = jids[pid]
			found = append(found, q)
		}
	}
	rows := [][]string{}
	headers, titled := []string{}, false
	for _, col := range columns {
		headers = append(headers, col.header)
		titled = titled || col.header != ""
	}
	if titled {
		rows = append(rows, headers)
	}
	for _, q := range found {
		var row []string
		for _, col := range columns {
			row = append(row, col.value(q))
		}
		rows = append(rows, row)
	}
	c.columns(rows)
	if len(found) == 0 {
		return 1
	}
	return 0
}

// columns prints rows with each column as wide as its widest entry, numbers to the right.
func (c *command) columns(rows [][]string) {
	width := map[int]int{}
	for _, row := range rows {
		for i, text := range row {
			width[i] = max(width[i], len(text))
		}
	}
	for _, row := range rows {
		for i, text := range row {
			if i > 0 {
				c.out.WriteByte(' ')
			}
			fmt.Fprintf(&c.out, "%*s", width[i], text)
		}
		c.out.WriteByte('\n')
	}
}
