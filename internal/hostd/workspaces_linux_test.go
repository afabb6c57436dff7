package hostd

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/testenv"
)

// writer is a jail of an agent with a workspace.
func writer(tenant, source string, readOnly bool) jail.Spec {
	s := spec("exec cat")
	s.Kind, s.Agent = jail.KindAgent, &jail.Agent{Tenant: tenant, Name: "bot"}
	s.Mounts = []jail.Mount{{Source: source, Target: "/workspace", ReadOnly: readOnly}}
	return s
}

func fill(t *testing.T, path string, size int) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, make([]byte, size), 0o600)); err != nil {
		t.Fatal(err)
	}
}

func TestWhoseWorkspacesTakeTheDiskOfOthers(t *testing.T) {
	root := t.TempDir()
	const mib = 1 << 20
	fill(t, root+"/greedy/a/big", 8*mib)
	fill(t, root+"/greedy/of-nobody-now", mib)
	fill(t, root+"/other/small", mib)
	jails := []jail.Status{
		{Name: "atest00001", Spec: writer("greedy", root+"/greedy/a", false)},
		{Name: "atest00002", Spec: writer("greedy", root+"/greedy/a/b", true)},
		{Name: "atest00003", Spec: spec("")},
		{Name: "atest00004", Spec: writer("other", root+"/other", false)},
		{Name: "atest00005", Spec: writer("default", root+"/not-there", false)},
	}
	r := room{size: 100 * mib, free: 50 * mib, files: 1000, filesFree: 900}
	var ended []jail.Name
	who := &tenants{quotas: config.Default().Quotas, count: 2}
	w := &workspaces{WorkspaceOptions: WorkspaceOptions{Roots: []string{root}, Disk: root}, tenants: who, log: debugLog(t.Output()),
		look: func() (room, error) { return r, nil },
		list: func(context.Context) ([]jail.Status, error) { return jails, nil },
		end:  func(_ context.Context, n jail.Name) error { ended = append(ended, n); return nil }}
	tend := func(what string, counted bool, over ...string) {
		t.Helper()
		ended = nil
		is, err := w.tend(t.Context())
		if err != nil || is != counted || len(w.over) != len(over) {
			t.Errorf("%s: counted %t, beyond their share are %v (%v), want %v", what, is, w.over, err, over)
		}
		var want []jail.Name
		for _, tenant := range over {
			if problem.CodeOf(w.over[tenant]) != problem.DiskFull {
				t.Errorf("%s: %v", what, w.over[tenant])
			}
			for _, j := range jails {
				if j.Spec.Tenant() == tenant && !j.Spec.Mounts[0].ReadOnly {
					want = append(want, j.Name)
				}
			}
		}
		if !slices.Equal(ended, want) {
			t.Errorf("%s: ended are %v, want %v", what, ended, want)
		}
		for _, j := range jails {
			if err := w.check(j.Spec); (err != nil) != slices.Contains(want, j.Name) {
				t.Errorf("%s: one more such as %s: %v", what, j.Name, err)
			}
		}
	}
	tend("with much room", false)
	r.free = 15 * mib
	tend("with little room, and nobody who has most of it", true) // 9 of 25
	r.free = mib
	tend("with 9 of 11 MiB", true, "greedy")
	who.count = 1
	tend("alone", false)
	who.count = 2
	fill(t, root+"/other/more", 4*mib)
	tend("with 9 of 15 MiB", true)
	w.Unlinked = func(uint64) (map[string]int64, error) { return map[string]int64{"greedy": 30 * mib}, nil }
	tend("with files that have no name", true, "greedy")
	w.Unlinked = nil
	r.free, r.filesFree = 50*mib, 1
	tend("with most files", true)
	for n := range 40 {
		fill(t, root+"/greedy/many/"+strings.Repeat("x", n+1), 0)
	}
	tend("with nearly all files", true, "greedy")
	if err := os.RemoveAll(root + "/greedy/many"); err != nil {
		t.Fatal(err)
	}
	tend("when they are removed", true)
}

// A disk of its own is filled by one tenant, with a whole host daemon, while another one works.
func TestATenantThatFillsTheDiskIsEnded(t *testing.T) {
	testenv.Need(t, testenv.Root)
	disk := t.TempDir()
	if err := unix.Mount("clawjail", disk, "tmpfs", 0, "size=16m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(disk, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	f := newFixture(t, func(o *Options) { o.Workspaces = WorkspaceOptions{Roots: []string{disk}, Disk: disk} })
	c := f.client(t)
	fill(t, disk+"/other/small", 1<<20)
	fill(t, disk+"/greedy/big", 14<<20)
	greedy, other := create(t, c, writer("greedy", disk+"/greedy", false)), create(t, c, writer("other", disk+"/other", false))
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if _, err := c.Wait(ctx, greedy.Name); err != nil {
		t.Fatalf("it is not ended: %v", err)
	}
	_, err := c.Create(t.Context(), writer("greedy", disk+"/greedy", false))
	if p, _ := problem.As(err); p == nil || p.Code != problem.DiskFull || !strings.Contains(p.Message, "tenant greedy has") {
		t.Errorf("it is made anew: %v", err)
	}
	create(t, c, writer("greedy", disk+"/greedy", true))
	create(t, c, writer("other", disk+"/other", false))
	if st, err := c.Inspect(t.Context(), other.Name); err != nil || st.Exit != nil {
		t.Errorf("the jail of another tenant: %+v (%v)", st.Exit, err)
	}
	if err := os.Remove(disk + "/greedy/big"); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, patience, func() bool {
		j, err := c.Create(t.Context(), writer("greedy", disk+"/greedy", false))
		if err == nil {
			t.Cleanup(j.Stdio.Close)
		}
		return err == nil
	}, "there is room, and it is not made")
}
