//go:build linux

package agents

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/clawjail/clawjail/internal/hostd"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/jail/linux"
	"github.com/clawjail/clawjail/internal/testenv"
	"github.com/clawjail/clawjail/test/testkit"
)

// asUser runs a program of the host as an ordinary user.
func asUser(uid uint32, argv ...string) (string, error) {
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// userOf is the user of a process, to the host.
func userOf(t *testing.T, pid int) uint32 {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat(fmt.Sprintf("/proc/%d", pid), &st); err != nil {
		t.Fatal(err)
	}
	return st.Uid
}

// A program on the host beside a jail is another user, whatever its number: user 1000, whom the agent is inside, and the
// number of another agent find nothing of it. Beside each refusal is somebody who is not refused.
func TestAnAgentIsNoOtherUserOfTheHost(t *testing.T) {
	e := testkit.NewEstate(t, "")
	const operator = 4711
	mine := filepath.Join(e.Dir, "workspaces", "mine")
	if err := errors.Join(os.Mkdir(mine, 0o755), os.WriteFile(filepath.Join(mine, "theirs"), []byte("x"), 0o600),
		os.Chown(filepath.Join(mine, "theirs"), operator, operator), os.Chown(mine, operator, operator)); err != nil {
		t.Fatal(err)
	}
	e.Sync("clawbots:\n  - name: one\n    workspace: ./workspaces/mine\n  - name: two\n")
	one, two := e.Running("one").Jail.PID, e.Running("two").Jail.PID
	users := []uint32{userOf(t, one), userOf(t, two)}
	if users[0] == users[1] || users[0] < 100000 || users[1] < 100000 {
		t.Fatalf("the users of two agents are %v", users)
	}
	if got := e.MustIn("one", "id -u; id -g; stat -c %u:%g /state /workspace /run/hermit/token"); got != strings.Repeat("1000\n", 2)+strings.Repeat("1000:1000\n", 3) {
		t.Errorf("in its jail it is %q", got)
	}

	t.Run("processes", func(t *testing.T) {
		plain := exec.Command("/bin/sleep", "1000")
		plain.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: jail.AgentUID, Gid: jail.AgentUID}}
		if err := plain.Start(); err != nil {
			t.Fatal(err)
		}
		defer func() { _, _ = plain.Process.Kill(), plain.Wait() }()
		token := fmt.Sprintf("/proc/%d/root/run/hermit/token", one)
		if out, err := os.ReadFile(token); err != nil || len(out) == 0 {
			t.Errorf("root does not read the token: %v", err)
		}
		for _, user := range []uint32{jail.AgentUID, users[1], operator} {
			for _, file := range []string{"root/run/hermit/token", "root/state/.", "environ", "mem", "fd/.", "cwd/."} {
				if out, err := asUser(user, "/usr/bin/test", "-r", fmt.Sprintf("/proc/%d/%s", one, file)); err == nil {
					t.Errorf("user %d of the host reads %s of the agent: %s", user, file, out)
				}
			}
			if _, err := asUser(user, "/bin/sh", "-c", fmt.Sprintf("head -c1 </proc/%d/environ", one)); err == nil {
				t.Errorf("user %d of the host reads the environment", user)
			}
			if _, err := asUser(user, "/bin/sh", "-c", fmt.Sprintf("kill -0 %d", one)); err == nil {
				t.Errorf("user %d of the host may signal the agent", user)
			}
		}
		for _, file := range []string{"environ", "mem", "fd/.", "cwd/."} { // the same questions, of a process that is theirs
			if out, err := asUser(jail.AgentUID, "/usr/bin/test", "-r", fmt.Sprintf("/proc/%d/%s", plain.Process.Pid, file)); err != nil {
				t.Errorf("user 1000 does not read %s of their own process, which shows nothing: %v %s", file, err, out)
			}
		}
		if out, err := asUser(jail.AgentUID, "/bin/sh", "-c", fmt.Sprintf("kill -0 %d", plain.Process.Pid)); err != nil {
			t.Errorf("user 1000 may not signal their own process, which shows nothing: %v %s", err, out)
		}
	})

	t.Run("its user namespace", func(t *testing.T) {
		for user, want := range map[uint32]bool{users[0]: false, users[1]: false, jail.AgentUID: false, users[0] + jail.NamespaceOwners: true} {
			ns, err := os.Open(fmt.Sprintf("/proc/%d/ns/user", one))
			if err != nil {
				t.Fatal(err)
			}
			enter := exec.Command("/usr/bin/nsenter", "--user=/proc/self/fd/3", "/bin/cat", "/proc/self/status")
			enter.ExtraFiles = []*os.File{ns}
			enter.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: user, Gid: user}}
			out, err := enter.CombinedOutput()
			if becameRoot := err == nil && strings.Contains(string(out), "\nUid:\t0\t"); becameRoot != want {
				t.Errorf("user %d becomes root in the namespace of user %d: %v: %v %s", user, users[0], becameRoot, err, out)
			}
			if err := ns.Close(); err != nil {
				t.Error(err)
			}
		}
		all, err := filepath.Glob("/proc/[0-9]*")
		if err != nil || len(all) == 0 {
			t.Fatal(all, err)
		}
		for _, dir := range all {
			var st unix.Stat_t
			if err := unix.Stat(dir, &st); err == nil && (st.Uid == users[0]+jail.NamespaceOwners || st.Uid == users[1]+jail.NamespaceOwners) {
				t.Errorf("%s runs as the owner of a namespace", dir)
			}
		}
	})

	t.Run("files of a workspace", func(t *testing.T) {
		e.MustIn("one", "cat /workspace/theirs && echo y >>/workspace/theirs && echo made >/workspace/made && mkdir /workspace/dir")
		for _, name := range []string{"made", "dir", "theirs"} {
			var st unix.Stat_t
			if err := unix.Stat(filepath.Join(mine, name), &st); err != nil || st.Uid != operator || st.Gid != operator {
				t.Errorf("%s belongs to %d:%d on the host: %v", name, st.Uid, st.Gid, err)
			}
		}
		if out, err := asUser(operator, "/bin/cat", filepath.Join(mine, "made")); err != nil {
			t.Errorf("the operator does not read what the agent made: %v %s", err, out)
		}
	})

	t.Run("setuid", func(t *testing.T) {
		e.MustIn("one", "cp /usr/bin/id /workspace/id && chmod 755 /workspace/id && chmod 1777 /workspace/dir")
		for _, mode := range []string{"4755", "2755", "6755", "u+s", "g+s"} {
			if out, err := e.In("one", "chmod "+mode+" /workspace/id"); err == nil {
				t.Errorf("the agent makes a file %s: %s", mode, out)
			}
		}
		var st unix.Stat_t
		if err := unix.Stat(filepath.Join(mine, "id"), &st); err != nil || st.Mode&0o7777 != 0o755 {
			t.Errorf("the program has mode %o: %v", st.Mode, err)
		}
		if err := os.Chmod(filepath.Join(mine, "id"), 0o755|os.ModeSetuid); err != nil {
			t.Fatal(err)
		}
		if out, err := asUser(65534, filepath.Join(mine, "id")); err != nil || !strings.Contains(out, fmt.Sprint(operator)) {
			t.Errorf("the file system of the test gives no setuid program its user, which shows nothing: %v %s", err, out)
		}
	})

	t.Run("what the kernel counts by user", func(t *testing.T) {
		for what, call := range map[string]string{
			"instances of inotify": fmt.Sprintf("syscall(%d, 0)", unix.SYS_INOTIFY_INIT1),
			"queues of messages":   fmt.Sprintf(`syscall(%d, my $q = "q$$.$n", %d, 0600, my $a = pack("q8", 0, 10, 8192))`, unix.SYS_MQ_OPEN, unix.O_CREAT|unix.O_RDWR),
			"timers":               fmt.Sprintf(`syscall(%d, 1, 0, my $id = "\0" x 8)`, unix.SYS_TIMER_CREATE),
		} {
			e.MustIn("one", "rm -f /state/held /state/enough")
			taken := make(chan string)
			go func() {
				out, err := e.In("one", "perl -e 'my $n = 0; while ($n < 1e6 && "+call+" >= 0) { $n++ } print $n; open my $f, \">/state/held\"; "+
					"for (1..1200) { last if -e \"/state/enough\"; select(undef, undef, undef, 0.05) }'")
				taken <- fmt.Sprint(out, err)
			}()
			one := "perl -e 'my $n = 0; print " + call + " >= 0 ? 1 : 0'"
			testenv.Eventually(t, 30*time.Second, func() bool {
				_, err := e.In("two", "true")
				out, _ := e.In("one", "cat /state/held && echo yes")
				return err == nil && out == "yes\n"
			},
				"an agent does not take all "+what)
			if got := e.MustIn("one", one); got != "0" {
				t.Errorf("the agent did not take all %s, which shows nothing", what)
			}
			if got := e.MustIn("two", one); got != "1" {
				t.Errorf("one agent takes the %s of another", what)
			}
			if fd, err := unix.InotifyInit1(0); err != nil {
				t.Errorf("with all %s an agent takes those of root: %v", what, err)
			} else if err := unix.Close(fd); err != nil {
				t.Error(err)
			}
			e.MustIn("one", "touch /state/enough")
			if got := <-taken; strings.HasPrefix(got, "0") || !strings.HasSuffix(got, "<nil>") {
				t.Errorf("the agent took %s %s", got, what)
			} else {
				t.Logf("%s %s", got, what)
			}
		}
	})

	t.Run("its state in the next jail", func(t *testing.T) {
		e.MustIn("one", "echo kept >/state/kept && chmod 600 /state/kept")
		if out, err := e.Run(t.Context(), "agent", "restart", "one"); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		e.Running("one")
		if got := e.MustIn("one", "cat /state/kept; stat -c %u /state/kept"); got != "kept\n1000\n" {
			t.Errorf("its state is %q", got)
		}
	})

	t.Run("a file system without maps", func(t *testing.T) {
		for kind, want := range map[string]string{"tmpfs": "", "ramfs": "cannot map the owner of files"} {
			folder := workspace(e, kind)
			if err := errors.Join(os.Mkdir(folder, 0o755), unix.Mount(kind, folder, kind, 0, "")); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = unix.Unmount(folder, unix.MNT_DETACH) }) // the folder of the test is removed behind it
			err := linux.TryMap(folder)
			out, _ := e.Run(t.Context(), "agent", "add", kind, "--workspace", folder)
			if want == "" && (err != nil || e.Running(kind).Jail == nil) {
				t.Errorf("with %s: %v\n%s", kind, err, out)
			}
			if want != "" {
				testenv.Eventually(t, 30*time.Second, func() bool {
					shown, _ := e.Run(t.Context(), "agent", "show", kind)
					return strings.Contains(out+shown, want)
				}, "nobody says that "+kind+" cannot be mapped: "+out)
				if !strings.Contains(fmt.Sprint(err), want) {
					t.Errorf("doctor is told %v", err)
				}
			}
		}
	})

	t.Run("printing at full speed", func(t *testing.T) {
		conn, err := net.Dial("unix", hostd.SocketPath(e.Config))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close() // it was about who listens
		daemon, err := peerOf(conn)
		if err != nil {
			t.Fatal(err)
		}
		e.Sync("clawbots:\n  - name: one\n    workspace: ./workspaces/mine\n  - name: two\n  - name: loud\n    command: [/usr/bin/yes]\n    limits: {memory: 256MiB, cpu: 1, tasks: 16}\n")
		first := e.Running("loud").Jail.PID
		var loud int
		testenv.Eventually(t, 10*time.Second, func() bool { // before, it fills its home
			children, err := os.ReadFile(fmt.Sprintf("/proc/%[1]d/task/%[1]d/children", first))
			if err != nil {
				t.Fatal(err)
			}
			loud, err = strconv.Atoi(strings.TrimSpace(string(children)))
			name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", loud)) // it may be gone
			return err == nil && string(name) == "yes\n"
		}, "the first process does not start it")
		// Taken from it are 8 MiB at first and after each rest, and 8 MiB a second. A tenth of a core is what a second's may cost.
		const hand, watched = 8 << 20, 24 << 20
		printed := func(enough int) func() bool { return func() bool { return writtenBy(t, loud) >= enough } }
		testenv.Eventually(t, 30*time.Second, printed(hand), "it does not print what it has in hand")
		before, from, began := cpuOf(t, daemon), writtenBy(t, loud), time.Now()
		testenv.Eventually(t, 30*time.Second, printed(from+watched), "it does not go on printing")
		bytes, took, cost := writtenBy(t, loud)-from, time.Since(began), cpuOf(t, daemon)-before
		seconds := float64(bytes) / hand
		if seconds > took.Seconds()+1.5 || cost.Seconds() > max(seconds, took.Seconds())/10 {
			t.Errorf("an agent that prints %d bytes in %v costs the host daemon %v", bytes, took, cost)
		}
		t.Logf("%d bytes in %v cost the host daemon %v", bytes, took, cost)
	})
}

// cpuOf is how long a process has run.
func cpuOf(t *testing.T, pid int) time.Duration {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), ") ")
	fields := strings.Fields(rest)
	var ticks int
	for _, f := range fields[11:13] { // in user space, and in the kernel
		n, err := strconv.Atoi(f)
		if err != nil {
			t.Fatal(err)
		}
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond
}

// writtenBy is how many bytes a process has written.
func writtenBy(t *testing.T, pid int) (n int) {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/io", pid))
	if err == nil {
		_, text, _ := strings.Cut(string(text), "wchar: ")
		_, err = fmt.Sscan(text, &n)
	}
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// peerOf is the process that listens where a connection leads.
func peerOf(conn net.Conn) (pid int, err error) {
	raw, err := conn.(*net.UnixConn).SyscallConn()
	if err != nil {
		return 0, err
	}
	err = errors.Join(raw.Control(func(fd uintptr) {
		var peer *unix.Ucred
		if peer, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			pid = int(peer.Pid)
		}
	}), err)
	return pid, err
}
