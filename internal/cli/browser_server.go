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
	// healthLimit bounds the question whether a server is there: it answers without asking the browser.
	healthLimit = 3 * time.Second
	// serverLimit bounds the start of a server, without a browser.
	serverLimit = 15 * time.Second
	// lookEvery is how often a server that starts is looked for.
	lookEvery = 25 * time.Millisecond
	// maxBrowserLog bounds the log of servers in the background, in bytes. It is begun anew beyond that.
	maxBrowserLog = 1 << 20
	// maxReply bounds an answer that is no operation's.
	maxReply = 1 << 20
)

// hostBrowser is the host browser, seen from a command.
type hostBrowser struct {
	settings  config.HostBrowser
	env       config.Environment
	file      string // the configuration
	base      *url.URL
	local     bool
	dir       string
	tokenPath string
	started   bool // this command started the server
}

// send sends a request with the token. The server is this machine's, or named by the user: no proxy, and no other place
// that it points to, gets the token.
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

// dial connects to the server. On this machine anybody may listen on the port before it does: whoever is not this user does
// not get to see the token, which is good for longer than that. Root may read it in any case.
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

// health says whether the server answers. It is an error when somebody else does, or it does not know this user.
func (b *hostBrowser) health(ctx context.Context) (up bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, healthLimit)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, b.base.JoinPath("/").String(), nil)
	if err != nil {
		return false, fmt.Errorf("make the request: %w", err)
	}
	if _, err := os.Stat(b.tokenPath); b.local && errors.Is(err, fs.ErrNotExist) {
		return false, nil // no server of this user has ever run
	}
	response, err := b.send(request)
	if refused(err) {
		return false, nil
	}
	if err != nil {
		if _, ok := problem.As(err); ok {
			return false, err
		}
		return false, problem.Wrap(err, problem.ControlPlaneUnreachable, "see its log: "+b.logPath(),
			"the control server of the host browser does not answer at %s", b.settings.ControlURL)
	}
	defer response.Body.Close() // of no interest
	switch name := response.Header.Get("Server"); {
	case name != hostserver.Name:
		return false, problem.New(problem.Conflict, "stop what uses that port, or set browser.control_url to another",
			"what answers at %s is not the host browser: it answers HTTP with %d as %q", b.settings.ControlURL, response.StatusCode, printable(name))
	case response.StatusCode == http.StatusUnauthorized:
		return false, problem.New(problem.Unauthorized, "is it another user's? Set browser.control_url to a port of your own",
			"the host browser at %s does not take the token in %s", b.settings.ControlURL, b.tokenPath)
	case response.StatusCode != http.StatusOK:
		return false, problem.New(problem.ControlPlaneUnreachable, "see its log: "+b.logPath(),
			"the host browser at %s answers its health check with %s", b.settings.ControlURL, printable(response.Status))
	}
	return true, nil
}

// status asks the server, or says what is known without one.
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
	u, err := b.base.Parse(path)
	if err != nil {
		return fmt.Errorf("make the request: %w", err)
	}
	request, err := http.NewRequestWithContext(ctx, method, u.String(), nil)
	if err != nil {
		return fmt.Errorf("make the request: %w", err)
	}
	response, err := b.send(request)
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
	request, err := control.Request(ctx, b.base, op)
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

// startServer starts a server in the background, and waits until it answers. Two commands start one.
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
	log, begin, err := b.openLog()
	if err != nil {
		return err
	}
	defer log.Close() // the server has its own
	executable, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	args := []string{"browser", "serve", "--background"}
	if b.file != "" {
		path, err := filepath.Abs(b.file)
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
	// It outlives this command; while it does not, its end is news.
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
				"the server of the host browser ended at once; it wrote:\n%s", b.written(begin))
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

// openLog opens the log of servers in the background, and says where this one's part begins.
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

// written is the end of what a server wrote to its log.
func (b *hostBrowser) written(begin int64) string {
	f, err := os.Open(b.logPath())
	if err != nil {
		return "(the log cannot be read)"
	}
	defer f.Close() // only read from
	const most = 4 << 10
	end, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return "(the log cannot be read)"
	}
	data, err := io.ReadAll(io.NewSectionReader(f, max(begin, end-most), most))
	if err != nil {
		return "(the log cannot be read)"
	}
	var out []string
	for line := range strings.SplitSeq(strings.TrimSpace(string(data)), "\n") {
		out = append(out, printable(line))
	}
	return strings.Join(out, "\n")
}
