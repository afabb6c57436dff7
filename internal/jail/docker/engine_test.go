//go:build linux

package docker

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/moby/moby/api/types/container"
	apinetwork "github.com/moby/moby/api/types/network"
	"github.com/moby/moby/client"

	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/jail/jailtest/inside"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/testenv"
)

// lyingEngine is the engine, which leaves out something of what it is told when it makes a container.
func lyingEngine(t *testing.T, socket string, forget func(host map[string]any)) string {
	t.Helper()
	proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: "docker"})
	transport := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}}
	proxy.Transport = transport
	t.Cleanup(transport.CloseIdleConnections)
	return serveEngine(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/containers/create") {
			var body map[string]any
			if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
				t.Errorf("decode: %v", err)
			}
			host, ok := body["HostConfig"].(map[string]any)
			if !ok {
				t.Error("there is no HostConfig")
			}
			host["body"] = body
			forget(host)
			delete(host, "body")
			text, err := json.Marshal(body)
			if err != nil {
				t.Error(err)
			}
			r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(text)), int64(len(text))
		}
		proxy.ServeHTTP(w, r)
	}))
}

// serveEngine is the socket of an engine that the test plays.
func serveEngine(t *testing.T, engine http.Handler) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "cjlie") // paths of sockets are short
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: engine}
	l, err := net.Listen("unix", filepath.Join(dir, "s"))
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() { defer close(done); _ = server.Serve(l) }() // it ends with Close
	t.Cleanup(func() {
		_ = server.Close()
		<-done
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return filepath.Join(dir, "s")
}

// Every control that an engine silently leaves out is noticed by looking at the container, and the container is ended
// before it gets its token. Each case shows that its part of the comparison cannot be missing.
func TestAnEngineThatIgnoresAControlIsNoticed(t *testing.T) {
	engine := sharedEngine(t)
	for name, c := range map[string]struct {
		forget func(map[string]any)
		says   string
	}{
		"read-only root": {func(h map[string]any) { h["ReadonlyRootfs"] = false }, "the root file system is writable"},
		"capabilities":   {func(h map[string]any) { h["CapDrop"] = nil }, "capability CAP_"},
		"new privileges": {func(h map[string]any) { h["SecurityOpt"] = h["SecurityOpt"].([]any)[1:] }, "no_new_privs"},
		"system calls":   {func(h map[string]any) { h["SecurityOpt"] = []any{"no-new-privileges:true", "seccomp=unconfined"} }, "no seccomp filter"},
		"tasks":          {func(h map[string]any) { h["PidsLimit"] = nil }, "limit tasks"},
		"memory":         {func(h map[string]any) { h["Memory"], h["MemorySwap"] = 0, 0 }, "limit memory"},
		"processor":      {func(h map[string]any) { h["CpuQuota"] = 0 }, "limit cpu"},
		"files":          {func(h map[string]any) { h["Ulimits"] = nil }, "limit files"},
		"message queues": {func(h map[string]any) { h["Tmpfs"] = nil }, "/dev/mqueue is writable"},
		"control groups": {func(h map[string]any) { h["CgroupnsMode"] = "host" }, "namespaces shared with the host: cgroup"},
		"processes":      {func(h map[string]any) { h["PidMode"] = "host" }, "namespaces shared with the host: pid"},
		"network": {func(h map[string]any) {
			h["NetworkMode"] = "none"
			delete(h["body"].(map[string]any), "NetworkingConfig")
		}, "it has no address"},
		"a mount": {func(h map[string]any) {
			for _, m := range h["Mounts"].([]any) {
				if m := m.(map[string]any); m["Target"] == jail.WorkspaceDir {
					m["Source"] = "/usr"
				}
			}
		}, "/workspace is not the folder that was opened"},
		"another mount": {func(h map[string]any) {
			h["Mounts"] = append(h["Mounts"].([]any), map[string]any{"Type": "bind", "Source": "/dev", "Target": "/mnt/host"})
		}, "/mnt/host is writable"},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHostOn(t, engine, func(o *Options) { o.Socket = lyingEngine(t, engine.Socket, c.forget) })
			s := spec(jail.LifetimeOwner, inside.Argv()...)
			s.Mounts = []jail.Mount{{Source: filepath.Join(h.work, "w"), Target: jail.WorkspaceDir}}
			delivered := false
			_, err := h.CreateFor(t.Context(), "", s, func(context.Context, *jail.Jail) error { delivered = true; return nil })
			if err == nil || !strings.Contains(err.Error(), c.says) || !strings.Contains(codes(err)+problem.CodeOf(err), problem.JailUnconfined) {
				t.Errorf("%v; want %q", err, c.says)
			}
			if delivered {
				t.Error("it was delivered")
			}
		})
	}
}

// Whatever is killed in the middle of a creation, nothing is left when the engine is there again.
func TestAnEngineThatIsKilledAtAnyStepLeavesNothing(t *testing.T) {
	testenv.Need(t, testenv.Time)
	sharedEngine(t) // for the image's files
	engine := testenv.StartDocker(t)
	defer func() {
		if err := engine.Stop(); err != nil {
			t.Error(err)
		}
	}()
	importImages(t, engine, shared.root)
	for _, step := range Steps() {
		t.Run(string(step), func(t *testing.T) {
			var armed atomic.Bool
			armed.Store(true)
			h := newHostOn(t, engine, func(o *Options) {
				o.Barrier = func(s jail.Step) {
					if s == step && armed.CompareAndSwap(true, false) {
						if err := engine.Kill(); err != nil {
							t.Error(err)
						}
					}
				}
			})
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			j, err := h.Create(ctx, shell(jail.LifetimeOwner, `while :; do /bin/probe sleep; done`))
			cancel()
			if err == nil {
				j.Stdio.Close() // the program had begun
			} else if !strings.Contains(codes(err)+problem.CodeOf(err)+err.Error(), problem.RuntimeMissing) && !strings.Contains(err.Error(), "does not answer") {
				t.Logf("killed at %s: %v", step, err)
			}
			if err := engine.Start(); err != nil {
				t.Fatal(err)
			}
			if err == nil {
				if err := h.Destroy(t.Context(), j.Name); err != nil {
					t.Errorf("destroy: %v", err)
				}
			}
			testenv.Eventually(t, 15*time.Second, func() bool {
				_, err := h.Reap(t.Context(), jail.ReapOptions{})
				resources, err2 := h.HostResources(t.Context())
				return err == nil && err2 == nil && len(resources) == 0
			}, "something is left")
			// And the next is made as if nothing had happened.
			next, err := h.Create(t.Context(), shell(jail.LifetimeOwner, `exit 4`))
			if err != nil {
				t.Fatal(err)
			}
			next.Stdio.Close()
			if x, err := h.Wait(t.Context(), next.Name); err != nil || x.Code != 4 {
				t.Errorf("exit is %+v, %v", x, err)
			}
			h.destroy(t, next.Name)
		})
	}
}

func TestWhatIsDoneBehindTheDriversBackIsNoticed(t *testing.T) {
	h := newHost(t, func(o *Options) { o.Grace = time.Nanosecond })
	loop := shell(jail.LifetimeKeep, `while :; do /bin/probe sleep; done`)
	make := func(t *testing.T) *jail.Jail {
		t.Helper()
		return h.start(t, loop)
	}
	reaped := func(t *testing.T, name jail.Name, says string) {
		t.Helper()
		report, err := h.Reap(t.Context(), jail.ReapOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range report.Findings {
			if f.Name == name && strings.Contains(f.Reason, says) && f.Removed {
				return
			}
		}
		t.Errorf("%s: %+v, want %q", name, report.Findings, says)
	}
	t.Run("nothing", func(t *testing.T) {
		j := make(t)
		for range 2 {
			if report, err := h.Reap(t.Context(), jail.ReapOptions{}); err != nil || len(report.Findings) != 0 || report.Jails != 1 {
				t.Errorf("%+v, %v", report, err)
			}
		}
		h.destroy(t, j.Name)
	})
	t.Run("removed", func(t *testing.T) {
		j := make(t)
		if _, err := h.engine.ContainerRemove(t.Context(), string(j.Name), client.ContainerRemoveOptions{Force: true}); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		if _, err := h.Wait(ctx, j.Name); err != nil {
			t.Errorf("its end is not seen: %v", err)
		}
	})
	t.Run("more memory", func(t *testing.T) {
		j := make(t)
		if _, err := h.engine.ContainerUpdate(t.Context(), string(j.Name), client.ContainerUpdateOptions{
			Resources: &container.Resources{Memory: 1 << 30, MemorySwap: 1 << 30}}); err != nil {
			t.Fatal(err)
		}
		reaped(t, j.Name, "limit memory is 1073741824")
	})
	t.Run("another network", func(t *testing.T) {
		made, err := h.engine.NetworkCreate(t.Context(), "cjtest-"+string(h.o.Installation), client.NetworkCreateOptions{Driver: "bridge",
			IPAM: &apinetwork.IPAM{Config: []apinetwork.IPAMConfig{{Subnet: netip.MustParsePrefix("10.202.77.0/24")}}}})
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			if _, err := h.engine.NetworkRemove(context.Background(), made.ID, client.NetworkRemoveOptions{}); err != nil {
				t.Error(err)
			}
		}()
		j := make(t)
		if _, err := h.engine.NetworkConnect(t.Context(), made.ID, client.NetworkConnectOptions{Container: string(j.Name)}); err != nil {
			t.Fatal(err)
		}
		reaped(t, j.Name, "connected it to the network")
	})
	t.Run("started again", func(t *testing.T) {
		j := make(t)
		if _, err := h.engine.ContainerKill(t.Context(), string(j.Name), client.ContainerKillOptions{}); err != nil {
			t.Fatal(err)
		}
		if _, err := h.Wait(t.Context(), j.Name); err != nil {
			t.Fatal(err)
		}
		if _, err := h.engine.ContainerStart(t.Context(), string(j.Name), client.ContainerStartOptions{}); err != nil {
			t.Fatal(err)
		}
		reaped(t, j.Name, "started it again")
	})
	t.Run("without a record", func(t *testing.T) {
		j := make(t)
		all, o := h.Registry, h.Driver.o
		var err error
		h.Registry, err = jail.OpenRegistry(t.Context(), jail.RegistryOptions{Journal: &memoryJournal{}, Log: o.Log, Now: o.Now, Grace: o.Grace})
		if err != nil {
			t.Fatal(err)
		}
		report, err := h.Reap(t.Context(), jail.ReapOptions{DryRun: true})
		if err != nil || len(report.Findings) == 0 || report.Findings[0].Removed {
			t.Errorf("dry run: %+v, %v", report, err)
		}
		reaped(t, j.Name, "not in the journal")
		h.Registry = all // its address and its record go the usual way
	})
	t.Run("somebody else's is left alone", func(t *testing.T) {
		made, err := h.engine.ContainerCreate(t.Context(), client.ContainerCreateOptions{Name: "cjtheirs-" + string(h.o.Installation),
			Config: &container.Config{Image: testImage}, HostConfig: &container.HostConfig{NetworkMode: "none"}})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := h.Reap(t.Context(), jail.ReapOptions{}); err != nil {
			t.Fatal(err)
		}
		if _, err := h.engine.ContainerRemove(t.Context(), made.ID, client.ContainerRemoveOptions{Force: true}); err != nil {
			t.Errorf("it is not there any more: %v", err)
		}
	})
}

func TestAWallClockAndALostOwnerEndAContainer(t *testing.T) {
	now := &atomic.Int64{}
	now.Store(time.Now().Unix())
	h := newHost(t, func(o *Options) {
		o.Now = func() time.Time { return time.Unix(now.Load(), 0) }
		o.Grace = 30 * time.Second
	})
	ended := func(name jail.Name, want jail.Cause) {
		t.Helper()
		e, err := h.Lookup(name)
		if err != nil {
			t.Fatal(err)
		}
		scanned := h.o.Now()
		if err := h.look(t.Context(), &scanned); err != nil {
			t.Fatal(err)
		}
		testenv.Eventually(t, 10*time.Second, func() bool { x := e.Record().Exit; return x != nil && x.Cause == want },
			"it did not end with %s: %+v", want, e.Record().Exit)
	}
	j := h.start(t, shell(jail.LifetimeOwner, `while :; do /bin/probe sleep; done`))
	defer j.Stdio.Close()
	now.Add(61)
	ended(j.Name, jail.CauseWallClock)
	k, err := h.CreateFor(t.Context(), "somebody", shell(jail.LifetimeOwner, `while :; do /bin/probe sleep; done`),
		func(context.Context, *jail.Jail) error { return nil })
	if err != nil {
		t.Fatal(err)
	}
	defer k.Stdio.Close()
	h.Lost("somebody")
	h.Found("somebody")
	h.Lost("somebody")
	now.Add(31)
	ended(k.Name, jail.CauseOwnerLost)
}
