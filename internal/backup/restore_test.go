package backup

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/audit"
	"github.com/clawjail/clawjail/internal/audit/audittest"
	"github.com/clawjail/clawjail/internal/grant"
	"github.com/clawjail/clawjail/internal/hostd"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/store"
	"github.com/clawjail/clawjail/internal/store/open"
	"github.com/clawjail/clawjail/internal/swap"
)

func restore(h *house, data []byte, change func(*RestoreOptions)) (Restored, error) {
	o := restoring(h.home)
	if change != nil {
		change(&o)
	}
	return Restore(h.t.Context(), bytes.NewReader(data), o)
}

func replacing(o *RestoreOptions) { o.Replace = true }

func code(t *testing.T, err error, want string) {
	t.Helper()
	if problem.CodeOf(err) != want {
		t.Errorf("got %v, and want the code %s", err, want)
	}
}

func TestARestoredLogVerifiesAndSaysThatItWasRestored(t *testing.T) {
	h := newHouse(t)
	old := h.backup(nil)
	h.log("later", 5)
	h.write("agents/default.later.json", `{}`)
	done, err := restore(h, old, replacing)
	if err != nil {
		t.Fatal(err)
	}
	h.log("after", 1)
	report := h.verify(hostd.CheckpointsPath(h.c))
	if !report.OK() || report.Nodes[0].Restores != 1 || report.Nodes[0].Rows != 5 { // three, the restore, and one after
		t.Errorf("got %+v, %v", report, report.Bad())
	}
	// The checkpoints of what was replaced are kept, and speak of rows that are gone: that is found, and explained.
	with := h.verify(filepath.Join(done.Aside, "audit", "checkpoints"))
	if bad := with.Bad(); bad == nil || !strings.Contains(bad.Why, "a backup was restored") {
		t.Errorf("the rows that are gone are not found: %v", bad)
	}
	if _, err := os.Stat(filepath.Join(done.Aside, "agents/default.later.json")); err != nil {
		t.Error(err)
	}
	if got := h.read("agents/default.later.json"); !strings.Contains(got, "no such file") {
		t.Errorf("what came later is there: %s", got)
	}
}

func TestGrantsAreVoidAfterARestoreUnlessTheyAreKept(t *testing.T) {
	h := newHouse(t)
	data := h.backup(nil)
	if _, err := restore(h, data, replacing); err != nil {
		t.Fatal(err)
	}
	if got := h.read("control/grants.key"); !strings.Contains(got, "no such file") {
		t.Errorf("the key of grants is back: %s", got)
	}
	h.unprotect()
	h.must(os.RemoveAll(h.c.DataDir))
	if _, err := restore(h, data, func(o *RestoreOptions) { o.KeepGrants = true }); err != nil {
		t.Fatal(err)
	}
	if got := h.read("control/grants.key"); got != "the file grants.key" {
		t.Errorf("got %s", got)
	}
}

// issuing uses grants and permissions of the house as a control plane does.
func (h *house) issuing(use func(*grant.Issuer, store.Store)) {
	h.t.Helper()
	keys, err := grant.OpenKeyring(filepath.Join(hostd.ControlDir(h.c), "grants.key"), time.Now)
	h.must(err)
	db, err := open.Open(h.t.Context(), "", h.c.DataDir)
	h.must(err)
	issuer, err := grant.New(grant.Options{Store: db, Keys: keys, Installation: "clawjail", RegistrableDomain: func(host string) (string, error) { return host, nil },
		Limits: grant.DefaultLimits(), Now: time.Now, Audit: new(audittest.Log)})
	h.must(err)
	use(issuer, db)
	h.must(db.Close())
}

func TestPermissionsHoldAfterARestoreAndUnusedGrantsDoNot(t *testing.T) {
	ctx := t.Context()
	for _, keep := range []bool{false, true} {
		h := newHouse(t)
		h.must(os.Remove(filepath.Join(hostd.ControlDir(h.c), "grants.key")))
		var token grant.Token
		want := func(agent string) grant.Want {
			return grant.Want{Tenant: store.DefaultTenant, Session: "s_1", Agent: agent, Domains: []string{"example.com"}, Access: grant.AccessTools, Actor: "agent:" + agent}
		}
		h.issuing(func(i *grant.Issuer, db store.Store) {
			ids := map[string]string{}
			for _, agent := range []string{"a1", "a2", "a3"} {
				h.must(db.CreateAgent(ctx, store.Agent{ID: agent, Tenant: store.DefaultTenant, Name: agent, CreatedAt: time.Now()}))
				if agent == "a3" {
					break
				}
				p, _, err := i.Allow(ctx, grant.PermissionRequest{Tenant: store.DefaultTenant, Operator: "operator:o1", Agent: agent, Domain: "example.com", Account: "c1"})
				h.must(err)
				ids[agent] = p.ID
			}
			h.must(i.Disallow(ctx, ids["a2"]))
			forged, err := db.Entry(ctx, ids["a1"])
			h.must(err)
			forged.ID, forged.Agent = "perm_forged", "a3"
			h.must(db.CreateEntry(ctx, forged))
			token, _, err = i.Issue(ctx, grant.Request{Tenant: store.DefaultTenant, Operator: "operator:o1", Domains: []string{"example.com"}})
			h.must(err)
		})
		data := h.backup(nil)
		found := Permissions{Good: 1, Void: 1}
		if _, _, p, err := Check(ctx, bytes.NewReader(data), Keys{}, t.TempDir(), nil); err != nil || p != found {
			t.Errorf("the backup has %+v, %v", p, err)
		}
		done, err := restore(h, data, func(o *RestoreOptions) { o.Replace, o.KeepGrants = true, keep })
		if err != nil || done.Permissions != found {
			t.Fatalf("%+v, %v", done.Permissions, err)
		}
		h.issuing(func(i *grant.Issuer, _ store.Store) {
			for agent, code := range map[string]string{"a1": "", "a2": problem.AccountNotAllowed, "a3": problem.AccountNotAllowed} {
				if _, err := i.Permitted(ctx, want(agent)); problem.CodeOf(err) != code {
					t.Errorf("kept %v: %s: %v", keep, agent, err)
				}
			}
			if _, err := i.Use(ctx, token, want("a1")); problem.CodeOf(err) != map[bool]string{false: problem.GrantInvalid}[keep] {
				t.Errorf("kept %v: the grant that was not used: %v", keep, err)
			}
		})
	}
}

func TestTheVaultsKeyIsInABackupOnlyWhenAskedFor(t *testing.T) {
	h := newHouse(t)
	var key bytes.Buffer
	for _, c := range []struct {
		change func(*Options)
		want   bool
	}{{nil, false}, {func(o *Options) { o.KeyTo = &key }, false}, {func(o *Options) { o.WithKey = true }, true}} {
		z, err := gzip.NewReader(bytes.NewReader(h.backup(c.change)))
		h.must(err)
		text, err := io.ReadAll(z)
		h.must(err)
		if got := bytes.Contains(text, []byte("the file vault.key")); got != c.want {
			t.Errorf("the key is in it: %v", got)
		}
	}
	if key.String() != "the file vault.key" {
		t.Errorf("the file of the key has %q", key.String())
	}
	without := h.backup(nil)
	h.must(os.Remove(filepath.Join(h.c.DataDir, "control/vault.key")))
	for _, c := range []struct {
		from string
		data []byte
		key  []byte
	}{{"", without, nil}, {"file", without, []byte("another")}, {"kept", without, nil}} {
		h.unprotect()
		moved, _ := filepath.Glob(filepath.Join(h.c.DataDir, "replaced-*")) // the pattern is good
		for _, dir := range moved {
			h.must(os.RemoveAll(dir))
		}
		done, err := restore(h, c.data, func(o *RestoreOptions) { o.Replace, o.VaultKey = true, c.key })
		if err != nil || done.VaultKey != c.from {
			t.Errorf("the key comes from %q, want %q: %v", done.VaultKey, c.from, err)
		}
	}
	if got := h.read("control/vault.key"); got != "another" {
		t.Errorf("the key that was there is %q", got)
	}
}

// A key that is rotated while the database is copied belongs to rows of after that, or of before.
func TestAKeyIsTheOneOfTheDatabaseInItsBackup(t *testing.T) {
	h := newHouse(t)
	for _, name := range []string{"grants.key", "vault.key"} {
		for _, times := range []int{0, 1, 9} {
			n := 0
			o := h.options()
			o.WithKey = true
			o.Progress = func(stage string, _, _ int64) {
				if stage == "copy the database" && n < times {
					n++
					h.write("control/"+name, fmt.Sprint("rotated ", n, " of ", times))
				}
			}
			h.write("control/"+name, "of before")
			var b bytes.Buffer
			_, err := Create(t.Context(), &b, o)
			if times == 9 {
				code(t, err, problem.VaultRotating)
				continue
			}
			h.must(err)
			found := 0
			rewrite(t, b.Bytes(), func(head *tar.Header, body []byte) []byte {
				if head.Name == dataPrefix+"control/"+name || name == "vault.key" && head.Name == vaultName {
					if found++; string(body) != h.read("control/"+name) {
						t.Errorf("%s, rotated %d times, is %q in the backup, and %q in its place", name, times, body, h.read("control/"+name))
					}
				}
				return body
			})
			if found != 1 {
				t.Errorf("%s is %d times in the backup", name, found)
			}
		}
	}
}

func TestABackupIsEncryptedForThoseWhoMayReadIt(t *testing.T) {
	h := newHouse(t)
	words := Keys{Passphrase: "correct horse"}
	data := h.backup(func(o *Options) { o.Keys, o.WithKey = words, true })
	if bytes.HasPrefix(data, []byte("\x1f\x8b")) {
		t.Error("it is not encrypted")
	}
	_, _, _, err := Check(t.Context(), bytes.NewReader(data), Keys{}, t.TempDir(), nil)
	code(t, err, problem.BadRequest)
	_, _, _, err = Check(t.Context(), bytes.NewReader(data), Keys{Passphrase: "wrong"}, t.TempDir(), nil)
	code(t, err, problem.BadRequest)
	if m, report, _, err := Check(t.Context(), bytes.NewReader(data), words, t.TempDir(), nil); err != nil || !m.VaultKey || report == nil {
		t.Errorf("%+v %v", m, err)
	}
}

func TestRestoreRefusesWhatIsThereAndWhatRuns(t *testing.T) {
	h := newHouse(t)
	data := h.backup(nil)
	_, err := restore(h, data, nil)
	code(t, err, problem.Conflict)
	locked, err := hostd.Lock(h.c)
	h.must(err)
	_, err = restore(h, data, replacing)
	code(t, err, problem.Conflict)
	h.must(locked.Close())
	h.opened(func(*audit.Log) { // the control plane alone
		_, err := restore(h, data, replacing)
		code(t, err, problem.Conflict)
	})
	h.write("journal/cj-x-1.json", "{}")
	_, err = restore(h, data, replacing)
	code(t, err, problem.Conflict)
	h.must(os.RemoveAll(filepath.Join(h.c.DataDir, "journal")))
	if _, err := restore(h, data, replacing); err != nil {
		t.Error(err)
	}
}

// rewrite changes the entries of a backup.
func rewrite(t *testing.T, data []byte, change func(h *tar.Header, body []byte) []byte) []byte {
	t.Helper()
	z, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	packed := gzip.NewWriter(&out)
	from, to := tar.NewReader(z), tar.NewWriter(packed)
	for {
		head, err := from.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(from)
		if err != nil {
			t.Fatal(err)
		}
		body = change(head, body)
		head.Size = int64(len(body))
		if err := to.WriteHeader(head); err != nil {
			t.Fatal(err)
		}
		if _, err := to.Write(body); err != nil && head.Typeflag == tar.TypeReg {
			t.Fatal(err)
		}
	}
	if err := errors.Join(to.Close(), packed.Close()); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func TestABackupThatIsNotAsItWasWrittenChangesNothing(t *testing.T) {
	h := newHouse(t)
	data := h.backup(nil)
	before := h.listing()
	replace := func(name, from, to string) []byte {
		return rewrite(t, data, func(head *tar.Header, body []byte) []byte {
			if head.Name == name {
				return bytes.ReplaceAll(body, []byte(from), []byte(to))
			}
			return body
		})
	}
	bad := map[string][]byte{
		"cut off":         data[:len(data)/2],
		"no end":          data[:len(data)-4],
		"empty":           nil,
		"text":            []byte("hello, this is no backup"),
		"another content": replace("data/control/admin.key", "the", "THE"),
		"longer":          replace("data/control/admin.key", "the", "the longer"),
		"a way out":       replace("manifest.json", "data/control/admin.key", "data/control/../../x"),
		"an absolute one": replace("manifest.json", "data/control/admin.key", "/etc/passwd"),
		"another owner's": replace("manifest.json", "data/control/admin.key", "data/templates/x"),
		"twice":           replace("manifest.json", "data/control/admin.key", "data/control/relay.key"),
		"setuid":          replace("manifest.json", `"mode": 384`, `"mode": 2541`),
		"negative":        replace("manifest.json", `"size": 18`, `"size": -18`),
		"a huge one":      replace("manifest.json", `"size": 18`, `"size": 99999999999999999`),
		"another's":       replace("manifest.json", `"installation": "`, `"installation": "x`),
		"newer":           replace("manifest.json", `"format": 1`, `"format": 2`),
		"a link": rewrite(t, data, func(head *tar.Header, body []byte) []byte {
			if head.Name != "data/control/admin.key" {
				return body
			}
			head.Typeflag, head.Linkname = tar.TypeSymlink, "/etc/passwd"
			return nil
		}),
		"a damaged database": replace(databaseName, "CREATE TABLE", "CREATE TABEL"),
	}
	for name, data := range bad {
		if _, err := restore(h, data, replacing); err == nil {
			t.Fatalf("%s: it is restored", name)
		} else if _, known := problem.As(err); !known {
			t.Errorf("%s: %v has no code", name, err)
		}
		if _, _, _, err := Check(t.Context(), bytes.NewReader(data), Keys{}, t.TempDir(), nil); err == nil {
			t.Errorf("%s: the check finds nothing", name)
		}
		if after := h.listing(); after != before {
			t.Fatalf("%s: changed from\n%s\nto\n%s", name, before, after)
		}
	}
	if _, err := restore(h, data, replacing); err != nil {
		t.Errorf("the good one: %v", err)
	}
}

func TestALogThatWasChangedBeforeTheBackupIsNotRestoredUnasked(t *testing.T) {
	h := newHouse(t)
	h.log("more", 2)
	key := h.read("control/audit.key")
	// Checkpoints of another log: as if rows had been written anew by somebody without the key.
	other := newHouse(t)
	other.log("others", 9)
	h.write("control/audit.key", other.read("control/audit.key"))
	data := h.backup(nil)
	h.write("control/audit.key", key)
	_, err := restore(h, data, replacing)
	code(t, err, problem.AuditBroken)
	_, _, _, err = Check(t.Context(), bytes.NewReader(data), Keys{}, t.TempDir(), nil)
	code(t, err, problem.AuditBroken)
	if _, err := restore(h, data, func(o *RestoreOptions) { o.Replace, o.BrokenAudit = true, true }); err != nil {
		t.Error(err)
	}
}

// listing is what of a data directory counts: all but locks.
func (h *house) listing() string {
	h.t.Helper()
	var out strings.Builder
	h.must(filepath.WalkDir(h.c.DataDir, func(path string, d os.DirEntry, err error) error {
		rel, _ := filepath.Rel(h.c.DataDir, path) // both are absolute
		if err == nil && !strings.Contains(rel, "clawjail.db-") && !strings.HasSuffix(rel, ".lock") {
			data := []byte(nil)
			if d.Type().IsRegular() {
				data, err = os.ReadFile(path)
			}
			fmt.Fprintf(&out, "%s %d %x\n", rel, len(data), tail(data))
		}
		return err
	}))
	return out.String()
}

func tail(b []byte) []byte { return b[max(0, len(b)-16):] }

// TestARestoreThatIsKilledLeavesTheOldOrTheNew kills a restore before each of its steps, and then looks what the next who uses
// the folder finds.
func TestARestoreThatIsKilledLeavesTheOldOrTheNew(t *testing.T) {
	h := newHouse(t)
	h.write("agents/default.bot.json", "new")
	file := filepath.Join(t.TempDir(), "backup")
	h.must(os.WriteFile(file, h.backup(nil), 0o600))
	self, err := os.Executable()
	h.must(err)
	sawOld, sawNew := 0, 0
	for step := 0; ; step++ {
		if step > 100 {
			t.Fatal("it has no end")
		}
		g := newHouse(t)
		g.write("agents/default.bot.json", "old")
		before := g.listing()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		cmd := exec.CommandContext(ctx, self, file, g.home)
		cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d", killVariable, step))
		text, err := cmd.CombinedOutput()
		cancel()
		if err == nil {
			break
		}
		if state, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || !state.Signaled() || state.Signal() != syscall.SIGKILL {
			t.Fatalf("step %d: %v\n%s", step, err, text)
		}
		finished, err := swap.Finish(g.c.DataDir)
		if err != nil {
			t.Fatalf("step %d: %v", step, err)
		}
		switch got := g.read("agents/default.bot.json"); {
		case finished && got == "new":
			sawNew++
			g.log("after", 1)
			if g.read("control/audit.key") != h.read("control/audit.key") || g.read("installation.json") != h.read("installation.json") {
				t.Errorf("step %d: a part is old", step)
			}
			if r := g.verify(hostd.CheckpointsPath(g.c)); !r.OK() || r.Nodes[0].Restores != 1 {
				t.Errorf("step %d: %+v", step, r)
			}
		case !finished && got == "old" || finished && got == "old":
			sawOld++
			if after := g.listing(); after != before {
				t.Errorf("step %d: changed from\n%s\nto\n%s", step, before, after)
			}
		default:
			// Everything is in its place, and the plan is the only thing that was left.
			if got != "new" {
				t.Errorf("step %d: neither the old nor the new: %q", step, got)
			}
			sawNew++
		}
		if _, err := os.Lstat(filepath.Join(g.c.DataDir, swap.Stage)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("step %d: a stage is left: %v", step, err)
		}
	}
	if sawOld < 5 || sawNew < 5 {
		t.Errorf("killed %d times before the plan, and %d times behind it", sawOld, sawNew)
	}
}
