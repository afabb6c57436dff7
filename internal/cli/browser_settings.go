package cli

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/clawjail/clawjail/internal/api/hostserver"
	"github.com/clawjail/clawjail/internal/browser"
	"github.com/clawjail/clawjail/internal/browser/host"
	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/console"
	"github.com/clawjail/clawjail/internal/problem"
)

const (
	// settingsIdle is how long the page of the settings is served without a request.
	settingsIdle = 15 * time.Minute
	// settingsAsked bounds a request, with a restart of the browser, and settingsEnd what is under way at the end.
	settingsAsked = time.Minute
	settingsEnd   = 5 * time.Second
)

func newBrowserSettings(p *program) *cobra.Command {
	var open bool
	cmd := &cobra.Command{
		Use:   "settings",
		Short: "Change the settings of the host browser on a page",
		Long: "Opens a page in your own browser that shows every setting of the host browser, and writes those that you change into the " +
			"configuration file. The page asks for the code that this command prints: neither an agent nor another user of this machine has it. " +
			"It is served on loopback while the command runs.",
		Example: "  clawjail browser settings\n  clawjail browser settings --open=false",
		Args:    arguments(0, 0),
		RunE:    func(cmd *cobra.Command, _ []string) error { return p.serveBrowserSettings(cmd, open) },
	}
	cmd.Flags().BoolVar(&open, "open", true, "start your browser with the page, where there is a display")
	return cmd
}

func (p *program) serveBrowserSettings(cmd *cobra.Command, open bool) error {
	e := config.Here()
	if err := host.RefuseRoot(e); err != nil {
		return err
	}
	file, err := ownSettings(e, p.configFile())
	if err != nil {
		return err
	}
	s := &browserSettings{env: e, file: file}
	if s.running, err = s.hostBrowser(); err != nil {
		return err
	}
	listener, err := hostserver.ListenForUser(cmd.Context(), os.Geteuid())
	if err != nil {
		return err
	}
	origin := "http://" + listener.Addr().String()
	fmt.Fprintf(cmd.OutOrStdout(), "open %s/ in your own browser\n", origin)
	// The page ends with the command, when the person is done, or when nobody has used it for long.
	ctx, end := context.WithCancelCause(cmd.Context())
	defer end(nil)
	errDone := errors.New("done")
	idle := time.AfterFunc(settingsIdle, func() { end(errDone) })
	defer idle.Stop()
	page, err := console.NewHostSettings(console.HostSettingsOptions{
		Browser: s, Origin: origin, File: file, Log: slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), &slog.HandlerOptions{Level: slog.LevelWarn})),
		Code: func(code string) { fmt.Fprintf(cmd.OutOrStdout(), "code %s, good once\n", code) },
		Used: func() { idle.Reset(settingsIdle) },
		End: func(why error) {
			if why == nil {
				why = errDone
			}
			end(why)
		},
	})
	if err != nil {
		return errors.Join(err, listener.Close())
	}
	if open {
		s.show(cmd.ErrOrStderr(), origin+"/")
	}
	server := &http.Server{ReadHeaderTimeout: settingsEnd, ReadTimeout: settingsEnd, WriteTimeout: settingsAsked, MaxHeaderBytes: 32 << 10,
		ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelDebug), Handler: page}
	var watching sync.WaitGroup
	defer func() {
		end(nil)
		watching.Wait()
	}()
	watching.Go(func() { page.Watch(ctx) })
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	select {
	case err := <-ended:
		return fmt.Errorf("serve the settings: %w", err)
	case <-ctx.Done():
	}
	ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), settingsEnd)
	defer cancel()
	err = server.Shutdown(ending)
	<-ended // http.ErrServerClosed
	if why := context.Cause(ctx); !errors.Is(why, errDone) && !errors.Is(why, context.Canceled) {
		err = errors.Join(why, err)
	}
	return err
}

// ownSettings is the file that a user's settings belong in. The machine's own file is not the user's to change, and one of
// theirs would hide it from their other commands, so that is theirs to decide.
func ownSettings(e config.Environment, file string) (string, error) {
	if file == config.SystemFile {
		return "", problem.New(problem.Forbidden, "make one of your own, which all of your commands read instead: ~/.config/clawjail/clawjail.yml",
			"your configuration is the machine's, %s, which only root changes", file)
	}
	if file == "" {
		token, err := host.TokenPath(e)
		if err != nil {
			return "", err
		}
		file = filepath.Join(filepath.Dir(token), "clawjail.yml")
	}
	file, err := filepath.Abs(file)
	if err != nil {
		return "", fmt.Errorf("find the configuration: %w", err)
	}
	return file, nil
}

// browserSettings are the settings of this user, for the page.
type browserSettings struct {
	env     config.Environment
	file    string
	mu      sync.Mutex // one change or restart at a time
	running *hostBrowser
}

// read is the file; nothing where there is none yet.
func (s *browserSettings) read() (data []byte, c config.Config, version string, err error) {
	data, err = config.Contents(s.file)
	if _, missing := os.Lstat(s.file); errors.Is(missing, os.ErrNotExist) {
		data, err = nil, nil
	}
	if err == nil {
		c, err = s.env.Parse(s.file, data)
	}
	sum := sha256.Sum256(data)
	return data, c, hex.EncodeToString(sum[:]), err
}

// hostBrowser is the browser with the settings that the file has now.
func (s *browserSettings) hostBrowser() (*hostBrowser, error) {
	_, c, _, err := s.read()
	if err != nil {
		return nil, err
	}
	file := s.file
	if _, err := os.Lstat(file); err != nil {
		file = "" // commands have the defaults
	}
	return newHostBrowser(c.HostBrowser, s.env, file)
}

// Settings implements console.HostBrowser.
func (s *browserSettings) Settings() (config.HostBrowser, string, error) {
	_, c, version, err := s.read()
	return c.HostBrowser, version, err
}

// Change implements console.HostBrowser.
func (s *browserSettings) Change(version string, to config.HostBrowser) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	data, _, now, err := s.read()
	if err != nil {
		return err
	}
	if now != version {
		return problem.New(problem.Conflict, "look at what it says now, and change it again", "the configuration was changed by somebody else meanwhile")
	}
	next, err := s.env.EditHostBrowser(s.file, data, to)
	if err != nil {
		return err
	}
	if b, err := newHostBrowser(to, s.env, s.file); err != nil {
		return err
	} else if err := b.encrypted(); err != nil {
		many := problem.ValidationError{Code: problem.BadConfig}
		if p, ok := problem.As(err); ok {
			many.AddFlaw(problem.Flaw{Field: "browser.control_url", Message: p.Message, Hint: p.Hint})
		}
		return many.Err()
	}
	if string(next) == string(data) {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(s.file), 0o700); err != nil {
		return fmt.Errorf("make the folder of the configuration: %w", err)
	}
	at, mode := s.file, os.FileMode(0o600)
	if data != nil {
		// A link stays a link: many keep such files elsewhere.
		if at, err = filepath.EvalSymlinks(s.file); err != nil {
			return fmt.Errorf("find the configuration: %w", err)
		}
		info, err := os.Stat(at)
		if err != nil {
			return fmt.Errorf("look at the configuration: %w", err)
		}
		if !info.Mode().IsRegular() { // such as /dev/null, which a file must not replace
			return problem.New(problem.Conflict, "name a file in CLAWJAIL_CONFIG", "%s is no file that settings can be written to", s.file)
		}
		mode = info.Mode().Perm()
	}
	return writeWhole(at, mode, func(w io.Writer) error { _, err := w.Write(next); return err })
}

// Server implements console.HostBrowser.
func (s *browserSettings) Server(ctx context.Context) (console.HostServer, error) {
	s.mu.Lock()
	b := s.running
	s.mu.Unlock()
	return b.served(ctx)
}

// served is how the server is doing, when it is this machine's.
func (b *hostBrowser) served(ctx context.Context) (out console.HostServer, err error) {
	if !b.local {
		return out, nil
	}
	if out.Running, err = b.health(ctx); err != nil || !out.Running {
		return out, err
	}
	var status hostserver.Served
	err = b.call(ctx, http.MethodGet, "/", &status)
	out.Browser, out.ByHand = status.Running, !status.EndsWithBrowser
	return out, err
}

// Restart implements console.HostBrowser.
func (s *browserSettings) Restart(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, settingsAsked-settingsEnd)
	defer cancel()
	s.mu.Lock()
	defer s.mu.Unlock()
	next, err := s.hostBrowser()
	if err != nil {
		return err
	}
	was, err := s.running.served(ctx)
	if err != nil {
		return err
	}
	if was.ByHand {
		return problem.New(problem.Conflict, "end `clawjail browser serve`, and start it again", "a person has started the server of the host browser")
	}
	if was.Running {
		if err := s.running.call(ctx, http.MethodPost, "/stop", &hostserver.Stopped{}); err != nil {
			return err
		}
		if err := s.running.gone(ctx); err != nil {
			return err
		}
	}
	s.running = next
	if !was.Browser || !next.local || !next.settings.Enabled {
		return nil
	}
	if err := next.ready(ctx); err != nil {
		return err
	}
	return next.call(ctx, http.MethodPost, "/start", &hostserver.Started{})
}

// gone waits until the server has given its folder back.
func (b *hostBrowser) gone(ctx context.Context) error {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		free, err := host.Unserved(b.dir)
		if free || err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return problem.New(problem.Timeout, "see its log: "+b.logPath(), "the server of the host browser does not end")
		case <-tick.C:
		}
	}
}

// Shows implements console.HostBrowser.
func (s *browserSettings) Shows(ctx context.Context, origin string) (bool, error) {
	s.mu.Lock()
	b := s.running
	s.mu.Unlock()
	is, err := b.served(ctx)
	switch problem.CodeOf(err) {
	case problem.Conflict, problem.Unauthorized: // what is there is somebody else's, and another address may be what is to be set
		return false, nil
	}
	if err != nil || !is.Browser {
		return false, err
	}
	var open browser.TabsResult
	if err := b.call(ctx, http.MethodGet, "/tabs", &open); err != nil {
		return false, err
	}
	for _, tab := range open.Tabs {
		if u, err := url.Parse(tab.URL); err == nil && u.Scheme+"://"+u.Host == origin {
			return true, nil
		}
	}
	return false, nil
}

// show starts the person's own browser with an address, in which there is nothing that others may not see. The process that is started
// may be that browser itself: it is in a session of its own, and does not end with this command.
func (s *browserSettings) show(say io.Writer, address string) {
	opener := "xdg-open"
	if runtime.GOOS == "darwin" {
		opener = "open"
	} else if s.env.Getenv("DISPLAY") == "" && s.env.Getenv("WAYLAND_DISPLAY") == "" {
		return
	}
	cmd := exec.Command(opener, address)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		fmt.Fprintf(say, "clawjail: your browser could not be started: %s\n", printable(strings.TrimSpace(err.Error())))
		return
	}
	go func() { _ = cmd.Wait() }() // it outlives this command
}
