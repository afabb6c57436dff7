//go:build linux && zfs

// These run by `go test -tags zfs -run ZFS ./test/jails`, and not with all others: a host daemon that has made jails on zfs-fuse
// now and then does not stop within a minute. The storage itself is tried on zfs-fuse by the tests of internal/jail/linux.

package jails

import (
	"context"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/clawjail/clawjail/internal/instance"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/jail/jailtest"
	"github.com/clawjail/clawjail/internal/testenv"
	"github.com/clawjail/clawjail/test/testkit"
)

// The template is built into a dataset by the program, the host daemon clones it, and nothing of it is left when the
// template was removed.
func TestTheLinuxDriverConformsWithClonesOnZFS(t *testing.T) {
	if !testenv.OnZFS(t) {
		return
	}
	dataset := testenv.Pool(t, 512<<20)
	b, c := tiny(t, instance.Options{Settings: testkit.NoPool + "storage: zfs\nzfs_dataset: " + dataset + "\n"})
	t.Cleanup(func() { // or its folder could not be removed
		if out, err := b.Run(context.Background(), "template", "rm", "tiny"); err != nil {
			t.Errorf("remove the template: %v\n%s", err, out)
		}
	})
	missing, err := jail.NewName(jail.KindBrowser, b.HostScope().Installation, 99_999)
	if err != nil {
		t.Fatal(err)
	}
	jailtest.Run(t, func(*testing.T) jailtest.Subject {
		return jailtest.Subject{Driver: c, Template: "tiny", Missing: missing, Confines: true,
			Resources: func(ctx context.Context) ([]jail.HostResource, error) { return jailsOnly(c.HostResources(ctx)) }}
	})
}

func TestTemplatesOnZFSAreBuiltVerifiedReplacedAndRemoved(t *testing.T) {
	if !testenv.OnZFS(t) {
		return
	}
	dataset := testenv.Pool(t, 512<<20)
	b, c := tiny(t, instance.Options{Settings: testkit.NoPool + "storage: zfs\nzfs_dataset: " + dataset + "\n"})
	root := filepath.Join(b.Config.TemplatesDir, "tiny", "rootfs")
	must := func(args ...string) {
		t.Helper()
		if out, err := b.Run(t.Context(), args...); err != nil {
			t.Errorf("%q: %v\n%s", args, err, out)
		}
	}
	must("template", "verify", "tiny")
	j, err := c.Create(t.Context(), jailtest.Subject{Template: "tiny"}.Spec("cat"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(j.Stdio.Close)
	if out, err := b.Run(t.Context(), "template", "rm", "tiny"); err == nil || !strings.Contains(err.Error(), string(j.Name)) {
		t.Errorf("removed while a jail runs from it: %v\n%s", err, out)
	}
	must("template", "build", "tiny", "--replace", "--from", "dir:"+root)
	must("template", "verify", "tiny")
	must("template", "ls") // which sweeps, and leaves what the jail runs from
	if err := c.Destroy(t.Context(), j.Name); err != nil {
		t.Fatal(err)
	}
	must("template", "ls")
	must("template", "rm", "tiny")
	out, err := exec.Command(testenv.Tool(t, "zfs"), "list", "-H", "-r", "-t", "filesystem,snapshot", "-o", "name", dataset).Output()
	if want := dataset + "\n" + dataset + "/jails\n" + dataset + "/templates\n"; err != nil || string(out) != want {
		t.Errorf("left: %s (%v), want %s", out, err, want)
	}
}
