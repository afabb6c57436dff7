//go:build linux

package jails

import (
	"context"
	wire "encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/hostd"
	"github.com/clawjail/clawjail/internal/instance"
	"github.com/clawjail/clawjail/internal/inventory"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/jail/jailtest"
	"github.com/clawjail/clawjail/internal/testenv"
	"github.com/clawjail/clawjail/test/testkit"
)

// TestNoRequestAndNoFullDiskEndsTheHostDaemon sends what a control plane that was taken over could send, and takes the
// room that jails are made in away. The host daemon answers with errors and stays the process that it was.
func TestNoRequestAndNoFullDiskEndsTheHostDaemon(t *testing.T) {
	var run string
	b, c := tiny(t, instance.Options{Settings: testkit.NoPool}, func(b *testkit.Installation) {
		run = b.Config.RunDir
		smallFolder(t, run, func() {
			if err := b.Stop(context.Background()); err != nil {
				t.Error(err)
			}
		})
	})
	subject := jailtest.Subject{Driver: c, Template: "tiny"}
	before, err := c.Info(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	same := func(t *testing.T) {
		t.Helper()
		if now, err := c.Info(t.Context()); err != nil || now.PID != before.PID {
			t.Fatalf("the host daemon was process %d and is %d, %v:\n%.4000s", before.PID, now.PID, err, b.Log())
		}
		if log := b.Log(); strings.Contains(log, "panic") {
			t.Fatalf("a call panicked:\n%.4000s", log)
		}
		j := jailtest.Start(t, subject, subject.Spec("echo well"))
		if out, err := io.ReadAll(j.Stdio.Out); string(out) != "well\n" || err != nil {
			t.Errorf("a jail that is asked for afterwards says %q, %v", out, err)
		}
	}
	t.Run("hostile requests", func(t *testing.T) {
		const seed = 17
		random := rand.New(rand.NewPCG(seed, seed))
		answers := map[string]int{}
		socket := hostd.SocketPath(b.Config)
		held, code := askHost(t, socket, request("hold", map[string]any{"owner": hostileOwner}))
		if code != "" {
			t.Fatalf("hold: %s", code)
		}
		defer held.Close() // jails are made for who is here
		for range 300 {
			conn, code := askHost(t, socket, request("create", map[string]any{"owner": hostileOwner,
				"spec": hostileSpec(random, subject.Spec("true"))}))
			_ = conn.Close() // what was made is not accepted, so the host daemon takes it away again
			answers[code]++
		}
		t.Logf("answers by code: %v", answers)
		if answers["bad_request"] == 0 || answers[""] == 0 {
			t.Errorf("nothing was refused, or nothing was made, so that nothing deeper was reached: %v", answers)
		}
		same(t)
	})
	t.Run("a full folder", func(t *testing.T) {
		filler := filepath.Join(run, "filler")
		failed := 0
		for room := 0; ; room += 4096 {
			fill(t, filler, room)
			j, err := c.Create(t.Context(), subject.Spec("true"))
			if err == nil {
				j.Stdio.Close()
				break
			}
			failed++
			if room > 1<<20 {
				t.Fatalf("with %d bytes of room: %v", room, err)
			}
		}
		if err := os.Remove(filler); err != nil {
			t.Fatal(err)
		}
		t.Logf("%d creations failed", failed)
		if failed < 3 {
			t.Errorf("%d creations failed: the folder was not full", failed)
		}
		same(t)
	})
}

// smallFolder puts a small file system at a folder. It is taken away after stop.
func smallFolder(t *testing.T, dir string, stop func()) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o750); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=4m,mode=0750"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		stop()
		if err := syscall.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
}

// fill takes all the room of a file system but so many bytes.
func fill(t *testing.T, path string, room int) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close() // what was written is there
	var all int64
	for block := make([]byte, 4096); err == nil; {
		var n int
		n, err = f.Write(block)
		all += int64(n)
	}
	if err := f.Truncate(max(0, all-int64(room))); err != nil {
		t.Fatal(err)
	}
}

// hostileSpec changes something of a jail to what the program itself never asks for.
func hostileSpec(random *rand.Rand, spec jail.Spec) jail.Spec {
	word := func() string {
		words := []string{"", ".", "..", "/", "a", "a", "a/b", "a/b/c", "../a", "a//b", "A\x00", strings.Repeat("a/", 40) + "a",
			"stage", ".config", "-", "tiny", "%s%n", "\u202e", strings.Repeat("x", 300)}
		return words[random.IntN(len(words))]
	}
	number := func() int64 {
		numbers := []int64{0, -1, 1, 4096, 1 << 20, 1 << 31, 1 << 62, -1 << 63}
		return numbers[random.IntN(len(numbers))]
	}
	for range 1 + random.IntN(2) {
		switch random.IntN(12) {
		case 0, 1, 2, 3:
			for range 1 + random.IntN(4) {
				spec.HomeFiles = append(spec.HomeFiles, jail.File{Path: word(), Data: make([]byte, random.IntN(9000))})
			}
		case 4:
			spec.Template = word()
		case 5:
			spec.Kind = jail.Kind(word())
		case 6:
			spec.Program.Argv = []string{word(), word()}
		case 7:
			spec.Program.Env = map[string]string{word(): word(), "B": word()}
		case 8:
			spec.Program.Dir = word()
		case 9:
			spec.Limits.Memory, spec.Limits.Tasks = number(), int(number())
		case 10:
			spec.Limits.Disk, spec.Limits.SharedMemory = number(), number()
		case 11:
			spec.Limits.Files, spec.Limits.WallClock = int(number()), time.Duration(number())
		}
	}
	return spec
}

// hostileOwner is an owner of jails like any other.
var hostileOwner = strings.Repeat("a", 32)

// request is one as the control plane sends it.
func request(operation string, arguments any) []byte {
	text, err := json.Marshal(map[string]any{"protocol": 7, "op": operation, "args": arguments})
	if err != nil {
		panic(err) // no value above is without JSON
	}
	return text
}

// askHost sends a request on a connection of its own and returns the code of the answer, empty where it was no error.
func askHost(t *testing.T, socket string, request []byte) (net.Conn, string) {
	t.Helper()
	conn, err := net.Dial("unix", socket)
	if err != nil {
		t.Fatalf("the host daemon does not listen: %v", err)
	}
	if err := conn.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Write(append(wire.BigEndian.AppendUint32(nil, uint32(len(request))), request...)); err != nil {
		t.Fatal(err)
	}
	var size [4]byte
	if _, err := io.ReadFull(conn, size[:]); err != nil {
		t.Fatalf("no answer to %.300s: %v", request, err)
	}
	body := make([]byte, wire.BigEndian.Uint32(size[:]))
	if _, err := io.ReadFull(conn, body); err != nil {
		t.Fatal(err)
	}
	var answer struct {
		Error *struct {
			Code string `json:"code"`
		} `json:"error"`
	}
	if err := json.Unmarshal(body, &answer); err != nil {
		t.Fatalf("%v: %.300s", err, body)
	}
	if answer.Error == nil {
		return conn, ""
	}
	return conn, answer.Error.Code
}

// TestJailsEndWithAHostDaemonThatIsGivenUp kills the host daemon until its supervisor gives it up. Agents that would
// run on with nobody to end them at their limits end with it.
func TestJailsEndWithAHostDaemonThatIsGivenUp(t *testing.T) {
	e := testkit.NewEstate(t, "")
	e.Sync("clawbots:\n  - {name: left, command: [/bin/sleep, '100000']}\n")
	e.Running("left")
	testenv.Eventually(t, 10*time.Second, func() bool { return len(sleepers(e)) > 0 }, "its program does not start") // its home is filled first
	all, err := e.Processes()
	if err != nil {
		t.Fatal(err)
	}
	up := all[0]
	host := hostd.NewClient(hostd.SocketPath(e.Config), nil)
	killed := 0
	testenv.Eventually(t, time.Minute, func() bool {
		if syscall.Kill(up, 0) != nil {
			return true
		}
		if info, err := host.Info(t.Context()); err == nil && syscall.Kill(info.PID, syscall.SIGKILL) == nil {
			killed++
			if killed == 1 && len(sleepers(e)) == 0 {
				t.Error("the agent ended with the first host daemon")
			}
		}
		return false
	}, "the supervisor does not give up")
	if killed < 2 {
		t.Errorf("it gave up after %d", killed)
	}
	if !strings.Contains(e.Log(), "does not keep running") {
		t.Errorf("it does not say why it ended:\n%.4000s", e.Log())
	}
	if left := sleepers(e); len(left) > 0 {
		t.Errorf("processes of agents run on without a host daemon: %v", left)
	}
	left, err := inventory.Settled(t.Context(), e.HostScope())
	if err != nil || len(left) > 0 {
		t.Errorf("left on the host: %v, %v", left, err)
	}
}

// sleepers are the processes of the agent of the test above.
func sleepers(e *testkit.Deployment) (out []int) {
	e.T.Helper()
	lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		e.T.Fatal(err)
	}
	for _, path := range lines {
		line, _ := os.ReadFile(path) // one that has ended has none
		group, _ := os.ReadFile(filepath.Join(filepath.Dir(path), "cgroup"))
		var pid int
		if strings.Contains(string(line), "sleep\x00100000") && strings.Contains(string(group), string(e.HostScope().Installation)) {
			if _, err := fmt.Sscanf(path, "/proc/%d/", &pid); err != nil {
				e.T.Fatal(err)
			}
			out = append(out, pid)
		}
	}
	return out
}
