//go:build linux

package docker

import (
	"bufio"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/moby/moby/client"

	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/problem"
)

func TestAnOwnersContainerHasItsStdioAndLeavesNothing(t *testing.T) {
	h := newHost(t)
	j := h.start(t, shell(jail.LifetimeOwner, `echo oops >&2; while read -r l; do echo "$l"; done; exit 7`))
	defer j.Stdio.Close()
	payload := strings.Repeat("{\"a\":1}\n", 20_000) // more than pipes hold
	go func() {
		_, _ = io.WriteString(j.Stdio.In, payload) // a failure shows as a short read
		_ = j.Stdio.In.Close()
	}()
	text, err := io.ReadAll(j.Stdio.Out)
	if err != nil || string(text) != payload {
		t.Fatalf("stdout has %d bytes, want the %d of stdin; %v", len(text), len(payload), err)
	}
	if line, _ := bufio.NewReader(j.Stdio.Err).ReadString('\n'); line != "oops\n" {
		t.Errorf("stderr is %q", line)
	}
	x, err := h.Wait(t.Context(), j.Name)
	if err != nil || x.Code != 7 || x.Cause != jail.CauseExited {
		t.Errorf("exit is %+v, %v; want status 7", x, err)
	}
}

func TestAnOwnersProgramEndsWithItsStdin(t *testing.T) {
	h := newHost(t)
	j := h.start(t, shell(jail.LifetimeOwner, `while read -r l; do :; done; exit 3`))
	j.Stdio.Close()
	if x, err := h.Wait(t.Context(), j.Name); err != nil || x.Code != 3 {
		t.Errorf("exit is %+v, %v", x, err)
	}
}

// A container is ended by asking its program, behind the first process, which passes the signal on.
func TestAProgramIsAskedToEnd(t *testing.T) {
	h := newHost(t)
	for script, want := range map[string]string{
		`trap 'echo asked; exit 0' TERM; echo ready; while :; do read -r l; done`: "ready\nasked\n",
		`echo ready; while :; do read -r l; done`:                                 "ready\n",
	} {
		j, err := h.Create(t.Context(), shell(jail.LifetimeOwner, script))
		if err != nil {
			t.Fatal(err)
		}
		out := bufio.NewReader(j.Stdio.Out)
		line, err := out.ReadString('\n')
		if err != nil {
			t.Error(err)
		}
		h.destroy(t, j.Name)
		rest, err := io.ReadAll(out)
		if got := line + string(rest); got != want || err != nil {
			t.Errorf("%s: printed %q, %v", script, got, err)
		}
		j.Stdio.Close()
	}
}

// Nothing is asked of an engine by who has no containers.
func TestAnEngineIsNotContactedBeforeItIsNeeded(t *testing.T) {
	o := Options{Installation: "dzzz", Socket: "/nonexistent/socket", Port: 3000, RunDir: t.TempDir(), DataDir: t.TempDir(),
		Journal: &memoryJournal{recs: map[jail.Name]jail.Record{}}, Output: nil}
	d, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := d.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}()
	if list, err := d.List(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("list: %v, %v", list, err)
	}
	if _, err := d.Reap(t.Context(), jail.ReapOptions{}); err != nil {
		t.Errorf("reap: %v", err)
	}
	if d.Gateway().IsValid() {
		t.Error("there is a gateway before there is a network")
	}
	// And where it is needed, that it is away is said so that something can be done about it.
	_, err = d.Create(t.Context(), shell(jail.LifetimeOwner, `:`))
	if problem.CodeOf(err) != problem.RuntimeMissing || !strings.Contains(err.Error(), o.Socket) {
		t.Errorf("without an engine: %v (%s)", err, problem.CodeOf(err))
	}
}

func TestOptionsReportEverythingAtOnce(t *testing.T) {
	o := Options{Installation: "X", Socket: "s", RunDir: "r", WorkspaceRoots: []string{"/", "w/.."}, Subnet: netip.MustParsePrefix("10.0.0.0/8")}
	err := o.Validate()
	for _, want := range []string{"installation", "docker.socket", "run_dir", "data_dir", "workspace_roots", "port", "journal", "docker.subnet"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s is not reported in: %v", want, err)
		}
	}
}

func TestWhatCannotBeAContainerIsRefusedBeforeAnythingIsMade(t *testing.T) {
	h := newHost(t)
	for name, c := range map[string]struct {
		change func(*jail.Spec)
		code   string
		says   string
	}{
		"no image":           {func(s *jail.Spec) { s.Image, s.Template = "", "browser" }, problem.BadRequest, "makes containers"},
		"a missing image":    {func(s *jail.Spec) { s.Image = "clawjail-test-nowhere:1" }, problem.TemplateMissing, "no image clawjail-test-nowhere:1"},
		"an unbounded place": {func(s *jail.Spec) { s.Image = testImage + "-volume" }, problem.BadTemplate, "/data"},
		"nothing to run":     {func(s *jail.Spec) { s.Image, s.Program.Argv = testImage+"-empty", nil }, problem.BadTemplate, "names no program"},
		"a folder elsewhere": {func(s *jail.Spec) {
			s.Mounts = []jail.Mount{{Source: "/etc", Target: jail.WorkspaceDir}}
		}, problem.Forbidden, "/etc does not lie beneath"},
		"home files":  {func(s *jail.Spec) { s.HomeFiles = []jail.File{{Path: "x"}} }, problem.BadRequest, "staged"},
		"a pipe":      {func(s *jail.Spec) { s.Program.Wire = jail.WirePipe34 }, problem.BadRequest, "wire"},
		"zero limits": {func(s *jail.Spec) { s.Limits.Memory = 0 }, problem.BadLimit, "memory"},
	} {
		t.Run(name, func(t *testing.T) {
			s := shell(jail.LifetimeOwner, `:`)
			c.change(&s)
			for what, err := range map[string]error{"check": h.Check(t.Context(), s), "create": second(h.Create(t.Context(), s))} {
				if err == nil || !strings.Contains(err.Error(), c.says) || !strings.Contains(codes(err), c.code) {
					t.Errorf("%s: %v; want %q and the code %s", what, err, c.says, c.code)
				}
			}
			if resources, err := h.HostResources(t.Context()); err != nil || len(resources) > 0 {
				t.Errorf("left: %+v, %v", resources, err)
			}
		})
	}
}

func second[T any](_ T, err error) error { return err }

// codes are those of an error and of what is joined in it.
func codes(err error) string {
	if many, ok := err.(interface{ Unwrap() []error }); ok {
		var all []string
		for _, e := range many.Unwrap() {
			all = append(all, codes(e))
		}
		return strings.Join(all, " ")
	}
	return problem.CodeOf(err)
}

func TestAProgramThatIsMissingEndsAtOnce(t *testing.T) {
	h := newHost(t)
	j := h.start(t, spec(jail.LifetimeOwner, "/bin/nothing-here"))
	defer j.Stdio.Close()
	if x, err := h.Wait(t.Context(), j.Name); err != nil || x.Code != 127 {
		t.Errorf("exit is %+v, %v; want the shell's 127", x, err)
	}
}

func TestTheStateOutlivesTheContainerAndGoesWhenItIsRemoved(t *testing.T) {
	h := newHost(t)
	s := shell(jail.LifetimeOwner, `read -r x < /state/kept || echo new > /state/kept; echo "was $x"`)
	for _, want := range []string{"was \n", "was new\n"} {
		j := h.start(t, s)
		text, err := io.ReadAll(j.Stdio.Out)
		j.Stdio.Close()
		if err != nil || string(text) != want {
			t.Fatalf("it printed %q, want %q; %v", text, want, err)
		}
		if want == "was \n" {
			if err := h.RemoveState(t.Context(), *s.Agent); problem.CodeOf(err) != problem.Conflict {
				t.Errorf("the state of a container that is there can be removed: %v", err)
			}
		}
		h.destroy(t, j.Name)
	}
	got, err := h.engine.VolumeInspect(t.Context(), "hermit_state_bot", client.VolumeInspectOptions{})
	if err != nil || got.Volume.Labels[labelAgent] != "bot" {
		t.Fatalf("the volume: %+v, %v", got.Volume, err)
	}
	for range 2 { // what is not there is removed already
		if err := h.RemoveState(t.Context(), *s.Agent); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := h.engine.VolumeInspect(t.Context(), "hermit_state_bot", client.VolumeInspectOptions{}); err == nil {
		t.Error("the volume is there still")
	}
}

// An engine that is ended while it makes a volume leaves an empty one without labels. It is in nobody's way.
func TestAVolumeThatTheEngineDidNotFinishIsMadeAnew(t *testing.T) {
	h := newHost(t)
	if _, err := h.engine.VolumeCreate(t.Context(), client.VolumeCreateOptions{Name: "hermit_state_bot"}); err != nil {
		t.Fatal(err)
	}
	s := shell(jail.LifetimeOwner, `echo new > /state/kept && echo kept`)
	j := h.start(t, s)
	text, err := io.ReadAll(j.Stdio.Out)
	j.Stdio.Close()
	if err != nil || string(text) != "kept\n" {
		t.Fatalf("it printed %q, %v", text, err)
	}
	h.destroy(t, j.Name)
	got, err := h.engine.VolumeInspect(t.Context(), "hermit_state_bot", client.VolumeInspectOptions{})
	if err != nil || got.Volume.Labels[labelAgent] != "bot" {
		t.Errorf("the volume: %+v, %v", got.Volume, err)
	}
	if err := h.RemoveState(t.Context(), *s.Agent); err != nil {
		t.Error(err)
	}
	// One whose agent goes meanwhile goes too.
	if _, err := h.engine.VolumeCreate(t.Context(), client.VolumeCreateOptions{Name: "hermit_state_bot"}); err != nil {
		t.Fatal(err)
	}
	if err := h.RemoveState(t.Context(), *s.Agent); err != nil {
		t.Error(err)
	}
	if _, err := h.engine.VolumeInspect(t.Context(), "hermit_state_bot", client.VolumeInspectOptions{}); err == nil {
		t.Error("the volume is there still")
	}
}

func TestAVolumeOfSomebodyElseIsNeitherUsedNorRemoved(t *testing.T) {
	h := newHost(t)
	theirs, err := h.engine.VolumeCreate(t.Context(), client.VolumeCreateOptions{Name: "hermit_state_theirs"})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(theirs.Volume.Mountpoint, "letter"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if _, err := h.engine.VolumeRemove(t.Context(), "hermit_state_theirs", client.VolumeRemoveOptions{}); err != nil {
			t.Error(err)
		}
	}()
	s := shell(jail.LifetimeOwner, `:`)
	named("theirs")(&s)
	for what, err := range map[string]error{
		"create": second(h.Create(t.Context(), s)), "check": h.Check(t.Context(), s), "remove": h.RemoveState(t.Context(), *s.Agent),
	} {
		if !strings.Contains(codes(err)+problem.CodeOf(err), problem.Conflict) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func TestNamesOfVolumesAreThoseOfTheWireContract(t *testing.T) {
	for want, a := range map[string]jail.Agent{
		"hermit_state_dev-bot":      {Tenant: "default", Name: "dev-bot"},
		"hermit_state_acme.dev-bot": {Tenant: "acme", Name: "dev-bot"},
	} {
		if got := volumeName(a); got != want {
			t.Errorf("%+v: %s, want %s", a, got, want)
		}
	}
}

func TestJournalledPathsStayBelowTheirFolder(t *testing.T) {
	d := &Driver{o: Options{RunDir: "/run/x", DataDir: "/var/x"}}
	if got := d.stagePath("cabcd00001", mountsFolder); got != filepath.Join("/run/x", containersFolder, "cabcd00001", mountsFolder) {
		t.Error(got)
	}
}
