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

// nobody is the user that runs what is compared with a jail: Chromium's own sandbox does not start as root.
const nobody = 65534

// homeOfNobody is a folder in memory.
func homeOfNobody() string {
	home := must(os.MkdirTemp("/dev/shm", "clawjail-bench-"))
	check(os.Chown(home, nobody, nobody))
	return home
}

// asNobody has a command run as a user who is not root, with a home.
func asNobody(cmd *exec.Cmd, home string) {
	cmd.Env = []string{"HOME=" + home, "TMPDIR=" + home, "LANG=C.UTF-8", "PATH=/usr/bin:/bin"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
}

// finish waits for the end of a command whose input was closed, but not for long.
func finish(cmd *exec.Cmd) {
	late := time.AfterFunc(10*time.Second, func() { _ = cmd.Process.Kill() })
	_ = cmd.Wait() // how it ends says nothing
	late.Stop()
}

// answers waits for the first CDP reply of a browser whose pipe is given.
func answers(in io.Writer, out io.Reader) {
	must(io.WriteString(in, `{"id":1,"method":"Browser.getVersion"}`+"\x00"))
	for buf := []byte{1}; buf[0] != 0; {
		must(io.ReadFull(out, buf))
	}
}

// nowhere is a proxy that refuses: what loads no page needs none.
const nowhere = "http://127.0.0.1:9"

// launch is the browser's own line, the same for all that are compared.
func launch(home, proxy string) []string {
	return must(browser.Command(browser.Options{Build: browser.Shell, Proxy: proxy, Home: home, TempDir: "/tmp", ProfileDir: home + "/profile"}))
}

// chromium is the browser of the template as an ordinary process of this host, as a user who is not root.
type chromium struct {
	home    string
	began   time.Time
	cmd     *exec.Cmd
	in, out *os.File // what it reads, and what it writes
}

func startChromium(ctx context.Context, proxy string) *chromium {
	c := &chromium{home: homeOfNobody()}
	argv := launch(c.home, proxy)
	theirIn, in, err := os.Pipe()
	out, theirOut, err2 := os.Pipe()
	check(err, err2)
	c.cmd, c.in, c.out = exec.CommandContext(ctx, argv[0], argv[1:]...), in, out
	asNobody(c.cmd, c.home)
	c.cmd.ExtraFiles = []*os.File{theirIn, theirOut}
	c.began = time.Now()
	err = c.cmd.Start()
	if err = errors.Join(err, theirIn.Close(), theirOut.Close()); err != nil {
		check(err, in.Close(), out.Close(), os.RemoveAll(c.home))
	}
	return c
}

// end closes the pipe, which ends the browser.
func (c *chromium) end() error {
	_, _ = c.in.Close(), c.out.Close() // they may be closed already
	finish(c.cmd)
	return os.RemoveAll(c.home)
}

// plainStart times a browser from its process to its first answer.
func plainStart(ctx context.Context, t times, name string) {
	c := startChromium(ctx, nowhere)
	err := attempt(func() { answers(c.in, c.out) })
	t.add(name, time.Since(c.began))
	check(err, c.end())
}

const dockerImage = "clawjail-bench"

// docker is an engine of this run's own, that leaves nothing behind.
type docker struct {
	dir    string
	daemon *exec.Cmd
}

// startDocker loads the same root filesystem. It returns nil when there is no Docker here.
func startDocker(ctx context.Context, rootfs string) (*docker, error) {
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
	err = attempt(func() {
		check(d.daemon.Start())
		await(30*time.Second, 100*time.Millisecond, "dockerd answers", func() bool {
			check(ctx.Err())
			return d.command(ctx, "version").Run() == nil
		})
		tar := exec.CommandContext(ctx, "tar", "-C", rootfs, "-c", ".")
		load := d.command(ctx, "import", "-", dockerImage)
		load.Stdin = must(tar.StdoutPipe())
		check(tar.Start())
		if out, err := load.CombinedOutput(); err != nil {
			check(fmt.Errorf("docker import: %w: %s", err, out))
		}
		check(tar.Wait())
	})
	if err != nil {
		err = errors.Join(err, d.stop())
		return nil, fmt.Errorf("%w: %s", err, last(log.String(), 2000))
	}
	return d, nil
}

func (d *docker) socket() string { return "unix://" + filepath.Join(d.dir, "docker.sock") }

func (d *docker) command(ctx context.Context, args ...string) *exec.Cmd {
	return exec.CommandContext(ctx, "docker", append([]string{"-H", d.socket()}, args...)...)
}

// run starts the browser in a container, hardened as far as its own sandbox allows, and times it to its first reply.
func (d *docker) run(ctx context.Context, t times, name string) {
	const home = "/home/browser"
	args := []string{"run", "-i", "--rm", "--user", "1000:1000", "--cap-drop", "ALL", "--security-opt", "no-new-privileges",
		"--security-opt", "seccomp=unconfined", "--read-only", "--tmpfs", "/tmp:mode=1777", "--tmpfs", home + ":uid=1000,gid=1000",
		"--memory", "768m", "--pids-limit", "512", "--shm-size", "256m", "-e", "HOME=" + home, "-e", "TMPDIR=/tmp", dockerImage,
		"/bin/sh", "-c", `exec 3<&0 4>&1 0</dev/null 1>&2; exec "$@"`, "sh"}
	cmd := d.command(ctx, append(args, launch(home, nowhere)...)...)
	var complaint bytes.Buffer
	cmd.Stderr = &complaint
	in, out := must(cmd.StdinPipe()), must(cmd.StdoutPipe())
	began := time.Now()
	check(cmd.Start())
	err := attempt(func() { answers(in, out) })
	t.add(name, time.Since(began))
	_ = in.Close()
	_ = cmd.Wait() // it ends with its pipe
	if err != nil {
		check(fmt.Errorf("%s: %w: %s", name, err, complaint.String()))
	}
}

func (d *docker) stop() error {
	if d.daemon.Process != nil {
		_ = d.daemon.Process.Signal(syscall.SIGTERM) // it may have ended
		_ = d.daemon.Wait()
	}
	_ = exec.Command("ip", "link", "del", "docker0").Run() // it was this run's
	return os.RemoveAll(d.dir)
}
