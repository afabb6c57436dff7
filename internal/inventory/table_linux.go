package inventory

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/google/nftables"
	"github.com/moby/sys/mountinfo"

	"github.com/clawjail/clawjail/internal/jail"
)

// table is everything that a jail can leave on a Linux host.
var table = []probe{
	{"process", processes},
	{"cgroup", cgroups},
	{"mount", mounts},
	{"interface", interfaces},
	{"namespace", namespaces},
	{"nft_table", nftTables},
	{"nft_element", nftElements},
	{"loop_device", loopDevices},
	{"clone", under(func(s Scope) string { return filepath.Join(s.Data, "clones") })},
	{"record", under(func(s Scope) string { return filepath.Join(s.Data, "journal") })},
	{"staged", under(func(s Scope) string { return filepath.Join(s.Run, "bundles") })},
	{"runtime_state", under(func(s Scope) string { return filepath.Join(s.Run, "runtime") })},
	{"jail_dir", under(func(s Scope) string { return filepath.Join(s.Run, "jails") })},
	{"shared_memory", sharedMemory},
	{"temporary", temporary},
}

func (s Scope) mark() string { return "clawjail-" + string(s.Installation) }

func (s Scope) ownsUID(uid uint64) bool {
	return s.UIDs > 0 && uid >= uint64(s.UIDBase) && uid < uint64(s.UIDBase)+uint64(s.UIDs)
}

// within reports whether a path is one of the installation's folders or beneath one.
func (s Scope) within(path string) bool {
	for _, dir := range []string{s.Data, s.Run} {
		if dir != "" && (path == dir || strings.HasPrefix(path, dir+"/")) {
			return true
		}
	}
	return false
}

// processes finds those that run as one of the jails' users, sit in one of its cgroups, or are a runtime for one of its
// jails (which may have been killed half-way). A process in a cgroup of another installation is that one's: both may have
// the same numbers, and the same folders where they see different file systems.
func processes(_ context.Context, s Scope) ([]string, error) {
	pids, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	var out []string
	for _, p := range pids {
		pid, err := strconv.Atoi(p.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		dir := filepath.Join("/proc", p.Name())
		status, err := os.ReadFile(filepath.Join(dir, "status"))
		if err != nil {
			continue // it has ended
		}
		name, uid, ended := statusFields(string(status))
		group, _ := os.ReadFile(filepath.Join(dir, "cgroup")) // a process that has ended has none
		line, _ := os.ReadFile(filepath.Join(dir, "cmdline"))
		if ended {
			continue
		}
		if s.ownsProcess(uid, string(group), strings.Split(string(line), "\x00")) {
			out = append(out, fmt.Sprintf("%d %s uid %d", pid, name, uid))
		}
	}
	return out, nil
}

// ownsProcess decides by a process's user, control groups and arguments. A program that looks at a file of the
// installation has a folder of it among the arguments, too: a runtime has the name of a jail besides.
func (s Scope) ownsProcess(uid uint64, groups string, args []string) bool {
	own, others := false, false
	for group := range strings.FieldsSeq(groups) {
		for part := range strings.SplitSeq(group, "/") {
			id, marked := strings.CutPrefix(part, "clawjail-")
			own = own || marked && id == string(s.Installation)
			others = others || marked && len(id) == len(s.Installation) && id != string(s.Installation)
		}
	}
	if own || others {
		return own
	}
	if s.ownsUID(uid) {
		return true
	}
	ofRun := func(arg string) bool { return s.Run != "" && strings.HasPrefix(arg, s.Run+"/") }
	ofJail := func(arg string) bool { return jail.Name(arg).Belongs(s.Installation) }
	return slices.ContainsFunc(args, ofRun) && slices.ContainsFunc(args, ofJail)
}

// statusFields reads a process's name and user, and whether it has ended and is the first process's to collect: that
// one does it when it comes to it, and what is left until then is a number.
func statusFields(status string) (name string, uid uint64, ended bool) {
	fields := map[string]string{}
	for line := range strings.Lines(status) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		if f := strings.Fields(value); len(f) > 0 {
			fields[key] = f[0]
		}
	}
	uid, _ = strconv.ParseUint(fields["Uid"], 10, 32) // the kernel writes a number
	return fields["Name"], uid, fields["State"] == "Z" && fields["PPid"] == "1"
}

func cgroups(_ context.Context, s Scope) ([]string, error) {
	var out []string
	err := filepath.WalkDir("/sys/fs/cgroup", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			if errors.Is(err, fs.ErrNotExist) {
				return nil // removed while walking
			}
			return err
		}
		if d.IsDir() && (d.Name() == s.mark() || strings.Contains(path, "/"+s.mark()+"/")) {
			out = append(out, path)
		}
		return nil
	})
	return out, err
}

func mounts(_ context.Context, s Scope) ([]string, error) {
	all, err := mountinfo.GetMounts(func(m *mountinfo.Info) (skip, stop bool) { return !s.within(m.Mountpoint), false })
	var out []string
	for _, m := range all {
		out = append(out, m.Mountpoint)
	}
	return out, err
}

func interfaces(_ context.Context, s Scope) ([]string, error) {
	if s.Installation == "" {
		return nil, nil // it was never started; every installation's names begin with no id
	}
	all, err := net.Interfaces()
	var out []string
	for _, i := range all {
		if strings.HasPrefix(i.Name, "cj"+string(s.Installation)) || i.Name == "cjbr"+string(s.Installation) {
			out = append(out, i.Name)
		}
	}
	return out, err
}

func namespaces(_ context.Context, s Scope) ([]string, error) {
	return list(filepath.Join(s.Run, "netns"))
}

func nftTables(_ context.Context, s Scope) ([]string, error) {
	tables, err := ourTables(s)
	var out []string
	for _, t := range tables {
		out = append(out, fmt.Sprintf("%d %s", t.Family, t.Name))
	}
	return out, err
}

func ourTables(s Scope) ([]*nftables.Table, error) {
	if s.Installation == "" {
		return nil, nil
	}
	conn, err := nftables.New()
	if err != nil {
		return nil, err
	}
	all, err := conn.ListTables()
	var out []*nftables.Table
	for _, t := range all {
		if strings.Contains(t.Name, "clawjail") && strings.Contains(t.Name, string(s.Installation)) {
			out = append(out, t)
		}
	}
	return out, err
}

func nftElements(_ context.Context, s Scope) ([]string, error) {
	tables, err := ourTables(s)
	if err != nil {
		return nil, err
	}
	conn, err := nftables.New()
	if err != nil {
		return nil, err
	}
	var out []string
	for _, t := range tables {
		sets, err := conn.GetSets(t)
		if err != nil {
			return out, err
		}
		for _, set := range sets {
			if set.Anonymous || set.KeyType.Bytes != 4 {
				continue // the table's own: only addresses are members
			}
			elements, err := conn.GetSetElements(set)
			if err != nil {
				return out, err
			}
			for _, e := range elements {
				if a, ok := netip.AddrFromSlice(e.Key); ok {
					out = append(out, set.Name+" "+a.String())
				} else {
					out = append(out, fmt.Sprintf("%s %x", set.Name, e.Key))
				}
			}
		}
	}
	return out, nil
}

func loopDevices(_ context.Context, s Scope) ([]string, error) {
	files, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		return nil, err
	}
	var out []string
	for _, f := range files {
		if b, err := os.ReadFile(f); err == nil && s.within(strings.TrimSpace(string(b))) {
			out = append(out, strings.Split(f, "/")[3]+" "+strings.TrimSpace(string(b)))
		}
	}
	return out, nil
}

func sharedMemory(_ context.Context, s Scope) ([]string, error) { return ownedIn("/dev/shm", s) }

func temporary(_ context.Context, s Scope) ([]string, error) { return ownedIn(os.TempDir(), s) }

// ownedIn lists the entries of a folder that belong to one of the jails' users.
func ownedIn(dir string, s Scope) ([]string, error) {
	names, err := list(dir)
	var out []string
	for _, n := range names {
		if info, err := os.Lstat(n); err == nil && s.ownsUID(ownerOf(info)) {
			out = append(out, n)
		}
	}
	return out, err
}

func under(dir func(Scope) string) func(context.Context, Scope) ([]string, error) {
	return func(_ context.Context, s Scope) ([]string, error) { return list(dir(s)) }
}

// list names what is in a folder. A folder that is not there is empty.
func list(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var out []string
	for _, e := range entries {
		out = append(out, filepath.Join(dir, e.Name()))
	}
	return out, err
}
