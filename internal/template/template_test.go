package template

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/clawjail/clawjail/internal/problem"
)

func TestNames(t *testing.T) {
	for name, good := range map[string]bool{
		"browser": true, "a": true, "9": true, "abcdefghijklmnopqrst": true,
		"": false, "abcdefghijklmnopqrstu": false, "Browser": false, "a-b": false, "a.b": false, "..": false, "a/b": false, "a\n": false, ".building-x": false, "ä": false,
	} {
		if err := CheckName(name); (err == nil) != good {
			t.Errorf("%q: %v", name, err)
		}
	}
}

func TestSources(t *testing.T) {
	for text, want := range map[string]source{
		"":                        {sourceDebian, ""},
		"debian":                  {sourceDebian, ""},
		"oci:localhost:5000/ab:c": {sourceImage, "localhost:5000/ab:c"},
		"oci-archive:/tmp/x.tar":  {sourceArchive, "/tmp/x.tar"},
		"dir:/srv/../srv/rootfs/": {sourceDir, "/srv/rootfs"},
	} {
		got, err := parseSource(text)
		if err != nil || got != want {
			t.Errorf("%q: got %v, %v", text, got, err)
		}
	}
	for _, text := range []string{"ubuntu", "debian:bookworm", "oci:", "oci:UPPER/Case:tag!", "dir:", "dir", "http://x", "oci:a b", "dir:/a\x00b"} {
		_, err := parseSource(text)
		wantCode(t, err, problem.BadTemplate)
	}
}

func TestConfigurationIsCheckedAsAWhole(t *testing.T) {
	_, err := New(Config{Dir: "relative", Cache: "too"})
	var many *problem.ValidationError
	if !errors.As(err, &many) || len(many.Flaws) != 3 {
		t.Errorf("got %v", err)
	}
}

func TestBadRequestsCreateNothing(t *testing.T) {
	s := testStore(t)
	ctx := context.Background()
	for _, options := range []BuildOptions{
		{Name: "a-b"}, {Name: "browser", From: "what"}, {Name: "norecipe"}, {Name: "browser", With: []string{"java"}},
		{Name: "x", From: "dir:/srv", With: []string{"node"}},
	} {
		_, err := s.Build(ctx, options)
		wantCode(t, err, problem.BadTemplate)
	}
	_, err := s.Get(ctx, "../x")
	wantCode(t, err, problem.BadTemplate)
	_, err = s.Get(ctx, "x")
	wantCode(t, err, problem.TemplateMissing)
	_, err = s.Verify(ctx, "x", VerifyOptions{})
	wantCode(t, err, problem.TemplateMissing)
	if list, err := s.List(ctx); err != nil || len(list) > 0 {
		t.Errorf("got %v, %v", list, err)
	}
	if _, err := os.Lstat(filepath.Dir(s.dir)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("something was created: %v", err)
	}
}

func TestBuildingNeedsRoot(t *testing.T) {
	s := testStore(t)
	s.euid = func() int { return jailUser }
	_, err := s.Build(context.Background(), BuildOptions{Name: "x", From: "dir:/srv"})
	if runtime.GOOS != "linux" {
		wantCode(t, err, problem.Unsupported)
		return
	}
	wantCode(t, err, problem.NoRoot)
}

// plant makes a template without building it.
func plant(t testing.TB, s *Store, name, metadata string) {
	t.Helper()
	put(t, s.dir, map[string]string{name + "/rootfs/file": "x", name + "/template.json": metadata})
}

func TestDamagedDescriptionDoesNotHideTheOthers(t *testing.T) {
	s := testStore(t)
	plant(t, s, "good", `{"version":1,"name":"good"}`)
	plant(t, s, "bad", `{`)
	plant(t, s, "old", `{"version":0,"name":"old"}`)
	plant(t, s, "copied", `{"version":1,"name":"good"}`)
	list, err := s.List(context.Background())
	wantCode(t, err, problem.TemplateChanged)
	if len(list) != 1 || list[0].Name != "good" || list[0].RootFS() != filepath.Join(s.dir, "good", "rootfs") {
		t.Errorf("got %v", list)
	}
}

func TestTemplateInUseIsNotRemoved(t *testing.T) {
	of := map[string][]string{"good": {"bk3x900001"}}
	s := testStore(t, func(c *Config) {
		c.Jails = func(_ context.Context, name string) ([]string, error) { return of[name], nil }
	})
	plant(t, s, "good", `{"version":1,"name":"good"}`)
	ctx := context.Background()
	err := s.Remove(ctx, "good")
	wantCode(t, err, problem.TemplateInUse)
	if !strings.Contains(err.Error(), "bk3x900001") {
		t.Errorf("which jails they are is not said: %v", err)
	}
	if _, err := s.Get(ctx, "good"); err != nil {
		t.Fatal(err)
	}
	delete(of, "good")
	if err := s.Remove(ctx, "good"); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{storeLockName}, names(t, s.dir)); diff != "" {
		t.Error(diff)
	}
	wantCode(t, s.Remove(ctx, "good"), problem.TemplateMissing)
}

func TestOnlyANameThatIsTakenHasToBeReplaced(t *testing.T) {
	s := testStore(t)
	plant(t, s, "good", `{"version":1,"name":"good"}`)
	wantCode(t, s.refuseTaken(BuildOptions{Name: "good"}), problem.Conflict)
	for _, o := range []BuildOptions{{Name: "good", Replace: true}, {Name: "other"}} {
		if err := s.refuseTaken(o); err != nil {
			t.Errorf("%+v: %v", o, err)
		}
	}
}

// A jail goes on with the tree that it was made of: the folder of a template that was replaced has the names of those jails.
func TestWhatJailsRunFromStaysUntilTheyHaveEnded(t *testing.T) {
	of := map[string][]string{"good": {"old1", "old2"}, "other": {"elsewhere"}}
	var unknown error
	s := testStore(t, func(c *Config) {
		c.Jails = func(_ context.Context, name string) ([]string, error) { return of[name], unknown }
	})
	ctx := t.Context()
	// What an interruption leaves, before and after a template was replaced; of a template without jails, and of a build that never was one.
	const kept = ".building-good-aaaa"
	put(t, s.dir, map[string]string{kept + "/rootfs/x": "1", ".old-free-bbbb/rootfs/x": "", ".building-good-cccc/lock": "", ".building-good-cccc/rootfs/x": ""})
	sweep := func(what string, want ...string) {
		t.Helper()
		if removed, err := s.Sweep(ctx); err != nil || !slices.Equal(removed, want) {
			t.Errorf("%s: removed %v (%v), want %v", what, removed, err, want)
		}
	}
	unknown = errors.New("the host daemon does not answer")
	sweep("while nobody can tell", ".building-good-cccc")
	unknown = nil
	sweep("while jails run", ".old-free-bbbb")
	of["good"] = []string{"old2", "new"}
	sweep("while one of them runs")
	unknown = errors.New("the host daemon does not answer")
	sweep("while nobody can tell again")
	unknown = nil
	if data, err := os.ReadFile(filepath.Join(s.dir, kept, rootfsName, "x")); err != nil || string(data) != "1" {
		t.Errorf("its tree: %q, %v", data, err)
	}
	of["good"] = []string{"new"} // which was made of the new one
	sweep("when they have ended", kept)
}

// Another installation that shares the folder does not know whose jails run from what was replaced.
func TestWhatAnotherInstallationReplacedIsLeftToIt(t *testing.T) {
	s := testStore(t, func(c *Config) { c.Owner = "/var/lib/clawjail" })
	plant(t, s, "good", `{"version":1,"name":"good"}`)
	if err := errors.Join(s.own(filepath.Join(s.dir, "good")), s.own(filepath.Join(s.dir, "new"))); err != nil {
		t.Fatal(err)
	}
	const kept = ".building-good-aaaa"
	if err := os.Rename(filepath.Join(s.dir, "good"), filepath.Join(s.dir, kept)); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		owner string
		want  []string
	}{{"/srv/other", nil}, {"", nil}, {"/var/lib/clawjail", []string{kept}}} {
		s.owner = c.owner
		if removed, err := s.Sweep(t.Context()); err != nil || !slices.Equal(removed, c.want) {
			t.Errorf("%q removed %v, %v", c.owner, removed, err)
		}
	}
}

func TestSweepRemovesWhatHasNoOwnerAndNothingElse(t *testing.T) {
	s := testStore(t)
	ctx := context.Background()
	plant(t, s, "good", `{"version":1,"name":"good"}`)
	alive, release, err := s.beginBuilding(ctx, "alive")
	if err != nil {
		t.Fatal(err)
	}
	put(t, s.dir, map[string]string{
		".building-dead-1/lock": "", ".building-dead-1/rootfs/etc/x": "", ".building-unlocked-2/rootfs/": "", ".old-good-3/rootfs/x": "", "stranger/x": "",
	})
	removed, err := s.Sweep(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{".building-dead-1", ".building-unlocked-2", ".old-good-3"}, removed); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{filepath.Base(alive), storeLockName, "good", "stranger"}, names(t, s.dir)); diff != "" {
		t.Error(diff)
	}
	// Without its owner's lock the same folder goes: it was the lock that kept it.
	if err := release(); err != nil {
		t.Fatal(err)
	}
	if removed, err := s.Sweep(ctx); err != nil || len(removed) != 1 {
		t.Errorf("got %v, %v", removed, err)
	}
}

func TestWaitingForALockEndsWithTheContext(t *testing.T) {
	s := testStore(t)
	unlock, err := s.lock(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
	defer cancel()
	_, err = s.lock(ctx)
	wantCode(t, err, problem.Timeout)
	got := make(chan error, 1)
	go func() {
		again, err := s.lock(context.Background())
		if err == nil {
			again()
		}
		got <- err
	}()
	unlock()
	if err := <-got; err != nil {
		t.Error(err)
	}
}

func TestTemplatesFolderIsRootsAlone(t *testing.T) {
	s := testStore(t)
	unlock, err := s.lock(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	unlock()
	for dir, want := range map[string]os.FileMode{s.dir: 0o700, filepath.Dir(s.dir): 0o755} {
		if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: %v, %v", dir, info.Mode(), err)
		}
	}
}
