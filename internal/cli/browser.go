package cli

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/clawjail/clawjail/internal/api/hostserver"
	"github.com/clawjail/clawjail/internal/browser/host"
	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/problem"
)

// newBrowserCommand is `clawjail browser`.
func newBrowserCommand(p *program) *cobra.Command {
	cmd := group(&cobra.Command{
		Use:   "browser",
		Short: "Use the host browser: a separate browser on this desktop, for agents",
		Long: "The host browser is a separate browser on your desktop, for agents: it has a profile of its own, " + host.ProfileName + ", in a colour that " +
			"you see, and a folder of its own. Its pages are driven by these commands, and by programs at the control URL.\n\n" +
			"Commands start its server where that is missing. Settings are below `browser` in the configuration.",
		Example: "  clawjail browser open https://example.com/\n  clawjail browser snapshot\n  clawjail browser act click e12",
	})
	cmd.AddCommand(newBrowserServe(p), newBrowserStatus(p), newBrowserStart(p), newBrowserStop(p), newBrowserDoctor(p), newBrowserCDP(p), newBrowserFiles(p),
		newBrowserSettings(p))
	cmd.AddCommand(newBrowserOperations(p)...)
	return cmd
}

func newBrowserServe(p *program) *cobra.Command {
	var start, background bool
	var headless string
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Serve the host browser, until it is interrupted",
		Long: "Serves the control URL and, at the next port, the DevTools endpoint. The browser is started when it is needed, or at " +
			"once with --start, and ends with the server. Other commands start a server in the background; it ends with `clawjail browser stop`.",
		Example: "  clawjail browser serve --start",
		Args:    arguments(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			wish, err := headlessFlag(cmd, headless)
			if err != nil {
				return err
			}
			return p.serveBrowser(cmd, start, wish, background)
		},
	}
	cmd.Flags().BoolVar(&start, "start", false, "start the browser at once, also with attach_only")
	cmd.Flags().StringVar(&headless, "headless", "", "with --start: true for no window, false for one")
	complete(cmd, "headless", "true", "false")
	cmd.Flags().BoolVar(&background, "background", false, "end with `clawjail browser stop`")
	if err := cmd.Flags().MarkHidden("background"); err != nil {
		panic(err) // there is no such flag: a mistake in this package
	}
	return cmd
}

func (p *program) serveBrowser(cmd *cobra.Command, start bool, headless *bool, background bool) (err error) {
	b, err := p.hostBrowser()
	if err != nil {
		return err
	}
	if err := host.RefuseRoot(b.env); err != nil {
		return err
	}
	_, log, err := p.configured(cmd)
	if err != nil {
		return err
	}
	token, err := host.EnsureToken(b.tokenPath)
	if err != nil {
		return err
	}
	control, devtools, err := hostserver.Listen(cmd.Context(), b.settings)
	if err != nil {
		return err
	}
	closeAll := func() error { return errors.Join(control.Close(), devtools.Close()) }
	var remote *hostserver.Remote
	if b.settings.Remote.On() {
		if remote, err = hostserver.ListenRemote(cmd.Context(), b.settings.Remote, log); err != nil {
			return errors.Join(err, closeAll())
		}
		closeAll = func() error { return errors.Join(control.Close(), devtools.Close(), remote.Close()) }
	}
	keeper, err := host.New(host.Options{Settings: b.settings, Environment: b.env, Dir: b.dir, Log: log, Now: p.now})
	if err != nil {
		return errors.Join(err, closeAll())
	}
	defer func() { err = errors.Join(err, keeper.Close(context.WithoutCancel(cmd.Context()))) }()
	if start {
		if err := keeper.StartByHand(cmd.Context(), headless); err != nil {
			return errors.Join(err, closeAll())
		}
	}
	log.Info("the host browser is served", "url", b.settings.ControlURL, "devtools", keeper.DevtoolsAddress(), "token", b.tokenPath)
	if remote != nil {
		log.Info("other machines are served", "address", remote.At.Listen, "devtools", remote.At.Devtools(), "token", remote.At.Token)
	}
	server := hostserver.New(hostserver.Options{Keeper: keeper, Token: token, Log: log, EndWithBrowser: background, Remote: remote})
	return server.Serve(cmd.Context(), control, devtools)
}

func newBrowserStatus(p *program) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:     "status",
		Short:   "Say whether the browser is open, without starting anything",
		Example: "  clawjail browser status --json",
		Args:    arguments(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			b, err := p.hostBrowser()
			if err != nil {
				return err
			}
			status, err := b.status(cmd.Context())
			if err != nil {
				return err
			}
			if asJSON {
				return writeJSON(cmd.OutOrStdout(), status)
			}
			return showBrowser(cmd, status)
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func showBrowser(cmd *cobra.Command, s host.Status) error {
	state := "closed"
	switch {
	case !s.Enabled:
		state = "disabled in settings"
	case s.Running:
		state = "open"
	}
	pid, window := "", "yes"
	if s.PID != 0 {
		pid = strconv.Itoa(s.PID)
	}
	switch {
	case s.Headless:
		window = "no (" + s.HeadlessSource + ")"
	case s.HeadlessSource == "": // it is another machine's, and does not answer
		window = ""
	}
	profile := s.Profile
	if s.UserDataDir != "" {
		profile += " in " + s.UserDataDir
	}
	program := s.ChosenBrowser
	if program == "" {
		program = s.Detected
	}
	return fields(cmd.OutOrStdout(), [][2]string{
		{"browser", state}, {"server", map[bool]string{true: "running", false: "not running"}[s.ServerRunning]}, {"url", s.URL},
		{"devtools", s.CDPURL}, {"pid", pid}, {"version", printable(s.Version)}, {"program", program}, {"path", s.DetectedPath},
		{"problem", s.DetectError}, {"profile", profile}, {"colour", s.Color}, {"window", window},
		{"attach only", map[bool]string{true: "yes"}[s.AttachOnly]}, {"ended by itself", printable(s.Ended)},
	})
}

func newBrowserStart(p *program) *cobra.Command {
	var headless string
	var asJSON bool
	cmd := &cobra.Command{
		Use:     "start",
		Short:   "Start the browser, if it does not run",
		Example: "  clawjail browser start\n  clawjail browser start --headless=true",
		Args:    arguments(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			wish, err := headlessFlag(cmd, headless)
			if err != nil {
				return err
			}
			b, err := p.hostBrowser()
			if err != nil {
				return err
			}
			if err := b.ready(cmd.Context()); err != nil {
				return err
			}
			path := "/start"
			if wish != nil {
				path += "?headless=" + strconv.FormatBool(*wish)
			}
			var started hostserver.Started
			if err := b.call(cmd.Context(), "POST", path, &started); err != nil {
				return err
			}
			if asJSON {
				return writeJSON(cmd.OutOrStdout(), started)
			}
			if started.HeadlessSource == "linux-display-fallback" {
				fmt.Fprintln(cmd.ErrOrStderr(), "clawjail: there is no display, so the browser has no window")
			}
			return showBrowser(cmd, started.Status)
		},
	}
	cmd.Flags().StringVar(&headless, "headless", "", "true for no window, false for one; default: as the settings say")
	complete(cmd, "headless", "true", "false")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// headlessFlag is what --headless says, nil when it says nothing.
func headlessFlag(cmd *cobra.Command, text string) (*bool, error) {
	switch {
	case !cmd.Flags().Changed("headless"):
		return nil, nil
	case text == "true", text == "false":
		wish := text == "true"
		return &wish, nil
	}
	return nil, usage(cmd, `Invalid headless value. Use "true" or "false".`)
}

func newBrowserStop(p *program) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "stop",
		Short: "Close the browser, and its server where a command had started that",
		Args:  arguments(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			b, err := p.hostBrowser()
			if err != nil {
				return err
			}
			stopped := hostserver.Stopped{OK: true, Profile: host.ProfileName}
			up, err := b.health(cmd.Context())
			if err != nil {
				return err
			}
			if up {
				if err := b.call(cmd.Context(), "POST", "/stop", &stopped); err != nil {
					return err
				}
			}
			if asJSON {
				return writeJSON(cmd.OutOrStdout(), stopped)
			}
			text := "the browser was not running"
			if stopped.Stopped {
				text = "the browser is closed"
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), text)
			return err
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

func newBrowserDoctor(p *program) *cobra.Command {
	var deep, asJSON bool
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Find out what is wrong with the host browser",
		Args:  arguments(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			b, err := p.hostBrowser()
			if err != nil {
				return err
			}
			report, err := b.examine(cmd.Context(), deep)
			if err != nil {
				return err
			}
			if asJSON {
				err = writeJSON(cmd.OutOrStdout(), report)
			} else {
				rows := [][]string{{"", "CHECK", "FOUND"}}
				for _, c := range report.Checks {
					rows = append(rows, []string{c.Status, c.Label, printable(c.Summary)})
					if c.FixHint != "" && c.Status != host.Pass {
						rows = append(rows, []string{"", "", "hint: " + printable(c.FixHint)})
					}
				}
				err = table(cmd.OutOrStdout(), rows)
			}
			if err == nil && !report.OK {
				return problem.New(problem.Unsupported, "do what the hints say, then run it again", "the host browser does not work as it is")
			}
			return err
		},
	}
	cmd.Flags().BoolVar(&deep, "deep", false, "also ask the browser that runs for a snapshot")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// examine asks the server for its report, or makes one without a server.
func (b *hostBrowser) examine(ctx context.Context, deep bool) (host.Report, error) {
	up, err := b.health(ctx)
	if err == nil && up && b.settings.Enabled {
		path := "/doctor"
		if deep {
			path += "?deep=true"
		}
		var report host.Report
		err := b.call(ctx, "GET", path, &report)
		return report, err
	}
	report := host.Examine(b.settings, b.env)
	switch p, ok := problem.As(err); {
	case ok:
		report.Add("server", "the control server", host.Fail, p.Message, p.Hint)
	case err != nil:
		return report, err
	case up:
		report.Add("server", "the control server", host.Pass, "it answers at "+b.settings.ControlURL, "")
	case b.local && b.settings.AttachOnly:
		report.Add("server", "the control server", host.Warn, "nothing answers at "+b.settings.ControlURL, "start it yourself: clawjail browser serve --start")
	case b.local:
		report.Add("server", "the control server", host.Warn, "nothing answers at "+b.settings.ControlURL, "the next command starts it, or: clawjail browser serve")
	default:
		report.Add("server", "the control server", host.Fail, "nothing answers at "+b.settings.ControlURL, "start it on that machine")
	}
	return report, nil
}

func newBrowserCDP(p *program) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "cdp",
		Short: "Print where DevTools clients, such as Playwright, connect to the browser",
		Long: "Starts the browser, if it does not run, and prints the address for Playwright's connectOverCDP. It holds a ticket that is valid while the server runs; whoever has the ticket can drive " +
			"the browser.",
		Example: "  node script.js \"$(clawjail browser cdp)\"",
		Args:    arguments(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			b, err := p.hostBrowser()
			if err != nil {
				return err
			}
			if err := b.ready(cmd.Context()); err != nil {
				return err
			}
			if err := b.call(cmd.Context(), "POST", "/start", new(hostserver.Started)); err != nil {
				return err // a client that connects starts no browser
			}
			var at hostserver.Endpoint
			if err := b.call(cmd.Context(), "GET", "/cdp", &at); err != nil {
				return err
			}
			if asJSON {
				return writeJSON(cmd.OutOrStdout(), at)
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), at.WSURL)
			return err
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// hostBrowser is the host browser as these commands know it: settings and paths, and the way to its server.
func (p *program) hostBrowser() (*hostBrowser, error) {
	c, err := p.config()
	if err != nil {
		return nil, err
	}
	b, err := newHostBrowser(c.HostBrowser, config.Here(), p.configFile())
	if err != nil {
		return nil, err
	}
	return b, b.encrypted()
}

// newHostBrowser is the host browser of a user with these settings, which are of that file.
func newHostBrowser(settings config.HostBrowser, e config.Environment, file string) (b *hostBrowser, err error) {
	b = &hostBrowser{settings: settings, env: e, configFile: file, control: settings.Control()}
	_, _, b.local = settings.Local()
	if b.dir, err = host.DataDir(e); err != nil {
		return nil, err
	}
	b.tokenPath, err = host.TokenPath(e)
	return b, err
}

// encrypted says what is wrong with an address to which the token would cross a network in the clear.
func (b *hostBrowser) encrypted() error {
	if b.local || b.control.Scheme == "https" {
		return nil
	}
	return problem.New(problem.BadURL, "use https, or a tunnel to a loopback address",
		"browser.control_url is not encrypted and not on this machine: the token would cross the network in the clear")
}

// connectionRefused says that nobody listens.
func connectionRefused(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "dial" && !errors.Is(err, os.ErrDeadlineExceeded)
}
