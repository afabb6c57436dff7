package helper_test

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/clawjail/clawjail/internal/jailspawn/spawntest"
	"github.com/clawjail/clawjail/internal/testenv"
)

const id = "0123456789abcdef0123456789abcdef"

// installed is a setuid helper with a host of its own.
type installed struct {
	*spawntest.Host
	t            *testing.T
	path, config string
}

func install(t *testing.T) *installed {
	t.Helper()
	h := spawntest.New(t)
	i := &installed{Host: h, t: t, path: h.Base + "/clawjail-spawn", config: h.Base + "/etc/spawn.conf"}
	if err := os.Mkdir(filepath.Dir(i.config), 0o755); err != nil {
		t.Fatal(err)
	}
	spawntest.BuildHelper(t, i.path, i.config)
	i.Write(i.config, "commands "+h.Commands+"\nrun_dir "+h.Base+"/runs\nruns 2\n"+
		"jail mcp0 users 65534 as clawdie root "+h.Root+"\nroot scratch users 65534 as clawdie path "+h.Root+"\njail other users 1001 as clawdie root "+h.Root+"\n")
	return i
}

// stage stages a script as the caller.
func (i *installed) stage(id, script string) {
	i.t.Helper()
	dir := i.Root + spawntest.Home + "/.cache/clawjail/stage"
	at := i.Root + spawntest.Home
	for _, name := range []string{".cache", "clawjail", "stage", id} {
		at = filepath.Join(at, name)
		if err := os.Mkdir(at, 0o700); err != nil && !os.IsExist(err) {
			i.t.Fatal(err)
		}
		if err := os.Chown(at, spawntest.UID, spawntest.UID); err != nil {
			i.t.Fatal(err)
		}
	}
	for name, text := range map[string]string{"launch.sh": script, "env.sh": ""} {
		file := filepath.Join(dir, id, name)
		if err := errors.Join(os.WriteFile(file, []byte(text), 0o600), os.Chown(file, spawntest.UID, spawntest.UID)); err != nil {
			i.t.Fatal(err)
		}
	}
}

// call is one call of the helper by user 65534.
type call struct {
	cmd       *exec.Cmd
	out, errs bytes.Buffer
	lifeline  *os.File
}

func (i *installed) command(args ...string) *call {
	i.t.Helper()
	held, lifeline, err := os.Pipe()
	if err != nil {
		i.t.Fatal(err)
	}
	i.t.Cleanup(func() { _ = errors.Join(held.Close(), lifeline.Close()) }) // they may be closed
	c := &call{cmd: exec.Command(i.path, args...), lifeline: lifeline}
	c.cmd.Stdout, c.cmd.Stderr = &c.out, &c.errs
	c.cmd.ExtraFiles = []*os.File{held}
	c.cmd.WaitDelay = 5 * time.Second
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: spawntest.UID, Gid: spawntest.UID, Groups: []uint32{4, 27}}, Setsid: true}
	return c
}

func (c *call) run() int {
	_ = c.cmd.Run() // the status says how
	return c.cmd.ProcessState.ExitCode()
}

func (i *installed) refused(c *call, says string) {
	i.t.Helper()
	if status := c.run(); status != 125 || !strings.Contains(c.errs.String(), says) {
		i.t.Errorf("status %d: %s; want one with %q", status, c.errs.String(), says)
	}
	if log := i.Record("log"); log != "" {
		i.t.Errorf("commands were run: %s", log)
	}
}

func TestAProgramRunsAsTheJailsUserWithItsStdioAndStatus(t *testing.T) {
	i := install(t)
	i.stage(id, "cat; id -u; echo to-stderr >&2; exit 7")
	c := i.command("enter", "mcp0", id)
	c.cmd.Stdin = strings.NewReader("bytes\x00\xff\n")
	if status := c.run(); status != 7 || c.out.String() != "bytes\x00\xff\n65534\n" || c.errs.String() != "to-stderr\n" {
		t.Errorf("status %d, %q, %q", status, c.out.String(), c.errs.String())
	}
	if want := "jexec -l -U clawdie mcp0 /bin/sh /home/clawdie/.cache/clawjail/stage/" + id + "/launch.sh\n"; i.Record("log") != want {
		t.Errorf("%q, want %q", i.Record("log"), want)
	}
	if left := i.Staged(); len(left) != 0 {
		t.Errorf("%q are left", left)
	}
}

func TestAProgramOfAnEphemeralJailEndsWithItsOwnStatus(t *testing.T) {
	i := install(t)
	i.stage(id, "echo 9 >/home/clawdie/.cache/clawjail/stage/"+id+"/status; exit 0")
	c := i.command("run", "scratch", id)
	if status := c.run(); status != 9 || c.errs.Len() > 0 {
		t.Errorf("status %d, %s", status, c.errs.String())
	}
	if log := i.Record("log"); !strings.HasPrefix(log, "jail -q -c name=cjs01234567 path="+i.Root+" ") || !strings.Contains(log, "ip4=disable") {
		t.Error(log)
	}
}

// Point 1 and 2: what a caller may do is by the kernel's word for who it is.
func TestTheCallerIsTheRealUser(t *testing.T) {
	i := install(t)
	i.stage(id, "exit 0")
	i.refused(i.command("enter", "other", id), "user 65534 may not enter other")
	i.refused(i.command("run", "mcp0", id), "may not run mcp0")
	c := i.command("enter", "mcp0", id)
	c.cmd.Env = []string{"SUDO_UID=1001", "USER=root", "LOGNAME=root", "UID=0"}
	c.cmd.SysProcAttr.Credential.Uid = 1002
	i.refused(c, "user 1002 may not")
	root := i.command("enter", "mcp0", id)
	root.cmd.SysProcAttr.Credential = nil
	i.refused(root, "root needs no helper")
	if err := os.Chmod(i.path, 0o755); err != nil {
		t.Fatal(err)
	}
	i.refused(i.command("enter", "mcp0", id), "not setuid root")
}

// Point 3: fixed words and names, and a configuration that is root's alone.
func TestOnlyVerbsAndNamesAreTaken(t *testing.T) {
	i := install(t)
	i.stage(id, "exit 0")
	for _, args := range [][]string{
		{}, {"enter"}, {"enter", "mcp0"}, {"enter", "mcp0", id, "/bin/sh"}, {"--help"}, {"enter", "-U", id}, {"enter", "../mcp0", id}, {"enter", "mcp0", "../" + id[3:]},
		{"enter", "1", id}, {"enter", "mcp0;id", id}, {"enter", "MCP0", id}, {"enter", "mcp0", strings.ToUpper(id)}, {"exec", "mcp0", id}, {"end"}, {"end", "mcp0", id}, {"enter", "mcp0\n", id},
	} {
		i.refused(i.command(args...), "usage: clawjail-spawn")
	}
}

func TestAConfigurationThatOthersCouldWriteIsRefused(t *testing.T) {
	i := install(t)
	i.stage(id, "exit 0")
	chmod := func(path string, mode os.FileMode) {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
	}
	chmod(i.config, 0o664)
	i.refused(i.command("enter", "mcp0", id), "can be written by others")
	chmod(i.config, 0o644)
	folder := filepath.Dir(i.config) // which nothing else is in
	chmod(folder, 0o775)
	i.refused(i.command("enter", "mcp0", id), folder+" can be written by others")
	chmod(folder, 0o755)
	if err := os.Chown(i.config, spawntest.UID, 0); err != nil {
		t.Fatal(err)
	}
	i.refused(i.command("enter", "mcp0", id), "belongs to user 65534")
	if err := errors.Join(os.Rename(i.config, i.config+".real"), os.Symlink(i.config+".real", i.config)); err != nil {
		t.Fatal(err)
	}
	i.refused(i.command("enter", "mcp0", id), "symbolic link")
}

// Point 4: what is staged is looked at by descriptor, and is the caller's alone.
func TestWhatSomebodyElseStagedIsNotRun(t *testing.T) {
	i := install(t)
	i.stage(id, "exit 0")
	dir := i.Root + spawntest.Home + "/.cache/clawjail/stage/" + id
	launch := dir + "/launch.sh"
	do := func(err error) {
		if err != nil {
			t.Helper()
			t.Fatal(err)
		}
	}
	do(os.Chown(launch, 1001, 1001))
	i.refused(i.command("enter", "mcp0", id), "was not staged by user 65534 alone")
	do(os.Chown(launch, spawntest.UID, spawntest.UID))
	// The refusal has removed what was staged.
	i.stage(id, "exit 0")
	do(errors.Join(os.Remove(launch), os.Symlink("/etc/passwd", launch)))
	i.refused(i.command("enter", "mcp0", id), "something else lies there")
	i.stage(id[:31]+"0", "exit 0")
	do(errors.Join(os.RemoveAll(dir), os.Symlink(dir[:len(dir)-1]+"0", dir)))
	i.refused(i.command("enter", "mcp0", id), "something else lies there")
	do(os.Remove(dir))
	stage := filepath.Dir(dir)
	do(errors.Join(os.Rename(stage, i.Root+"/tmp"), os.Symlink("/tmp", stage)))
	i.refused(i.command("enter", "mcp0", id), "something else lies there")
	do(os.Chown(i.Root, spawntest.UID, 0))
	i.refused(i.command("enter", "mcp0", id), "belongs to user 65534")
}

// Point 5 and 7: environment, descriptors, limits, folder, umask, ids.
func TestNothingOfTheCallerReachesWhatRunsAsRoot(t *testing.T) {
	i := install(t)
	i.stage(id, "exit 0")
	c := i.command("enter", "mcp0", id)
	c.cmd.Env = []string{"PATH=/tmp/evil", "LD_PRELOAD=/tmp/evil.so", "GODEBUG=madvdontneed=1", "CANARY=1", "IFS=x", "ENV=/tmp/x", "BASH_ENV=/tmp/x"}
	c.cmd.Dir = i.Root + spawntest.Home
	c.cmd.Args[0] = "-sh"
	secret, err := os.Open("/etc/shadow")
	if err != nil {
		t.Fatal(err)
	}
	defer secret.Close()
	c.cmd.ExtraFiles = append(c.cmd.ExtraFiles, secret, secret)
	shell := exec.Command("/bin/sh", "-c", `umask 000; ulimit -S -f 1; ulimit -S -n 32; exec 0<&- ; exec "$0" "$@"`, i.path, "enter", "mcp0", id)
	shell.Env, shell.Dir, shell.ExtraFiles, shell.SysProcAttr = c.cmd.Env[2:], c.cmd.Dir, c.cmd.ExtraFiles, c.cmd.SysProcAttr
	shell.Stdout, shell.Stderr = &c.out, &c.errs
	if out, err := shell.Process, shell.Run(); err != nil {
		t.Fatalf("%v: %v: %s", out, err, c.errs.String())
	}
	if env := i.Record("env"); strings.Contains(env, "CANARY") || strings.Contains(env, "evil") || strings.Contains(env, "GODEBUG") {
		t.Errorf("the environment: %s", env)
	}
	if fds := i.Record("fds"); strings.Contains(fds, "shadow") || strings.Contains(fds, " 3 ->") || strings.Contains(fds, " 4 ->") || !strings.Contains(fds, "0 -> /dev/null") {
		t.Errorf("the descriptors: %s", fds)
	}
	if got := i.Record("cwd") + i.Record("umask"); got != "/\n0077\n" {
		t.Errorf("the folder and umask: %q", got)
	}
	for _, status := range []string{i.Record("status"), i.Record("parent")} {
		if !strings.Contains(status, "Uid:\t0\t0\t0\t0\n") || !strings.Contains(status, "Gid:\t0\t0\t0\t0\n") || !strings.Contains(status, "Groups:\t0 \n") {
			t.Errorf("the ids: %s", status)
		}
	}
	limits := strings.Join(strings.Fields(i.Record("limits")), " ")
	if !strings.Contains(limits, "Max core file size 0 0") || !strings.Contains(limits, "Max file size unlimited unlimited") || !strings.Contains(limits, "Max open files 1024 1024") {
		t.Errorf("the limits: %s", limits)
	}
}

// Point 6: who asks cannot stop it, and when they are gone, so is the program.
func TestAProgramEndsWhenItsCallerDoes(t *testing.T) {
	for _, verb := range [][]string{{"enter", "mcp0"}, {"run", "scratch"}} {
		t.Run(verb[0], func(t *testing.T) {
			i := install(t)
			i.stage(id, "setsid sleep 1000 & (setsid sleep 1000 &) ; echo began; sleep 1000")
			c := i.command(verb[0], verb[1], id)
			if err := c.cmd.Start(); err != nil {
				t.Fatal(err)
			}
			testenv.Eventually(t, 20*time.Second, func() bool { return len(i.Inside()) >= 3 }, "the program does not begin: %v", i.Inside())
			// Of the caller's own user, as a caller is.
			kill := exec.Command("/bin/sh", "-c", "kill -KILL "+strconv.Itoa(c.cmd.Process.Pid)+"; kill -STOP "+strconv.Itoa(c.cmd.Process.Pid))
			kill.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: spawntest.UID, Gid: spawntest.UID}}
			if out, err := kill.CombinedOutput(); err == nil || !strings.Contains(string(out), "not permitted") {
				t.Errorf("the caller may kill the helper: %v %s", err, out)
			}
			if err := c.lifeline.Close(); err != nil {
				t.Fatal(err)
			}
			_ = c.cmd.Wait() // it was ended
			if left := i.Inside(); len(left) > 0 {
				t.Errorf("processes %q are left", left)
			}
			if left := i.Staged(); len(left) > 0 {
				t.Errorf("%q are left", left)
			}
		})
	}
}

func TestWithoutAPipeThatIsHeldNothingRuns(t *testing.T) {
	i := install(t)
	i.stage(id, "exit 0")
	c := i.command("enter", "mcp0", id)
	c.cmd.ExtraFiles = nil
	i.refused(c, "descriptor 3 is no pipe")
}

// Point 8: so many at once, and no more; and 10: only the caller's own are ended.
func TestACallerHasSoManyRunsAndEndsOnlyItsOwn(t *testing.T) {
	i := install(t)
	ids := []string{id, id[:31] + "0", id[:31] + "1"}
	var running []*call
	for n, one := range ids[:2] {
		i.stage(one, "exec sleep 1000")
		c := i.command("enter", "mcp0", one)
		if err := c.cmd.Start(); err != nil {
			t.Fatal(err)
		}
		running = append(running, c)
		testenv.Eventually(t, 20*time.Second, func() bool { return len(i.Inside()) > n }, "program %d does not begin", n)
	}
	i.stage(ids[2], "exit 0")
	c := i.command("enter", "mcp0", ids[2])
	if status := c.run(); status != 125 || !strings.Contains(c.errs.String(), "too many programs") {
		t.Errorf("status %d: %s", status, c.errs.String())
	}
	other := i.command("end", ids[0])
	other.cmd.SysProcAttr.Credential.Uid = 1001
	if status := other.run(); status != 125 || len(i.Inside()) != 2 {
		t.Errorf("somebody else ends it: status %d: %s", status, other.errs.String())
	}
	if end := i.command("end", ids[0]); end.run() != 0 {
		t.Errorf("end: %s", end.errs.String())
	}
	_ = running[0].cmd.Wait() // it was ended
	if left := i.Inside(); len(left) != 1 {
		t.Errorf("%q run, want one", left)
	}
	if end := i.command("end", "mcp0"); end.run() != 0 {
		t.Errorf("end by the name: %s", end.errs.String())
	}
	_ = running[1].cmd.Wait() // it was ended
	if left := i.Inside(); len(left) != 0 {
		t.Errorf("%q run, want none", left)
	}
}

// Point 9: what a caller says reaches no terminal and no log as it is; 11: its memory is nobody's.
func TestTheHelperKeepsItsMemoryAndCoreToItself(t *testing.T) {
	i := install(t)
	i.stage(id, "sleep 1000")
	c := i.command("enter", "mcp0", id)
	c.cmd.Dir = i.Root + spawntest.Home
	c.cmd.Env = []string{"GODEBUG=madvdontneed=1", "CANARY=1", "PATH=/tmp/evil"}
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, 20*time.Second, func() bool { return len(i.Inside()) > 0 }, "the program does not begin")
	if cwd, err := os.Readlink("/proc/" + strconv.Itoa(c.cmd.Process.Pid) + "/cwd"); cwd != "/" {
		t.Errorf("the helper holds the folder %s: %v", cwd, err)
	}
	// The environment of the process as it is now is all that its runtime was told.
	if env, err := os.ReadFile("/proc/" + strconv.Itoa(c.cmd.Process.Pid) + "/environ"); err != nil || !bytes.HasPrefix(env, []byte("PATH=/sbin:")) || bytes.Contains(env, []byte("CANARY")) || bytes.Contains(env, []byte("GODEBUG")) {
		t.Errorf("the helper's environment is %q: %v", env, err)
	}
	var st unix.Stat_t // the files of a process that may not be dumped are root's
	limits := strings.Join(strings.Fields(i.Record("parent-limits")), " ")
	if err := unix.Stat("/proc/"+strconv.Itoa(c.cmd.Process.Pid)+"/mem", &st); err != nil || st.Uid != 0 || !strings.Contains(limits, "Max core file size 0 0") {
		t.Errorf("%v, uid %d, %s", err, st.Uid, limits)
	}
	if err := c.lifeline.Close(); err != nil {
		t.Fatal(err)
	}
	_ = c.cmd.Wait() // it was ended
}
