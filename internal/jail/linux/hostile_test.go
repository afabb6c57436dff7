//go:build linux

package linux

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/testenv"
)

// A program swaps folders of a workspace for links while the host daemon opens them: each folder that is opened or made
// lies beneath the root.
func TestRacingRenamesNeverLeadOut(t *testing.T) {
	testenv.Need(t, testenv.Root)
	base := t.TempDir()
	root, outside := filepath.Join(base, "root"), filepath.Join(base, "outside")
	for _, dir := range []string{"root/a", "root/own", "outside/b"} {
		must(t, os.MkdirAll(filepath.Join(base, dir), 0o755))
	}
	must(t, os.Symlink(outside, filepath.Join(root, "link")))
	before := tree(t, outside)
	var stop atomic.Bool
	var racing sync.WaitGroup
	swap := func(a, b string) {
		racing.Go(func() {
			for !stop.Load() {
				_ = unix.Renameat2(unix.AT_FDCWD, a, unix.AT_FDCWD, b, unix.RENAME_EXCHANGE) // one of them may be missing just now
			}
		})
	}
	swap(filepath.Join(root, "a"), filepath.Join(root, "link"))
	defer racing.Wait()
	defer stop.Store(true)
	m := jail.Mount{Source: filepath.Join(root, "a/b/c"), Target: jail.WorkspaceDir, Make: []string{"bot"}}
	opened := 0
	for range 3000 {
		f, err := OpenMount([]string{root}, bot, m, jail.AgentUID)
		if err != nil {
			continue
		}
		opened++
		at, err := os.Readlink("/proc/self/fd/" + num(uint64(f.Fd())))
		if err != nil || !strings.HasPrefix(at, root+"/") {
			t.Errorf("opened %s, %v", at, err)
		}
		must(t, f.Close())
		for _, dir := range []string{"a", "link"} { // whichever is the folder: so that it has to be made again
			must(t, os.RemoveAll(filepath.Join(root, dir, "b/c")))
		}
	}
	if after := tree(t, outside); after != before {
		t.Errorf("outside is now\n%s", after)
	}
	if opened == 0 {
		t.Error("it was never opened, so that nothing was tried")
	}
}

// A volume whose file system is damaged is refused or mounted, and nothing of the try is left on the host. Others go on.
func TestDamagedFileSystemsLeaveNothing(t *testing.T) {
	h, _ := newAgentHost(t)
	image := filepath.Join(h.storage.volumes.Path(), "one"+volumeSuffix)
	h.end(t, h.placeAgent(t, agentSpec("one")).Name, jail.Process{})
	good, err := os.ReadFile(image)
	must(t, err)
	var st unix.Stat_t
	for what, damage := range map[string]func(b []byte){
		"no descriptors of groups": func(b []byte) { clear(b[4096:8192]) },
		"nothing but its superblock": func(b []byte) {
			clear(b[:1024])
			clear(b[2048:])
		},
		"more blocks than there are":  func(b []byte) { copy(b[1024+0x4:], []byte{0, 0, 0, 0x10}) },
		"blocks of an odd size":       func(b []byte) { b[1024+0x18] = 6 },
		"a feature that nobody knows": func(b []byte) { b[1024+0x63] = 0x80 },
		"the root is no folder":       func(b []byte) { b[1024+0x58] = 1 },
	} {
		t.Run(what, func(t *testing.T) {
			text := append([]byte(nil), good...)
			damage(text)
			must(t, os.WriteFile(image, text, 0o600))
			must(t, unix.Stat(image, &st))
			p := h.place(t, agentSpec("one"))
			if err := h.storage.Mount(t.Context(), p); err == nil {
				t.Error("it was mounted")
			} else if code := problem.CodeOf(err); code != problem.JailFailed {
				t.Errorf("code %s of %v", code, err)
			}
			other := h.placeAgent(t, agentSpec("two"))
			h.end(t, other.Name, jail.Process{})
			h.end(t, p.Name, jail.Process{})
			testenv.Eventually(t, testenv.Patience*time.Second, func() bool {
				held, err := findLoop(st.Dev, st.Ino)
				must(t, err)
				if held != nil {
					must(t, held.Close())
				}
				return held == nil
			}, "the loop device stays")
		})
	}
}

// The number of a process that has ended may be another's, also one of the host: nothing is connected to there.
func TestNothingIsDialledForAProcessThatHasEnded(t *testing.T) {
	h := newTestHost(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer l.Close()
	port := uint16(l.Addr().(*net.TCPAddr).Port)
	p := jail.Placement{Name: nameOf(t, h, 77)}
	self := jail.Process{PID: os.Getpid()}
	f, err := h.runtime.Dial(t.Context(), p, self, port) // the host's own network, for want of another
	must(t, err)
	must(t, f.Close())
	self.Started = 1 // a process that has had this number before
	if f, err = h.runtime.Dial(t.Context(), p, self, port); problem.CodeOf(err) != problem.Conflict || !errors.Is(err, os.ErrProcessDone) {
		t.Errorf("connected to %v, %v", f, err)
	}
	// One that accepts nothing does not hold up the caller for longer than he waits.
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	full, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	must(t, err)
	defer func() { must(t, unix.Close(full)) }()
	must(t, unix.Bind(full, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}))
	must(t, unix.Listen(full, 0))
	at, err := unix.Getsockname(full)
	must(t, err)
	port = uint16(at.(*unix.SockaddrInet4).Port)
	self.Started = 0
	for range 8 { // the first ones wait to be accepted
		if f, err = h.runtime.Dial(ctx, p, self, port); err != nil {
			break
		}
		defer f.Close()
	}
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a port that accepts nothing: %v", err)
	}
}

// Programs join a jail while it ends: each has an error or an exit, and nothing of any is left.
func TestProgramsThatJoinWhileTheJailEnds(t *testing.T) {
	onEachRuntimeWithAgents(t, func(t *testing.T, h *testHost, _ string) {
		ctx := context.Background()
		for round := range 4 {
			spec := agentSpec(fmt.Sprintf("bot-%d", round))
			spec.Agent.State = 0
			j := h.startAgent(t, spec, nil)
			null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
			must(t, err)
			var joining sync.WaitGroup
			first := make(chan struct{}, 64)
			for range 3 {
				joining.Go(func() {
					for range 6 {
						x, err := h.runtime.Exec(ctx, j.place, j.proc, shell("exec /bin/probe sleep"), [3]*os.File{null, null, null})
						first <- struct{}{}
						if err != nil {
							continue
						}
						defer func() {
							if _, err := x.Wait(ctx); err != nil {
								t.Errorf("wait: %v", err)
							}
						}()
					}
				})
			}
			for range round + 1 {
				<-first
			}
			steps := []func() error{
				func() error { return h.runtime.Kill(ctx, j.place.Name, j.proc) },
				func() error { return h.storage.Unmount(ctx, j.place.Name, false) },
				func() error { return h.runtime.Stop(ctx, j.place.Name) },
				func() error { return h.limiter.Remove(ctx, j.place.Name) },
				func() error { return h.storage.Destroy(ctx, j.place.Name) },
			}
			testenv.Eventually(t, testenv.Patience*10*time.Second, func() bool {
				var errs []error
				for _, step := range steps {
					errs = append(errs, step())
				}
				err = errors.Join(errs...)
				return err == nil
			}, "it does not end: %v", err)
			joining.Wait()
			must(t, null.Close())
			testenv.Eventually(t, testenv.Patience*10*time.Second, func() bool { return len(h.resources(t)) == 0 }, "left on the host: %+v", h.resources(t))
		}
	})
}

// Volumes of agents that are gone do not grow without an end.
func TestVolumesAreBounded(t *testing.T) {
	h, _ := newAgentHost(t)
	h.end(t, h.placeAgent(t, agentSpec("one")).Name, jail.Process{})
	left := func(i int) string {
		return filepath.Join(h.storage.volumes.Path(), fmt.Sprintf("gone-%d%s", i, volumeSuffix))
	}
	for i := range maxVolumesOfTenant - 1 {
		must(t, os.WriteFile(left(i), nil, 0o600))
	}
	// Volumes that one tenant has left do not keep another from a volume.
	full := h.place(t, agentSpec("three"))
	if err := h.storage.Mount(t.Context(), full); problem.CodeOf(err) != problem.PoolExhausted {
		t.Errorf("one more of the tenant: %v", err)
	}
	h.end(t, full.Name, jail.Process{})
	if all, err := h.storage.Volumes(); err != nil || len(all) != maxVolumesOfTenant || all["one"] != full.Spec.Agent.State || all["gone-1"] != 0 {
		t.Errorf("%d volumes, of which one has %d bytes (%v)", len(all), all["one"], err)
	}
	other := agentSpec("three")
	other.Agent.Tenant = "acme"
	h.end(t, h.placeAgent(t, other).Name, jail.Process{})
	for i := range maxVolumes - maxVolumesOfTenant - 1 {
		must(t, os.WriteFile(filepath.Join(h.storage.volumes.Path(), fmt.Sprintf("rival.gone-%d%s", i, volumeSuffix)), nil, 0o600))
	}
	h.end(t, h.placeAgent(t, agentSpec("one")).Name, jail.Process{}) // it is there
	p := h.place(t, agentSpec("two"))
	if err := h.storage.Mount(t.Context(), p); problem.CodeOf(err) != problem.PoolExhausted {
		t.Errorf("one more: %v", err)
	}
	h.end(t, p.Name, jail.Process{})
	must(t, h.storage.RemoveState(t.Context(), jail.Agent{Tenant: "default", Name: "gone-0"}))
	h.end(t, h.placeAgent(t, agentSpec("two")).Name, jail.Process{})
}
