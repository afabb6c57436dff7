package testenv

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Docker is an engine of a test's own: its data, its socket and its containers are below a temporary folder, and it makes
// no bridge and no rules of the host's. Other containers of the machine are not touched.
type Docker struct {
	Socket string
	dir    string
	more   []string // arguments
	daemon *exec.Cmd
}

// engineStart is how long an engine may take to answer on a busy machine.
const engineStart = time.Minute

// StartDocker starts an engine, with more arguments for its daemon. The caller stops it.
func StartDocker(t testing.TB, more ...string) *Docker {
	t.Helper()
	Need(t, Root)
	Tool(t, "dockerd")
	// Not in the folder of the test: a socket's path has 108 bytes at most.
	dir, err := os.MkdirTemp("/var/tmp", "cjdocker")
	if err != nil {
		t.Fatal(err)
	}
	d := &Docker{Socket: filepath.Join(dir, "s.sock"), dir: dir, more: more}
	if err := d.Start(); err != nil {
		_ = d.Stop() // the reason is the first error
		t.Fatalf("start an engine: %v", err)
	}
	return d
}

// Start starts the daemon, again after Kill.
func (d *Docker) Start() error {
	path, err := exec.LookPath("dockerd")
	if err != nil {
		path = "/usr/sbin/dockerd"
	}
	log, err := os.OpenFile(filepath.Join(d.dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }() // the daemon has its own descriptor
	// After Kill: where no process collects orphans the daemon takes a containerd that has ended for one that is slow.
	for _, stale := range []string{"pid", "exec/containerd/containerd.pid"} {
		if d.ended(stale) {
			if err := os.Remove(filepath.Join(d.dir, stale)); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
	}
	d.daemon = exec.Command(path, append([]string{"--data-root", filepath.Join(d.dir, "data"), "--exec-root", filepath.Join(d.dir, "exec"),
		"--pidfile", filepath.Join(d.dir, "pid"), "-H", "unix://" + d.Socket, "--bridge=none", "--iptables=false", "--ip6tables=false",
		"--ip-forward=false", "--ip-masq=false", "--userland-proxy=false"}, d.more...)...)
	d.daemon.Stdout, d.daemon.Stderr = log, log
	d.daemon.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // a ^C at the terminal is for the test, which stops it
	if err := d.daemon.Start(); err != nil {
		return err
	}
	answers := func() bool {
		answer, err := d.client().Get("http://docker/_ping")
		return err == nil && answer.Body.Close() == nil && answer.StatusCode == http.StatusOK
	}
	if !waitFor(engineStart, answers) {
		text, _ := os.ReadFile(log.Name()) // shown for the reason
		return fmt.Errorf("dockerd does not answer:\n%s", text[max(0, len(text)-2000):])
	}
	return nil
}

func (d *Docker) client() *http.Client {
	return &http.Client{Transport: &http.Transport{DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", d.Socket)
		}}}
}

// Kill kills the daemon in the middle of what it does. Containers run on, with what looks after them.
func (d *Docker) Kill() error {
	if err := d.daemon.Process.Kill(); err != nil {
		return err
	}
	_ = d.daemon.Wait() // it says that it was killed
	return nil
}

// Stop stops the daemon, and what it started, and removes everything.
func (d *Docker) Stop() error {
	if d.daemon != nil && d.daemon.Process != nil && d.daemon.ProcessState == nil {
		_ = d.daemon.Process.Signal(syscall.SIGTERM) // it may have ended
		_ = d.daemon.Wait()                          // its status says nothing
	}
	// After a kill containerd, and what looks after a container, are their own.
	d.endOrphans()
	var errs []error
	for n := 0; n < 100; n++ { // mounts of containers that are just ending
		unmountBelow(d.dir)
		err := os.RemoveAll(d.dir)
		if err == nil {
			return nil
		}
		errs = []error{err}
		time.Sleep(20 * time.Millisecond) // between two attempts
	}
	return errors.Join(errs...)
}

// ended says whether the process of a file with a number in it does not run.
func (d *Docker) ended(file string) bool {
	text, err := os.ReadFile(filepath.Join(d.dir, file))
	if err != nil {
		return true
	}
	gone := func() bool {
		status, err := os.ReadFile("/proc/" + strings.TrimSpace(string(text)) + "/status")
		return err != nil || strings.Contains(string(status), "State:\tZ")
	}
	return waitFor(time.Second, gone) // it is killed with its parent, a moment later
}

// endOrphans kills what was started with this engine's folder as an argument, containerd first, which could start more, and
// the children of that: a container that was just being made has no program yet, and nothing else ends it.
func (d *Docker) endOrphans() {
	if text, err := os.ReadFile(filepath.Join(d.dir, "exec", "containerd", "containerd.pid")); err == nil {
		if pid, err := strconv.Atoi(strings.TrimSpace(string(text))); err == nil && pid > 1 && d.owns(pid) {
			_ = syscall.Kill(pid, syscall.SIGKILL) // it may have ended
		}
	}
	all, err := os.ReadDir("/proc")
	if err != nil {
		return
	}
	var doomed []int
	for _, p := range all {
		pid, err := strconv.Atoi(p.Name())
		if err != nil || pid <= 1 || pid == os.Getpid() {
			continue
		}
		if parent := parentOf(pid); d.owns(pid) || parent > 1 && parent != os.Getpid() && d.owns(parent) {
			doomed = append(doomed, pid)
		}
	}
	for _, pid := range doomed {
		_ = syscall.Kill(pid, syscall.SIGKILL) // likewise
	}
}

// owns says whether a process was started with this engine's folder as an argument.
func (d *Docker) owns(pid int) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	return err == nil && strings.Contains(string(text), d.dir+"/")
}

// parentOf is the process that a process is a child of, or 0.
func parentOf(pid int) int {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0
	}
	_, after, _ := strings.Cut(string(text), "\nPPid:")
	line, _, _ := strings.Cut(after, "\n")
	parent, err := strconv.Atoi(strings.TrimSpace(line))
	if err != nil {
		return 0
	}
	return parent
}

func unmountBelow(dir string) {
	text, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return
	}
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) > 1 && strings.HasPrefix(f[1], dir+"/") {
			unmount(f[1])
		}
	}
}

// Ask sends the engine a request without a body, and returns its answer. One that is not of the 200s is an error.
func (d *Docker) Ask(method, path string) (string, error) { return d.send(method, path, nil) }

// Post sends the engine a request with a body of JSON, and returns its answer, as Ask does.
func (d *Docker) Post(path string, body any) (string, error) {
	text, err := json.Marshal(body)
	if err != nil {
		return "", err
	}
	return d.send(http.MethodPost, path, bytes.NewReader(text))
}

func (d *Docker) send(method, path string, body io.Reader) (string, error) {
	request, err := http.NewRequest(method, "http://docker"+path, body)
	if err != nil {
		return "", err
	}
	request.Header.Set("Content-Type", "application/json")
	answer, err := d.client().Do(request)
	if err != nil {
		return "", err
	}
	text, err := io.ReadAll(io.LimitReader(answer.Body, 8<<20))
	if err := errors.Join(err, answer.Body.Close()); err != nil {
		return "", err
	}
	if answer.StatusCode/100 != 2 {
		return "", fmt.Errorf("%s %s: %s: %.500s", method, path, answer.Status, text)
	}
	return string(text), nil
}

// Import makes an image of a folder. changes are lines as in a Dockerfile.
func (d *Docker) Import(name, root string, changes ...string) error {
	read, write := io.Pipe()
	go func() { write.CloseWithError(archive(write, root)) }()
	query := url.Values{"fromSrc": {"-"}, "repo": {name}, "changes": changes}
	answer, err := d.client().Post("http://docker/images/create?"+query.Encode(), "application/x-tar", read)
	if err != nil {
		return err
	}
	text, err := io.ReadAll(io.LimitReader(answer.Body, 64<<10))
	if err := errors.Join(err, answer.Body.Close()); err != nil {
		return err
	}
	if answer.StatusCode != http.StatusOK || strings.Contains(string(text), `"error"`) {
		return fmt.Errorf("import %s: %s: %s", name, answer.Status, text)
	}
	return nil
}

// archive writes a folder as a tar file, everything in it root's.
func archive(w io.Writer, root string) error {
	out := tar.NewWriter(w)
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || path == root {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		link := ""
		if info.Mode()&fs.ModeSymlink != 0 {
			if link, err = os.Readlink(path); err != nil {
				return err
			}
		}
		header, err := tar.FileInfoHeader(info, link)
		if err != nil {
			return err
		}
		if header.Name, err = filepath.Rel(root, path); err != nil {
			return err
		}
		header.Uid, header.Gid = 0, 0
		if err := out.WriteHeader(header); err != nil || !info.Mode().IsRegular() {
			return err
		}
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		_, err = io.Copy(out, f)
		return errors.Join(err, f.Close())
	})
	return errors.Join(err, out.Close())
}
