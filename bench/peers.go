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

// answer waits for the first CDP reply of a browser whose pipe is given.
func answer(in io.WriteCloser, out io.Reader) error {
	if _, err := io.WriteString(in, `{"id":1,"method":"Browser.getVersion"}`+"\x00"); err != nil {
		return err
	}
	buf := make([]byte, 1)
	for {
		if _, err := io.ReadFull(out, buf); err != nil {
			return fmt.Errorf("the browser did not answer: %w", err)
		}
		if buf[0] == 0 {
			return nil
		}
	}
}

// nowhere is a proxy that refuses: what loads no page needs none.
const nowhere = "http://127.0.0.1:9"

// launch is the browser's own line, the same for all that are compared.
func launch(home, proxy string) ([]string, error) {
	argv, err := browser.Command(browser.Options{Build: browser.Shell, Proxy: proxy, Home: home, TempDir: "/tmp",
		ProfileDir: home + "/profile"})
	return argv, err
}

// chromium is the browser of the template as an ordinary process of this host, as a user who is not root.
type chromium struct {
	home  string
	began time.Time
	cmd   *exec.Cmd
	in    *os.File // what it reads
	out   *os.File // what it writes
}

func startChromium(ctx context.Context, proxy string) (_ *chromium, err error) {
	home, err := os.MkdirTemp("/dev/shm", "clawjail-bench-")
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(home))
		}
	}()
	if err := os.Chown(home, nobody, nobody); err != nil {
		return nil, err
	}
	argv, err := launch(home, proxy)
	if err != nil {
		return nil, err
	}
	in, toBrowser, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	fromBrowser, out, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.ExtraFiles = []*os.File{in, out}
	cmd.Env = []string{"HOME=" + home, "TMPDIR=" + home, "LANG=C.UTF-8", "PATH=/usr/bin:/bin"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	c := &chromium{home: home, cmd: cmd, in: toBrowser, out: fromBrowser, began: time.Now()}
	err = cmd.Start()
	_ = in.Close()
	_ = out.Close()
	if err != nil {
		return nil, errors.Join(err, toBrowser.Close(), fromBrowser.Close())
	}
	return c, nil
}

// end closes the pipe, which ends the browser.
func (c *chromium) end() error {
	_, _ = c.in.Close(), c.out.Close() // whoever spoke with it may have closed them
	late := time.AfterFunc(10*time.Second, func() { _ = c.cmd.Process.Kill() })
	_ = c.cmd.Wait()
	late.Stop()
	return os.RemoveAll(c.home)
}

// plain is how long a browser takes to its first answer.
func (b *bench) plain(ctx context.Context) (time.Duration, error) {
	c, err := startChromium(ctx, nowhere)
	if err != nil {
		return 0, err
	}
	err = answer(c.in, c.out)
	took := time.Since(c.began)
	return took, errors.Join(err, c.end())
}

// docker is an engine of this run's own, with an image of the template's root filesystem.
type docker struct {
	dir, socket string
	daemon      *exec.Cmd
}

const dockerImage = "clawjail-bench"

// startDocker returns nil when there is no Docker here.
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
	d := &docker{dir: dir, socket: filepath.Join(dir, "docker.sock")}
	defer func() {
		if err != nil {
			err = errors.Join(err, d.stop())
		}
	}()
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		return nil, err
	}
	defer log.Close()
	d.daemon = exec.Command("dockerd", "--data-root", filepath.Join(dir, "data"), "--exec-root", filepath.Join(dir, "exec"),
		"--pidfile", filepath.Join(dir, "pid"), "-H", "unix://"+d.socket, "--iptables=false", "--userland-proxy=false")
	d.daemon.Stdout, d.daemon.Stderr = log, log
	if err := d.daemon.Start(); err != nil {
		return nil, err
	}
	for n := 0; ; n++ {
		if err := d.command(ctx, "version").Run(); err == nil {
			break
		}
		if n == 300 {
			text, _ := os.ReadFile(log.Name()) // shown for the reason
			return nil, fmt.Errorf("dockerd does not answer:\n%s", text[max(0, len(text)-2000):])
		}
		time.Sleep(100 * time.Millisecond)
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

func (d *docker) command(ctx context.Context, args ...string) *exec.Cmd {
	return exec.CommandContext(ctx, "docker", append([]string{"-H", "unix://" + d.socket}, args...)...)
}

// run starts the browser in a container, hardened as far as its own sandbox allows, and waits for its first reply.
func (d *docker) run(ctx context.Context) (time.Duration, error) {
	const home = "/home/browser"
	argv, err := launch(home, nowhere)
	if err != nil {
		return 0, err
	}
	args := []string{"run", "-i", "--rm", "--user", "1000:1000", "--cap-drop", "ALL", "--security-opt", "no-new-privileges",
		"--security-opt", "seccomp=unconfined", "--read-only", "--tmpfs", "/tmp:mode=1777", "--tmpfs", home + ":uid=1000,gid=1000",
		"--memory", "768m", "--pids-limit", "512", "--shm-size", "256m", "-e", "HOME=" + home, "-e", "TMPDIR=/tmp", dockerImage,
		"/bin/sh", "-c", `exec 3<&0 4>&1 0</dev/null 1>&2; exec "$@"`, "sh"}
	cmd := d.command(ctx, append(args, argv...)...)
	in, err := cmd.StdinPipe()
	if err != nil {
		return 0, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return 0, err
	}
	var complaint bytes.Buffer
	cmd.Stderr = &complaint
	began := time.Now()
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	err = answer(in, out)
	took := time.Since(began)
	_ = in.Close()
	_ = cmd.Wait() // it ends with its pipe
	if err != nil {
		err = fmt.Errorf("docker run: %w: %s", err, complaint.String())
	}
	return took, err
}

func (d *docker) stop() error {
	if d.daemon != nil && d.daemon.Process != nil {
		_ = d.daemon.Process.Signal(syscall.SIGTERM) // it may have ended
		_ = d.daemon.Wait()
	}
	_ = exec.Command("ip", "link", "del", "docker0").Run() // it was this run's
	return os.RemoveAll(d.dir)
}
