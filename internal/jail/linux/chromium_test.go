//go:build linux

package linux

import (
	"bufio"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/testenv"
)

// chromiumSpec starts a Chromium of the template over the pipe, with its own sandbox on.
func chromiumSpec(program string, more ...string) jail.Spec {
	return jail.Spec{
		Kind: jail.KindBrowser, Lifetime: jail.LifetimeOwner, Template: "browser",
		Limits: jail.Limits{Memory: 1 << 30, MilliCPU: 2000, Tasks: 512, Disk: 64 << 20, SharedMemory: 64 << 20, Files: 4096, WallClock: time.Minute},
		Program: jail.Program{Wire: jail.WirePipe34, Env: map[string]string{"TMPDIR": "/tmp"},
			Argv: append([]string{"/usr/lib/chromium/" + program, "--remote-debugging-pipe", "--user-data-dir=" + jail.HomeDir + "/profile",
				"--no-first-run", "--disable-gpu", "--disable-software-rasterizer", "--disable-background-networking", "--disable-component-update",
				"--disable-extensions", "--disable-breakpad", "--password-store=basic", "about:blank"}, more...)},
	}
}

// startChromium starts it and returns what it answers to one question, and how to end it.
func startChromium(t *testing.T, h *testHost, spec jail.Spec, amend func(*specs.Spec)) (*testJail, string) {
	t.Helper()
	p := h.place(t, spec)
	in, toJail, err1 := os.Pipe()
	fromJail, out, err2 := os.Pipe()
	log, err3 := os.Create(filepath.Join(t.TempDir(), "log"))
	must(t, errors.Join(err1, err2, err3))
	t.Cleanup(func() { must(t, errors.Join(toJail.Close(), fromJail.Close(), log.Close())) })
	h.runtime.amend = amend
	proc, err := h.runtime.Start(context.Background(), p, [3]*os.File{in, out, log})
	h.runtime.amend = nil
	must(t, errors.Join(in.Close(), out.Close()))
	must(t, err)
	must(t, h.runtime.Begin(context.Background(), p, proc))
	must(t, fromJail.SetReadDeadline(time.Now().Add(20*time.Second)))
	_, err = io.WriteString(toJail, `{"id":1,"method":"Browser.getVersion"}`+"\x00")
	must(t, err)
	answer, err := bufio.NewReader(fromJail).ReadString(0)
	if err != nil {
		text, _ := os.ReadFile(log.Name()) // for the message
		answer = "no answer: " + err.Error() + "\n" + string(text)
	}
	return &testJail{host: h, place: p, proc: proc}, answer
}

// Chromium's sandbox is built of user namespaces and a filter of its own, inside of ours.
func TestChromiumRunsWithItsSandboxOn(t *testing.T) {
	template := testenv.Template(t)
	for program, more := range map[string][]string{"chromium-headless-shell": nil, "chromium": {"--headless=new"}} {
		t.Run(program, func(t *testing.T) {
			if _, err := os.Stat(filepath.Join(template, rootfsFolder, "usr/lib/chromium", program)); err != nil {
				testenv.Missing(t, program+" in the template", "build the template with it")
			}
			onEachRuntime(t, func(t *testing.T, h *testHost) {
				// The templates of the machine, which are opened for reading only.
				h = newTestHost(t, func(o *Options) { o.Runtime, o.Templates = h.o.Runtime, filepath.Dir(template) })
				j, answer := startChromium(t, h, chromiumSpec(program, more...), nil)
				if !strings.Contains(answer, `"product"`) {
					t.Fatalf("it says %q", answer)
				}
				seen, err := h.runtime.Observe(context.Background(), j.place, j.proc)
				must(t, err)
				if diff := j.place.Profile.Compare(seen); len(diff) > 0 {
					t.Errorf("not confined as declared: %q", diff)
				}
				own, err := os.Readlink("/proc/self/ns/user")
				must(t, err)
				testenv.Eventually(t, 10*time.Second, func() bool {
					pids, err := h.limiter.processes(string(j.place.Name))
					must(t, err)
					sandboxed := 0
					for _, pid := range pids {
						p, err := openProcess(jail.Process{PID: pid})
						if err != nil {
							continue // ended meanwhile
						}
						cmd, err1 := p.read("cmdline")
						status, err2 := p.read("status")
						user, err3 := p.namespace("user")
						p.Close()
						if errors.Join(err1, err2, err3) != nil {
							continue
						}
						if statusField(status, "Seccomp") != "2" {
							t.Errorf("a process without a filter: %q", cmd)
						}
						if strings.Contains(string(cmd), "--type=renderer") && user != own && statusField(status, "Seccomp_filters") != "1" {
							sandboxed++
						}
					}
					return sandboxed > 0
				}, "no renderer has a user namespace and a filter of its own")
			})
		})
	}
	t.Run("with the agents' filter it does not start", func(t *testing.T) {
		h := newTestHost(t, func(o *Options) { o.Templates = filepath.Dir(template) })
		if _, answer := startChromium(t, h, chromiumSpec("chromium-headless-shell"), func(s *specs.Spec) {
			s.Linux.Seccomp = h.runtime.filters[jail.SeccompAgent]
		}); strings.Contains(answer, `"product"`) {
			t.Error("Chromium started without what its sandbox needs: the browser's filter allows more than it has to")
		}
	})
}
