package health

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/hostd"
	"github.com/clawjail/clawjail/internal/peer"
	"github.com/clawjail/clawjail/internal/problem"
)

func TestAMachineIsToldOfByWhatIsWrongWithIt(t *testing.T) {
	now := time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)
	const again = "sudo clawjail template build browser --replace"
	good := func() Machine {
		return Machine{Reachable: true, HostVersion: "v1", DiskTotal: 100 << 30, DiskFree: 50 << 30, Templates: []Template{
			{Name: "browser", Again: again, BuiltAt: now.Add(time.Minute - templateOld)}, {Name: "image", BuiltAt: now.Add(-2 * templateOld)}, {Name: "unknown", Again: again}}}
	}
	if got := good().attention("v1", now); len(got) != 0 {
		t.Errorf("a good machine: %+v", got)
	}
	for code, spoil := range map[string]func(*Machine){
		HostDaemonDown:  func(m *Machine) { m.Reachable = false },
		DiskLow:         func(m *Machine) { m.DiskFree = 1 << 30 },
		TemplateMissing: func(m *Machine) { m.Templates = nil },
		TemplateBroken:  func(m *Machine) { m.Templates[0].Problem = "it was changed" },
		TemplateOld:     func(m *Machine) { m.Templates[0].BuiltAt = now.Add(-templateOld) },
		VersionsDiffer:  func(m *Machine) { m.HostVersion = "v0" },
		Stray:           func(m *Machine) { m.Orphans = []string{"jail x (nobody's)"} },
	} {
		m := good()
		spoil(&m)
		if got := m.attention("v1", now); len(got) != 1 || got[0].Code != code || got[0].Sentence == "" || got[0].Hint == "" {
			t.Errorf("%s: %+v", code, got)
		} else if (code == TemplateBroken || code == TemplateOld) && got[0].Command != again {
			t.Errorf("%s: the command is %q", code, got[0].Command)
		}
	}
}

func TestWhatHasFailedIsToldFirstAndWhatIsTooMuchIsCounted(t *testing.T) {
	var all []Attention
	for range aKind + 3 {
		all = append(all, Attention{Code: AccessAsked, Level: Notice})
	}
	all = append(all, Attention{Code: DiskLow, Level: Failed})
	got := listed(all)
	if len(got) != aKind+1 || got[0].Code != DiskLow || got[aKind].More != 3 || got[aKind-1].More != 0 {
		t.Errorf("%+v", got)
	}
	if worst(got) != Failed || worst(listed(all[:1])) != Notice || worst(listed(nil)) != Fine {
		t.Error("the worst level is not that of what was found")
	}
}

func TestUnitsAreWhatSystemdSays(t *testing.T) {
	systemd := t.TempDir()
	command := func(_ context.Context, _ string, words ...string) (string, error) {
		if words[1] == HostUnit {
			return "LoadState=loaded\nActiveState=active\nUnitFileState=enabled\n", nil
		}
		return "LoadState=not-found\nActiveState=inactive\nUnitFileState=\n", nil
	}
	got := Units(t.Context(), systemd, command)
	if len(got) != 2 || got[0] != (Unit{Name: HostUnit, State: "active", Enabled: true}) || got[1] != (Unit{Name: ControlUnit, State: notInstalled}) {
		t.Errorf("%+v", got)
	}
	if start := startCommand(got, HostUnit); !strings.Contains(start, "systemctl start "+HostUnit) {
		t.Error(start)
	}
	if start := startCommand(got, ControlUnit); start != "sudo clawjail up" {
		t.Error(start)
	}
	if got := Units(t.Context(), filepath.Join(systemd, "none"), command); got != nil {
		t.Errorf("without systemd: %+v", got)
	}
	failing := func(context.Context, string, ...string) (string, error) {
		return "LoadState=loaded\nActiveState=activating\nSubState=auto-restart\nUnitFileState=enabled\n", nil
	}
	if got := Units(t.Context(), systemd, failing); len(got) != 2 || got[0].State != Failing || !got[0].Enabled {
		t.Errorf("failing: %+v", got)
	}
	masked := func(context.Context, string, ...string) (string, error) {
		return "LoadState=masked\nActiveState=failed\nUnitFileState=masked\n", nil
	}
	if got := Units(t.Context(), systemd, masked); len(got) != 2 || got[0].State != Masked || got[0].Enabled {
		t.Errorf("masked: %+v", got)
	} else if start := startCommand(got, HostUnit); !strings.Contains(start, "systemctl unmask "+HostUnit+" && ") {
		t.Error(start)
	}
	silent := func(context.Context, string, ...string) (string, error) { return "", errors.New("nobody answers") }
	if got := Units(t.Context(), systemd, silent); got != nil {
		t.Errorf("with a systemd that does not answer: %+v", got)
	}
}

// Somebody without a key is not told that what runs has failed.
func TestAControlPlaneThatRunsIsNotDownForWhoHasNoKey(t *testing.T) {
	for name, because := range map[string]error{"it does not answer": nil, "it runs": problem.New(problem.Unauthorized, "set a key", "clawjail runs, and you have no key")} {
		c := config.Default()
		c.DataDir, c.RunDir, c.TemplatesDir = t.TempDir(), t.TempDir(), t.TempDir()
		if err := os.WriteFile(filepath.Join(c.RunDir, "hostd.sock"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		s := Local(t.Context(), LocalOptions{Config: c, Because: because, Host: nobodyHost{}, ControlURL: "http://127.0.0.1:1", Systemd: t.TempDir() + "/none", Now: time.Now})
		var codes []string
		for _, a := range s.Attention {
			codes = append(codes, a.Code)
		}
		runs := because != nil
		if s.ControlPlane != runs || (s.Level == Failed) == runs || slices.Contains(codes, NoKey) != runs || slices.Contains(codes, ControlPlaneDown) == runs {
			t.Errorf("%s: %s, %v", name, s.Level, codes)
		}
	}
}

// nobodyHost is a host daemon that does not answer the caller.
type nobodyHost struct{ Host }

func (nobodyHost) Info(context.Context) (hostd.Info, error) {
	return hostd.Info{}, errors.New("permission denied")
}

func TestControlPlanesThatAreLostOrOfAnotherVersionAreToldOf(t *testing.T) {
	now := time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)
	node := func(state peer.NodeState, version string, seen time.Duration) peer.Node {
		return peer.Node{Name: "other", State: state, Version: version, SeenAt: now.Add(-seen)}
	}
	for _, c := range []struct {
		node peer.Node
		want string
	}{
		{node(peer.NodeAlive, "v1", 0), ""}, {node(peer.NodeDraining, "v1", 0), ""}, {node(peer.NodeAlive, "v2", 0), VersionsDiffer}, {node(peer.NodeDraining, "v2", 0), VersionsDiffer},
		{node(peer.NodeLost, "v1", time.Minute), NodeGone}, {node(peer.NodeLost, "v2", oldNews), ""}, {node(peer.NodeStopped, "v2", 0), ""},
	} {
		got := ofNodes([]peer.Node{node(peer.NodeAlive, "v1", 0), c.node}, "v1", now)
		if c.want == "" && len(got) > 0 || c.want != "" && (len(got) != 1 || got[0].Code != c.want || got[0].About.Name != "other" || got[0].Hint == "") {
			t.Errorf("%+v: %+v", c.node, got)
		}
	}
}
