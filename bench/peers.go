//go:build linux

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/clawjail/clawjail/internal/browser"
)

// nobody is who runs what is compared with a jail: Chromium's own sandbox does not start as root.
const nobody = 65534

// homeOfNobody is a folder in memory.
func homeOfNobody() (string, error) {
	home, err := os.MkdirTemp("/dev/shm", "clawjail-bench-")
	if err != nil {
		return "", err
	}
	return home, os.Chown(home, nobody, nobody)
}

// asNobody has a command run as a user who is not root, with a home.
func asNobody(cmd *exec.Cmd, home string) {
	cmd.Env = []string{"HOME=" + home, "TMPDIR=" + home, "LANG=C.UTF-8", "PATH=/usr/bin:/bin"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
}

// gone waits for the end of a command whose input was closed, but not for long.
func gone(cmd *exec.Cmd) {
	late := time.AfterFunc(10*time.Second, func() { _ = cmd.Process.Kill() })
	_ = cmd.Wait() // how it ends says nothing
	late.Stop()
}

// answers waits for the first CDP reply of a browser whose pipe is given.
func answers(in io.Writer, out io.Reader) error {
	_, err := io.WriteString(in, `{"id":1,"method":"Browser.getVersion"}`+"\x00")
	for buf := []byte{1}; err == nil && buf[0] != 0; {
		_, err = io.ReadFull(out, buf)
	}
	if err != nil {
		return fmt.Errorf("the browser did not answer: %w", err)
	}
	return nil
}

// nowhere is a proxy that refuses: what loads no page needs none.
const nowhere = "http://127.0.0.1:9"

// launch is the browser's own line, the same for all that are compared.
func launch(home, proxy string) ([]string, error) {
	return browser.Command(browser.Options{Build: browser.Shell, Proxy: proxy, Home: home, TempDir: "/tmp", ProfileDir: home + "/profile"})
}

// chromium is the browser of the template as an ordinary process of this host, as a user who is not root.
type chromium struct {
	home    string
	began   time.Time
	cmd     *exec.Cmd
	in, out *os.File // what it reads, and what it writes
}

func startChromium(ctx context.Context, proxy string) (_ *chromium, err error) {
	home, err := homeOfNobody()
	if err != nil {
		return nil, err
	}
	argv, err := launch(home, proxy)
	if err != nil {
		return nil, err
	}
	theirIn, in, err := os.Pipe()
	out, theirOut, err2 := os.Pipe()
	if err := errors.Join(err, err2); err != nil {
		return nil, err
	}
	c := &chromium{home: home, cmd: exec.CommandContext(ctx, argv[0], argv[1:]...), in: in, out: out}
	asNobody(c.cmd, home)
	c.cmd.ExtraFiles = []*os.File{theirIn, theirOut}
	c.began = time.Now()
	err = c.cmd.Start()
	if err = errors.Join(err, theirIn.Close(), theirOut.Close()); err != nil {
		return nil, errors.Join(err, in.Close(), out.Close(), os.RemoveAll(home))
	}
	return c, nil
}

// end closes the pipe, which ends the browser.
func (c *chromium) end() error {
	_, _ = c.in.Close(), c.out.Close() // whoever spoke with it may have closed them
	gone(c.cmd)
	return os.RemoveAll(c.home)
}

// plainStart times a browser from its process to its first answer.
func plainStart(ctx context.Context, t times, name string) error {
	c, err := startChromium(ctx, nowhere)
	if err != nil {
		return err
	}
	err = answers(c.in, c.out)
	t.add(name, time.Since(c.began))
	return errors.Join(err, c.end())
}

const dockerImage = "clawjail-bench"

// docker is an engine of this run's own, that leaves nothing behind.
type docker struct {
	dir    string
	daemon *exec.Cmd
}

// startDocker loads the same root filesystem. It returns nil when there is no Docker here.
func startDocker(ctx context.Context, rootfs string) (_ *docker, err error) {
	for _, tool := range []string{"dockerd", "docker"} {
		if _, err := exec.LookPath(tool); err != nil {
			return nil, nil
		}
	}
	dir, err := os.MkdirTemp("/var/lib", "clawjail-bench-docker-")
	if err != nil {
		return nil, err
	}
	d := &docker{dir: dir}
	d.daemon = exec.Command("dockerd", "--data-root", filepath.Join(dir, "data"), "--exec-root", filepath.Join(dir, "exec"),
		"--pidfile", filepath.Join(dir, "pid"), "-H", d.socket(), "--iptables=false", "--userland-proxy=false")
	var log bytes.Buffer
	d.daemon.Stdout, d.daemon.Stderr, d.daemon.WaitDelay = &log, &log, time.Second // for what it may leave behind
	defer func() {
		if err != nil {
			err = fmt.Errorf("%w: %s", errors.Join(err, d.stop()), last(log.String(), 2000)) // it has ended
		}
	}()
	if err := d.daemon.Start(); err != nil {
		return nil, err
	}
	err = await(30*time.Second, 100*time.Millisecond, "dockerd answers", func() (bool, error) { return d.command(ctx, "version").Run() == nil, ctx.Err() })
	if err != nil {
		return nil, err
	}
	tar := exec.CommandContext(ctx, "tar", "-C", rootfs, "-c", ".")
	load := d.command(ctx, "import", "-", dockerImage)
	if load.Stdin, err = tar.StdoutPipe(); err != nil {
		return nil, err
	}
	if err := tar.Start(); err != nil {
		return nil, err
	}
	if out, err := load.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("docker import: %w: %s", err, out)
	}
	return d, tar.Wait()
}

func (d *docker) socket() string { return "unix://" + filepath.Join(d.dir, "docker.sock") }

func (d *docker) command(ctx context.Context, args ...string) *exec.Cmd {
	return exec.CommandContext(ctx, "docker", append([]string{"-H", d.socket()}, args...)...)
}

// run starts the browser in a container, hardened as far as its own sandbox allows, and waits for its first reply.
func (d *docker) run(ctx context.Context, t times, name string) error {
	const home = "/home/browser"
	argv, err := launch(home, nowhere)
	if err != nil {
		return err
	}
	args := []string{"run", "-i", "--rm", "--user", "1000:1000", "--cap-drop", "ALL", "--security-opt", "no-new-privileges",
		"--security-opt", "seccomp=unconfined", "--read-only", "--tmpfs", "/tmp:mode=1777", "--tmpfs", home + ":uid=1000,gid=1000",
		"--memory", "768m", "--pids-limit", "512", "--shm-size", "256m", "-e", "HOME=" + home, "-e", "TMPDIR=/tmp", dockerImage,
		"/bin/sh", "-c", `exec 3<&0 4>&1 0</dev/null 1>&2; exec "$@"`, "sh"}
	cmd := d.command(ctx, append(args, argv...)...)
	var complaint bytes.Buffer
	cmd.Stderr = &complaint
	in, err := cmd.StdinPipe()
	out, err2 := cmd.StdoutPipe()
	if err := errors.Join(err, err2); err != nil {
		return err
	}
	err = t.timed(name, func() error { return inOrder(cmd.Start, func() error { return answers(in, out) }) })
	_ = in.Close()
	if cmd.Process != nil {
		_ = cmd.Wait() // it ends with its pipe
	}
	if err != nil {
		err = fmt.Errorf("%w: %s", err, complaint.String())
	}
	return err
}

func (d *docker) stop() error {
	if d.daemon.Process != nil {
		_ = d.daemon.Process.Signal(syscall.SIGTERM) // it may have ended
		_ = d.daemon.Wait()
	}
	_ = exec.Command("ip", "link", "del", "docker0").Run() // it was this run's
	return os.RemoveAll(d.dir)
}
