//go:build linux

package testkit

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	agents "github.com/clawjail/clawjail/internal/agent"
	"github.com/clawjail/clawjail/internal/instance"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/op"
	"github.com/clawjail/clawjail/internal/testenv"
)

// Deployment is an instance with agents, and the folder of their file.
type Deployment struct {
	*Installation
	Dir string
}

// NewEstate makes an instance whose agents may have folders below dir/workspaces. DIR in the settings becomes that dir.
func NewEstate(t *testing.T, more string) *Deployment {
	t.Helper()
	testenv.Root(t)
	templates := filepath.Dir(testenv.TemplateNamed(t, "clawbot"))
	dir, err := os.MkdirTemp("/var/lib/clawjail", "test-estate-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { RemoveTrees(t, dir) })
	if err := errors.Join(os.Chmod(dir, 0o755), os.Mkdir(filepath.Join(dir, "workspaces"), 0o755)); err != nil {
		t.Fatal(err)
	}
	settings := NoPool + "workspace_roots: [" + filepath.Join(dir, "workspaces") + "]\n" + strings.ReplaceAll(more, "DIR", dir)
	b := PrepareWith(t, instance.Options{Settings: settings}, func(o *instance.Options, _ string) { o.Templates = templates })
	b.Up()
	return &Deployment{b, dir}
}

// File writes clawbots.yml and returns its path.
func (e *Deployment) File(text string) string {
	e.T.Helper()
	path := filepath.Join(e.Dir, "clawbots.yml")
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		e.T.Fatal(err)
	}
	return path
}

// Sync makes the machine match a file, and returns the plan.
func (e *Deployment) Sync(text string, flags ...string) agents.Plan {
	e.T.Helper()
	out, err := e.Run(e.T.Context(), append([]string{"agent", "sync", "-f", e.File(text), "--json", "--yes"}, flags...)...)
	if err != nil {
		e.T.Fatalf("%v\n%.4000s", err, e.Log())
	}
	return PlanOf(e.T, out)
}

// PlanOf reads a plan as the command prints it.
func PlanOf(t *testing.T, out string) (p agents.Plan) {
	t.Helper()
	if err := json.Unmarshal([]byte(out), &p); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return p
}

// Verbs is a plan in short.
func Verbs(p agents.Plan) string {
	var out []string
	for _, s := range p.Steps {
		out = append(out, string(s.Verb)+" "+s.Name)
	}
	return strings.Join(out, ", ")
}

// Show is what the command says of an agent.
func (e *Deployment) Show(name string) (s op.AgentDetails) {
	e.T.Helper()
	out, err := e.Run(e.T.Context(), "agent", "show", name, "--json")
	if err != nil {
		e.T.Fatal(err)
	}
	if err := json.Unmarshal([]byte(out), &s); err != nil {
		e.T.Fatalf("%v\n%s", err, out)
	}
	return s
}

// Running waits until an agent's jail runs, and returns it.
func (e *Deployment) Running(name string) op.AgentDetails {
	e.T.Helper()
	var s op.AgentDetails
	testenv.Eventually(e.T, 30*time.Second, func() bool {
		s = e.Show(name)
		return s.Jail != nil && s.Jail.Phase == jail.PhaseRunning
	}, "%s does not come to run", name)
	return s
}

// In runs a shell command in an agent's jail.
func (e *Deployment) In(name, command string) (string, error) {
	e.T.Helper()
	return e.Run(e.T.Context(), "agent", "exec", name, "--", "/bin/sh", "-c", command)
}

// MustIn is [Deployment.In] for a command that must succeed.
func (e *Deployment) MustIn(name, command string) string {
	e.T.Helper()
	out, err := e.In(name, command)
	if err != nil {
		e.T.Fatalf("in %s: %s: %v\n%s", name, command, err, out)
	}
	return out
}

// Family are agents without a workspace, with one of their own, and with one that two share.
const Family = `
clawbots:
  - name: alone
  - name: own
    workspace: ./workspaces/own
  - name: first
    workspace: ./workspaces/team
  - name: second
    workspace: ./workspaces/team
    workspace_mode: ro
`

// Names are those of all agents.
func (e *Deployment) Names() (out []string) {
	e.T.Helper()
	text, err := e.Run(e.T.Context(), "agent", "ls", "--json")
	if err != nil {
		e.T.Fatal(err)
	}
	var list []struct{ Name string }
	if err := json.Unmarshal([]byte(text), &list); err != nil {
		e.T.Fatalf("%v\n%s", err, text)
	}
	for _, a := range list {
		out = append(out, a.Name)
	}
	slices.Sort(out)
	return out
}
