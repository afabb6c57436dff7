package hostd

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/swap"
	"github.com/clawjail/clawjail/internal/testenv"
)

// withdrawing is an installation that has run, on a disk, whose engine of containers has died and left its socket.
func withdrawing(t *testing.T) (o RunOptions, shared *bool) {
	t.Helper()
	testenv.Need(t, testenv.Root)
	dir := filepath.Dir(newSocket(t))
	c := runConfig(dir, "nobody")
	control, err := lookupAccount("nobody")
	if err != nil {
		t.Fatal(err)
	}
	if err := makeFolders(c, control); err != nil {
		t.Fatal(err)
	}
	c.Docker.Socket = filepath.Join(dir, "engine.sock")
	engine, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: c.Docker.Socket})
	if err != nil {
		t.Fatal(err)
	}
	engine.SetUnlinkOnClose(false)
	if err := engine.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenInstallation(t.Context(), c.DataDir, c.Subnet, subnet("10.99.0.0/24"), time.Now); err != nil {
		t.Fatal(err)
	}
	shared = new(bool)
	*shared = true
	return RunOptions{Config: c, Version: "test", Now: time.Now, Log: debugLog(io.Discard), Substrate: Substrate{
		FreeSubnet: subnet("10.99.0.0/24"),
		Containers: OpenContainers,
		Assemble: func(_ context.Context, o AssembleOptions) (Parts, error) {
			d, err := newDisk(filepath.Join(dir, "host"))
			d.pool = o.Pool
			return Parts{Parts: d.parts(), Close: func(context.Context) error { return nil }}, err
		},
		Uninstall: func(context.Context, config.Config, jail.Installation, *jail.Pool) error { *shared = false; return nil },
	}}, shared
}

func TestADeadEngineOfContainersDoesNotStopAnUninstall(t *testing.T) {
	o, shared := withdrawing(t)
	then := false
	for _, volumes := range []bool{false, true} {
		*shared, then = true, false
		err := Withdraw(t.Context(), o, WithdrawOptions{Volumes: volumes, Then: func(context.Context, Installation) error { then = true; return nil }})
		if err != nil || *shared || !then {
			t.Errorf("volumes %v: what jails share is there: %v, the rest was done: %v, %v", volumes, *shared, then, err)
		}
	}
}

// TestASubnetOfOthersDoesNotStopAnUninstall has a configured subnet that is another than the installation's, which something
// else uses by now.
func TestASubnetOfOthersDoesNotStopAnUninstall(t *testing.T) {
	o, shared := withdrawing(t)
	o.Config.Subnet = netip.MustParsePrefix("10.79.0.0/16")
	taken := errors.New("something else uses it")
	assemble := o.Substrate.Assemble
	for _, wrong := range []error{nil, taken} {
		o.Substrate.CheckSubnet = func(context.Context, jail.Installation, netip.Prefix) error { return wrong }
		o.Substrate.Assemble = func(ctx context.Context, how AssembleOptions) (Parts, error) {
			if !how.Ending {
				t.Error("the driver is to look at the network")
			}
			return assemble(ctx, how)
		}
		*shared = true
		then := false
		err := Withdraw(t.Context(), o, WithdrawOptions{Then: func(context.Context, Installation) error { then = true; return nil }})
		if err != nil || *shared || !then {
			t.Errorf("subnet %v: what jails share is there: %v, the rest was done: %v, %v", wrong, *shared, then, err)
		}
	}
}

// TestWhatConfinesAContainerStaysWhileItMayRun has a container in the journal that a dead engine may have left running.
func TestWhatConfinesAContainerStaysWhileItMayRun(t *testing.T) {
	o, shared := withdrawing(t)
	in, found, err := FindInstallation(o.Config)
	if err != nil || !found {
		t.Fatal(err)
	}
	j, err := OpenJournal(containerJournalPath(o.Config), in.ID, o.Log)
	if err != nil {
		t.Fatal(err)
	}
	r := record(jail.Name("c" + string(in.ID) + "00001"))
	if err := j.Put(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	err = Withdraw(t.Context(), o, WithdrawOptions{Then: func(context.Context, Installation) error { t.Error("it goes on"); return nil }})
	if err == nil || !strings.Contains(err.Error(), "does not answer") || !*shared {
		t.Errorf("what confines it is there: %v, %v", *shared, err)
	}
}

func TestAnUninstallIsRefusedWhileTheControlPlaneAloneRuns(t *testing.T) {
	o, shared := withdrawing(t)
	spill, err := os.Create(filepath.Join(ControlDir(o.Config), "audit.spill"))
	if err != nil {
		t.Fatal(err)
	}
	defer spill.Close() // gives the lock back
	if err := unix.Flock(int(spill.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	for _, dry := range []bool{true, false} {
		if err := Withdraw(t.Context(), o, WithdrawOptions{DryRun: dry}); !hasCode(err, problem.Conflict) || !*shared {
			t.Errorf("dry %v: %v", dry, err)
		}
	}
}

// TestTheHostDaemonFinishesARestoreThatWasKilled has a restore die when half of the files are in their place.
func TestTheHostDaemonFinishesARestoreThatWasKilled(t *testing.T) {
	testenv.Need(t, testenv.Root)
	dir := filepath.Dir(newSocket(t))
	c := runConfig(dir, "nobody")
	names := []string{"agents", "control"}
	for _, base := range []string{c.DataDir, filepath.Join(c.DataDir, swap.Stage, swap.New)} {
		for _, name := range names {
			if err := os.MkdirAll(filepath.Join(base, name), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(base, name, "whose"), []byte(filepath.Base(base)), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	func() {
		defer func() { _ = recover() }() // what dies here
		_ = swap.Commit(c.DataDir, swap.Plan{Items: names, Aside: "replaced-test"}, func(step string) {
			if step == "place control" {
				panic(step)
			}
		})
	}()
	whose := func(parts ...string) string {
		data, err := os.ReadFile(filepath.Join(append([]string{c.DataDir}, append(parts, "whose")...)...))
		if err != nil {
			return err.Error()
		}
		return string(data)
	}
	if whose("agents") != swap.New || whose("control") == swap.New || !swap.Decided(c.DataDir) {
		t.Fatalf("it is not half done: %s, %s", whose("agents"), whose("control"))
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	startHelper(t, self, "run", nil, dir, "nobody").expect(t, "READY=1")
	for _, name := range names {
		if whose(name) != swap.New || whose("replaced-test", name) != filepath.Base(c.DataDir) {
			t.Errorf("%s is of %s, and what was replaced of %s", name, whose(name), whose("replaced-test", name))
		}
	}
	if _, err := os.Lstat(filepath.Join(c.DataDir, swap.Stage)); err == nil {
		t.Error("the stage is left")
	}
}
