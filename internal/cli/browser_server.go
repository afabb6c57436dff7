package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/clawjail/clawjail/internal/api/hostserver"
	"github.com/clawjail/clawjail/internal/browser"
	"github.com/clawjail/clawjail/internal/browser/control"
	"github.com/clawjail/clawjail/internal/browser/host"
	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/problem"
)

const (
	// healthLimit bounds a health check: the server answers it without asking the browser.
	healthLimit = 3 * time.Second
	// serverLimit bounds the start of a server, without a browser.
	serverLimit = 15 * time.Second
	// lookEvery is how often the health of a server that starts is checked.
	lookEvery = 25 * time.Millisecond
	// maxBrowserLog is how many bytes the log of servers in the background may have; a larger one is emptied at the next start.
	maxBrowserLog = 1 << 20
	// maxReply bounds answers except those of operations.
	maxReply = 1 << 20
)

// hostBrowser is the host browser, seen from a command.
type hostBrowser struct {
	settings   config.HostBrowser
	env        config.Environment
	configFile string
	control    *url.URL // of the control server
	local      bool
	dir        string
	tokenPath  string
	started    bool // this command started the server
}

// send sends a request with the token. Only the server of this machine, or the one that the user named, gets the token: no proxy
// and no target of a redirect.
func (b *hostBrowser) send(request *http.Request) (*http.Response, error) {
	token, err := host.ReadToken(b.tokenPath)
	if errors.Is(err, fs.ErrNotExist) {
		hint := "start it: clawjail browser serve"
		if !b.local {
			hint = "copy browser.token from that machine to " + b.tokenPath
		}
		return nil, problem.New(problem.Unauthorized, hint, "there is no token of the host browser: %s is missing", b.tokenPath)
	}
	if err != nil {
		return nil, err
	}
	request.Header.Set("Authorization", "Bearer "+token.Reveal())
	client := &http.Client{
		Transport:     &http.Transport{DisableKeepAlives: true, DialContext: b.dial},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return client.Do(request)
}

// dial connects to the server. On this machine, another local user may have bound the port first: the token is sent only to a
// listener of this user or root.
func (b *hostBrowser) dial(ctx context.Context, network, address string) (net.Conn, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, network, address)
	if err != nil || !b.local {
		return conn, err
	}
	// Looked up after connecting: a listener that was there then is there now.
	at, err := netip.ParseAddrPort(conn.RemoteAddr().String())
	if err != nil {
		return nil, errors.Join(fmt.Errorf("find out who listens at %s: %w", address, err), conn.Close())
	}
	if uid, ok := hostserver.Owner(at); ok && uid != 0 && uid != os.Geteuid() {
		return nil, errors.Join(problem.New(problem.Conflict, "set browser.control_url to a port of your own",
			"another user listens at %s, so the token was not sent: it is the user with the id %d", address, uid), conn.Close())
	}
	return conn, nil
}

// do sends a request without a body. path begins with a slash.
func (b *hostBrowser) do(ctx context.Context, method, path string) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, method, b.control.String()+path, nil)
	if err != nil {
		return nil, fmt.Errorf("make the request: %w", err)
	}
	return b.send(request)
}

// health says whether the server answers. It is an error when another program answers, or the server does not take this user's token.
func (b *hostBrowser) health(ctx context.Context) (up bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, healthLimit)
	defer cancel()
	if _, err := os.Stat(b.tokenPath); b.local && errors.Is(err, fs.ErrNotExist) {
		return false, nil // no server of this user has ever run
	}
	response, err := b.do(ctx, http.MethodGet, "/")
	if connectionRefused(err) {
		return false, nil
	}
	if err != nil {
		if _, ok := problem.As(err); ok {
			return false, err
		}
		return false, problem.Wrap(err, problem.ControlPlaneUnreachable, "see its log: "+b.logPath(),
			"the control server of the host browser does not answer at %s", b.settings.ControlURL)
	}
	defer response.Body.Close() // not read
	switch name := response.Header.Get("Server"); {
	case name != hostserver.Name:
		return false, problem.New(problem.Conflict, "stop what uses that port, or set browser.control_url to another",
			"what answers at %s is not the host browser: it answers HTTP with %d as %q", b.settings.ControlURL, response.StatusCode, printable(name))
	case response.StatusCode == http.StatusUnauthorized:
		return false, problem.New(problem.Unauthorized, "if it is another user's, set browser.control_url to a port of your own",
			"the host browser at %s does not take the token in %s", b.settings.ControlURL, b.tokenPath)
	case response.StatusCode != http.StatusOK:
		return false, problem.New(problem.ControlPlaneUnreachable, "see its log: "+b.logPath(),
			"the host browser at %s answers its health check with %s", b.settings.ControlURL, printable(response.Status))
	}
	return true, nil
}

// status asks the server, or tells what is known while none runs.
func (b *hostBrowser) status(ctx context.Context) (s host.Status, err error) {
	up, err := b.health(ctx)
	if err != nil {
		return s, err
	}
	if !up {
		return host.Offline(b.settings, b.env, b.dir), nil
	}
	err = b.call(ctx, http.MethodGet, "/", &s)
	return s, err
}

// call sends a request without a body, and decodes the answer.
func (b *hostBrowser) call(ctx context.Context, method, path string, into any) error {
	response, err := b.do(ctx, method, path)
	if err != nil {
		return b.unreachable(err)
	}
	defer response.Body.Close() // read to its end, or given up
	data, err := io.ReadAll(io.LimitReader(response.Body, maxReply))
	if err != nil {
		return fmt.Errorf("read the answer: %w", err)
	}
	if response.StatusCode/100 != 2 {
		if p, ok := control.ReadProblem(data); ok {
			return p
		}
		return fmt.Errorf("the host browser answers %s", printable(response.Status))
	}
	if err := json.Unmarshal(data, into); err != nil {
		return fmt.Errorf("read the answer: %w", err)
	}
	return nil
}

// drive runs an operation in the host browser.
func (b *hostBrowser) drive(ctx context.Context, op browser.Operation) (any, error) {
	if err := b.ready(ctx); err != nil {
		return nil, err
	}
	request, err := control.Request(ctx, b.control, op)
	if err != nil {
		return nil, err
	}
	response, err := b.send(request)
	if err != nil {
		return nil, b.unreachable(err)
	}
	result, err := control.Read(response, op)
	if p, ok := problem.As(err); ok && strings.HasPrefix(p.Code, "ACT_") {
		lower := *p
		lower.Code = strings.ToLower(p.Code)
		return nil, &lower
	}
	return result, err
}

func (b *hostBrowser) unreachable(err error) error {
	if _, ok := problem.As(err); ok || errors.Is(err, context.Canceled) {
		return err
	}
	return problem.Wrap(err, problem.ControlPlaneUnreachable, "see its log: "+b.logPath(),
		"the control server of the host browser at %s went away", b.settings.ControlURL)
}

// ready makes sure that a server answers, and starts one on this machine when that is allowed.
func (b *hostBrowser) ready(ctx context.Context) error {
	if !b.settings.Enabled {
		return problem.New(problem.BrowserDisabled, "set browser.enabled to true in the configuration", "Browser disabled in settings")
	}
	up, err := b.health(ctx)
	if up || err != nil {
		return err
	}
	switch {
	case !b.local:
		return problem.New(problem.ControlPlaneUnreachable, "start it on that machine: clawjail browser serve",
			"the control server of the host browser does not answer at %s", b.settings.ControlURL)
	case b.settings.AttachOnly:
		return problem.New(problem.BrowserNotRunning, "start it yourself: clawjail browser serve --start",
			"the control server of the host browser does not run, and browser.attach_only is set")
	}
	if err := host.RefuseRoot(b.env); err != nil {
		return err
	}
	return b.startServer(ctx)
}

func (b *hostBrowser) logPath() string { return filepath.Join(b.dir, "serve.log") }

// startServer starts a server in the background, and waits until it answers. Concurrent commands start only one server.
func (b *hostBrowser) startServer(ctx context.Context) error {
	caller := ctx
	ctx, cancel := context.WithTimeout(ctx, serverLimit)
	defer cancel()
	unlock, err := host.StartLock(ctx, b.dir)
	if err != nil {
		return err
	}
	defer unlock()
	if up, err := b.health(ctx); up || err != nil {
		return err // somebody else was quicker
	}
	log, offset, err := b.openLog()
	if err != nil {
		return err
	}
	defer log.Close() // the server has its own
	executable, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	args := []string{"browser", "serve", "--background"}
	if b.configFile != "" {
		path, err := filepath.Abs(b.configFile)
		if err != nil {
			return fmt.Errorf("find the configuration: %w", err)
		}
		args = append(args, "--config", path)
	}
	server := exec.Command(executable, args...)
	server.Stdout, server.Stderr, server.Dir = log, log, b.dir
	// In a session of its own, it stays when the terminal of this command goes.
	server.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := server.Start(); err != nil {
		return fmt.Errorf("start the server of the host browser: %w", err)
	}
	exited := make(chan struct{})
	// Reap the server if it exits while we wait for it.
	go func() {
		_ = server.Wait() // its log says why
		close(exited)
	}()
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		select {
		case <-exited:
			return problem.New(problem.ControlPlaneUnreachable, "run it to see more: clawjail browser serve",
				"the server of the host browser ended at once; it wrote:\n%s", b.startOutput(offset))
		case <-ctx.Done():
			if caller.Err() != nil {
				return caller.Err()
			}
			return problem.New(problem.ControlPlaneUnreachable, "it runs on, and may answer later; see its log: "+b.logPath(),
				"the server of the host browser does not answer at %s within %s", b.settings.ControlURL, serverLimit)
		case <-tick.C:
		}
		if up, err := b.health(ctx); up || err != nil {
			b.started = up
			return err
		}
	}
}

// openLog opens the log of servers in the background, and says at which offset the output of the next one begins.
func (b *hostBrowser) openLog() (*os.File, int64, error) {
	mode := os.O_CREATE | os.O_WRONLY | os.O_APPEND
	info, err := os.Stat(b.logPath())
	if err == nil && info.Size() > maxBrowserLog {
		mode |= os.O_TRUNC
	}
	f, err := os.OpenFile(b.logPath(), mode, 0o600)
	if err != nil {
		return nil, 0, fmt.Errorf("open the log of the host browser: %w", err)
	}
	info, err = f.Stat()
	if err != nil {
		return nil, 0, errors.Join(fmt.Errorf("look at the log of the host browser: %w", err), f.Close())
	}
	return f, info.Size(), nil
}

// startOutput is the end of what a server wrote to its log from offset on.
func (b *hostBrowser) startOutput(offset int64) string {
	f, err := os.Open(b.logPath())
	if err != nil {
		return "(the log cannot be read)"
	}
	defer f.Close() // only read from
	const limit = 4 << 10
	end, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return "(the log cannot be read)"
	}
	data, err := io.ReadAll(io.NewSectionReader(f, max(offset, end-limit), limit))
	if err != nil {
		return "(the log cannot be read)"
	}
	var out []string
	for line := range strings.SplitSeq(strings.TrimSpace(string(data)), "\n") {
		out = append(out, printable(line))
	}
	return strings.Join(out, "\n")
}
