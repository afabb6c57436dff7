package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/clawjail/clawjail/internal/base/pace"
	"github.com/clawjail/clawjail/internal/base/texts"
	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/health"
	"github.com/clawjail/clawjail/internal/hostd"
	"github.com/clawjail/clawjail/internal/op"
	"github.com/clawjail/clawjail/internal/peer"
	"github.com/clawjail/clawjail/internal/problem"
)

const (
	// statusLimit bounds the question to the control plane, and localLimit what is looked at after it: both together end within
	// some two seconds on an ordinary machine.
	statusLimit, localLimit = 1200 * time.Millisecond, 800 * time.Millisecond
	// statusWidth and statusAttention bound what is on the screen.
	statusWidth, statusAttention, quotasListed, nodesListed = 100, 6, 3, 6
)

func newStatusCommand(p *program) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show the state of everything on one screen",
		Long: "Says what runs, how much of it there is, and what waits for a person, worst first. It changes nothing and ends within two seconds, or as much later as the machine is slower than usual. Where the " +
			"control plane does not answer it says what of clawjail runs on this machine.\n\n" +
			"It ends with 0 while clawjail works, also when something waits for you, such as a request for access, and with 1 when something has failed " +
			"or does not run.",
		Example: "  clawjail status\n  clawjail status --json",
		Args:    arguments(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := p.status(cmd.Context())
			if err != nil {
				return err
			}
			if asJSON {
				err = writeJSON(cmd.OutOrStdout(), s)
			} else {
				err = writeStatus(cmd.OutOrStdout(), s, p.now())
			}
			if err == nil && s.Level == health.Failed {
				err = ExitStatus(exitFailure) // what has failed is said above
			}
			return err
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// status asks the control plane, and looks at this machine where that does not answer.
func (p *program) status(ctx context.Context) (health.Status, error) {
	c, err := p.controlConfig()
	if err != nil {
		return health.Status{}, err
	}
	at, err := p.controlURL(c)
	if err != nil {
		return health.Status{}, err
	}
	because := error(nil)
	api, err := p.client()
	if err == nil {
		defer api.CloseIdle()
		var s health.Status
		if s, err = soon(ctx, statusLimit, p.pace, api.Status); err == nil {
			return s, nil
		}
	}
	switch code := problem.CodeOf(err); {
	case ctx.Err() != nil:
		return health.Status{}, ctx.Err()
	case code == problem.ControlPlaneUnreachable, code == problem.Timeout: // no control plane answers
	case code == problem.Unauthorized && api == nil: // there may be somebody, and the caller has no key
		because = err
	default:
		return health.Status{}, err // somebody answered
	}
	return soon(ctx, localLimit, p.pace, func(ctx context.Context) (health.Status, error) {
		return health.Local(ctx, p.localOptions(c, at.String(), because)), nil
	})
}

// pace measures how slow this machine is now.
func (p *program) pace(ctx context.Context) pace.Pace { return pace.Measure(ctx, p.now) }

// soon asks within a limit of time of an ordinary machine. The code is timeout when there is no answer.
func soon(ctx context.Context, limit time.Duration, measure func(context.Context) pace.Pace, ask func(context.Context) (health.Status, error)) (health.Status, error) {
	asking, cancel := pace.Within(ctx, limit, measure, func(limit time.Duration) error {
		return problem.New(problem.Timeout, "run `clawjail doctor`", "there is no answer within %s", limit)
	})
	defer cancel()
	s, err := ask(asking)
	if err != nil && asking.Err() != nil && ctx.Err() == nil {
		err = context.Cause(asking)
	}
	return s, err
}

func (p *program) localOptions(c config.Config, at string, because error) health.LocalOptions {
	return health.LocalOptions{Config: c, Because: because, Host: hostd.NewClient(hostd.SocketPath(c), nil), Version: p.version, ControlURL: at,
		Systemd: "/run/systemd/system", Now: p.now,
		Command: func(ctx context.Context, name string, args ...string) (string, error) {
			out, err := exec.CommandContext(ctx, name, args...).Output()
			return string(out), err
		}}
}

// writeStatus is one screen for people.
func writeStatus(w io.Writer, s health.Status, now time.Time) error {
	var pairs [][2]string
	line := func(name string, parts ...string) {
		parts = slices.DeleteFunc(parts, func(p string) bool { return p == "" })
		if len(parts) > 0 {
			pairs = append(pairs, [2]string{name, unbroken(strings.Join(parts, ", "), statusWidth-16)})
		}
	}
	state := map[health.Level]string{health.Fine: "all is well", health.Notice: "works; something waits for you", health.Failed: "something has failed"}[s.Level]
	line("clawjail", s.Version, state)
	switch {
	case s.ControlPlane && s.Node == "" && s.API != "": // not to the caller, who has no key
		line("control plane", "answers at "+s.API)
	case s.ControlPlane && s.API != "":
		line("control plane", "answers at "+s.API, "node "+s.Node, "up "+age(now.Sub(s.Since)))
	case s.ControlPlane:
		line("control plane", "answers")
	default:
		line("control plane", "does not answer at "+s.API)
	}
	statusNodes(s.Nodes, line)
	statusMachine(s, now, line)
	if v := s.Sessions; v != nil {
		maximum := ""
		if v.Max > 0 {
			maximum = fmt.Sprintf(" of %d", v.Max)
		}
		warm := ""
		if v.WarmSize > 0 {
			warm = fmt.Sprintf("%d of %d browsers ready", v.WarmOpen, v.WarmSize)
		}
		line("sessions", fmt.Sprintf("%d open%s", v.Open, maximum), counts(v.States), warm)
	}
	var shares []string
	for _, u := range s.Quotas[:min(len(s.Quotas), quotasListed)] {
		shares = append(shares, fmt.Sprintf("%s %s of %s %s", u.Tenant, legible(op.Share(u, u.Held), time.Time{}), legible(op.Share(u, u.Max), time.Time{}), u.Kind))
	}
	line("quotas", append(shares, some(len(s.Quotas)-len(shares), "more"))...)
	if v := s.Agents; v != nil {
		line("agents", fmt.Sprint(v.All), counts(v.States))
	}
	if v := s.Accounts; v != nil {
		line("accounts", fmt.Sprint(v.Sets), some(v.NeedsLogin, "need a login"), some(v.Expiring, "expire soon"))
	}
	if s.Waiting != nil {
		line("requests", cmp.Or(some(*s.Waiting, "wait for an answer"), "none wait"))
	}
	if v := s.Gateway; v != nil {
		line("gateway", "listens on "+v.Listen, fmt.Sprintf("%d requests", v.Requests), fmt.Sprintf("%d refused", v.Refusals))
	}
	if v := s.Audit; v != nil {
		noted := "no checkpoint yet"
		if !v.Checkpoint.IsZero() {
			noted = "checkpoint " + age(now.Sub(v.Checkpoint)) + " ago"
		}
		line("audit", fmt.Sprintf("%d rows", v.Rows), noted, some(int(v.Uncovered), "not covered yet"), some(int(v.Spilled), "beside the database"))
	}
	if v := s.Database; v != nil {
		bytes := ""
		if v.Bytes > 0 {
			bytes = size(v.Bytes)
		}
		answers := "does not answer"
		if v.Answers {
			answers = "answers"
		}
		line("database", v.Kind, answers, bytes)
	}
	if v := s.TLS; v != nil {
		line("certificate", "ends "+v.Expires.UTC().Format(time.DateOnly))
	}
	if err := fields(w, pairs); err != nil {
		return err
	}
	return statusNeeds(w, s.Attention, now)
}

// statusNodes says how several control planes are doing; those that are lost are few, or among what needs somebody.
func statusNodes(nodes []peer.Node, line func(name string, parts ...string)) {
	if len(nodes) < 2 {
		return
	}
	parts, shown := []string{fmt.Sprintf("%d control planes", len(nodes))}, nodes[:min(len(nodes), nodesListed)]
	for _, n := range shown {
		parts = append(parts, n.Name+" "+string(n.State))
	}
	line("nodes", append(parts, some(len(nodes)-len(shown), "more"))...)
}

func statusMachine(s health.Status, now time.Time, line func(name string, parts ...string)) {
	for _, u := range s.Units {
		enabled := "does not start with the machine"
		if u.Enabled {
			enabled = "starts with the machine"
		}
		if u.State == "not installed" {
			enabled = ""
		}
		line(strings.TrimSuffix(u.Name, ".service"), u.State, enabled)
	}
	m := s.Machine
	if m == nil {
		return
	}
	if m.Reachable {
		line("host daemon", "answers", m.HostVersion, "installation "+m.Installation, "up "+age(now.Sub(m.HostSince)), fmt.Sprintf("%d jails", m.Jails))
	} else {
		line("host daemon", "does not answer")
	}
	line("machine", fmt.Sprintf("load %.2f on %d cores", m.Load, m.Cores))
	if m.MemoryTotal > 0 {
		line("memory", fmt.Sprintf("%s of %s free", size(m.MemoryFree), size(m.MemoryTotal)))
	}
	if m.DiskTotal > 0 {
		line("disk", fmt.Sprintf("%s of %s free", size(m.DiskFree), size(m.DiskTotal)))
	}
	var templates []string
	for _, t := range m.Templates {
		text := t.Name
		switch {
		case t.Problem != "":
			text += " (cannot be used)"
		case !t.BuiltAt.IsZero():
			text += " (" + age(now.Sub(t.BuiltAt)) + " old)"
		}
		templates = append(templates, text)
	}
	line("templates", cmp.Or(strings.Join(templates, ", "), "none"))
	line("stray things", some(len(m.Orphans), "on this machine"))
}

// statusNeeds is what needs somebody, in at most three lines each.
func statusNeeds(w io.Writer, all []health.Attention, now time.Time) error {
	var b strings.Builder
	for n, a := range all {
		if n == statusAttention && len(all) > statusAttention {
			fmt.Fprintf(&b, "\nand %d more: clawjail status --json\n", len(all)-n)
			break
		}
		if n == 0 {
			b.WriteString("\n")
		}
		mark := "waits:  "
		if a.Level == health.Failed {
			mark = "failed: "
		}
		more := ""
		if a.More > 0 {
			more = fmt.Sprintf(" (and %d more of this kind)", a.More)
		}
		when := ""
		switch d := a.At.Sub(now); {
		case a.At.IsZero():
		case d > 0:
			when = " (in " + age(d) + ")"
		default:
			when = " (" + age(-d) + " ago)"
		}
		fmt.Fprintf(&b, "%s%s%s%s\n", mark, unbroken(a.Sentence, statusWidth-len(mark)-len(more)-len(when)), when, more)
		do := a.Hint
		if a.Command != "" {
			do = strings.TrimSpace(do + " " + a.Command)
		}
		if do != "" {
			fmt.Fprintf(&b, "        %s\n", unbroken(do, statusWidth-8))
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// counts are numbers by name.
func counts(of map[string]int) string {
	var out []string
	for _, name := range slices.Sorted(maps.Keys(of)) {
		if of[name] > 0 {
			out = append(out, fmt.Sprintf("%d %s", of[name], name))
		}
	}
	return strings.Join(out, ", ")
}

// some is nothing for none.
func some(n int, what string) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf("%d %s", n, what)
}

// unbroken is a text in one line, without what moves a terminal's cursor, and cut to a width.
func unbroken(text string, maximum int) string {
	text = strings.Join(strings.FieldsFunc(text, func(r rune) bool { return r == ' ' || r < ' ' || r == 0x7f || r >= 0x80 && r < 0xa0 }), " ")
	return texts.Fit(text, maximum)
}
