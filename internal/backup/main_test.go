package backup

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/audit"
	"github.com/clawjail/clawjail/internal/audit/checkpoint"
	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/hostd"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/store/open"
	"github.com/clawjail/clawjail/internal/testenv"
)

// killVariable makes the test binary a restore that ends itself before a step; its value is the number of it.
const killVariable = "CLAWJAIL_TEST_RESTORE_KILL"

func TestMain(m *testing.M) {
	if step := os.Getenv(killVariable); step != "" {
		os.Exit(restoreUntilKilled(step, os.Args[1], os.Args[2]))
	}
	if os.Getenv(killBackupVariable) != "" {
		os.Exit(backupUntilKilled(os.Args[1], os.Args[2]))
	}
	os.Exit(m.Run())
}

// restoreUntilKilled restores a file into a folder, and kills itself before one of the steps.
func restoreUntilKilled(step, file, home string) int {
	var at, n int
	if _, err := fmt.Sscan(step, &at); err != nil {
		return 3
	}
	f, err := os.Open(file)
	if err != nil {
		return 3
	}
	o := restoring(home)
	o.Replace = true
	if there(outsideKey(home)) {
		o.Config.Vault.KeyFile = outsideKey(home)
	}
	o.Step = func(string) {
		if n == at {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL) // nothing comes behind it
			select {}
		}
		n++
	}
	if _, err := Restore(context.Background(), f, o); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	return 0
}

// killBackupVariable makes the test binary a backup that ends itself when it has the copies and half of the file.
const killBackupVariable = "CLAWJAIL_TEST_BACKUP_KILL"

func backupUntilKilled(file, home string) int {
	out, err := NewOutput(file)
	if err != nil {
		return 3
	}
	o := Options{Config: withNode(configured(home)), Version: "v1", Now: time.Now, WithKey: true, Recordings: true}
	o.Progress = func(stage string, done, _ int64) {
		if stage == "write the backup" && done > 0 {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL) // nothing comes behind it
			select {}
		}
	}
	if _, err := Create(context.Background(), out, o); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	return 2
}

// outsideKey is a vault's key that is not in the data directory.
func outsideKey(home string) string { return filepath.Join(home, "secrets", "vault.key") }

func configured(home string) config.Config {
	c := config.Default()
	c.DataDir, c.RunDir = filepath.Join(home, "data"), filepath.Join(home, "run")
	return c
}

func restoring(home string) RestoreOptions {
	return RestoreOptions{Config: configured(home), Now: time.Now, Control: Owner{os.Geteuid(), os.Getegid()}}
}

// house is an installation that has what a running one leaves: a database with an audit log, its checkpoints and keys.
type house struct {
	t    *testing.T
	home string
	c    config.Config
}

func newHouse(t *testing.T) *house {
	t.Helper()
	testenv.Root(t) // owners are given
	h := &house{t: t, home: t.TempDir()}
	h.c = configured(h.home)
	for _, dir := range []string{h.c.DataDir, hostd.ControlDir(h.c), hostd.AgentsDir(h.c), filepath.Dir(hostd.CheckpointsPath(h.c))} {
		h.must(os.MkdirAll(dir, 0o700))
	}
	subnet := netip.MustParsePrefix("10.97.0.0/20")
	_, err := hostd.OpenInstallation(t.Context(), h.c.DataDir, subnet, func(context.Context, jail.Installation) (netip.Prefix, error) { return subnet, nil }, time.Now)
	h.must(err)
	for _, name := range []string{"admin.key", "grants.key", "relay.key", "vault.key"} {
		h.write("control/"+name, "the file "+name)
	}
	h.write("agents/default.bot.json", `{"agent":"bot"}`)
	h.log("first", 3)
	t.Cleanup(func() { h.unprotect() })
	return h
}

// unprotect lets the checkpoints be removed, also those that were moved aside.
func (h *house) unprotect() {
	for _, dir := range []string{"", "replaced-*", ".clawjail-restore/new"} {
		found, _ := filepath.Glob(filepath.Join(h.c.DataDir, dir, "audit", "checkpoints")) // the pattern is good
		for _, path := range found {
			h.must(checkpoint.Unprotect(path))
		}
	}
}

func (h *house) must(err error) {
	h.t.Helper()
	if err != nil {
		h.t.Fatal(err)
	}
}

func (h *house) write(name, text string) {
	h.t.Helper()
	path := filepath.Join(h.c.DataDir, name)
	h.must(os.MkdirAll(filepath.Dir(path), 0o700))
	h.must(os.WriteFile(path, []byte(text), 0o600))
}

func (h *house) read(name string) string {
	data, err := os.ReadFile(filepath.Join(h.c.DataDir, name))
	if err != nil {
		return err.Error()
	}
	return string(data)
}

// opened uses the audit log of the house as a control plane does.
func (h *house) opened(use func(*audit.Log)) {
	h.t.Helper()
	ctx := h.t.Context()
	key, err := checkpoint.LoadKey(filepath.Join(hostd.ControlDir(h.c), "audit.key"))
	h.must(err)
	db, err := open.Open(ctx, "", h.c.DataDir)
	h.must(err)
	notes, err := checkpoint.OpenFile(hostd.CheckpointsPath(h.c))
	h.must(err)
	log, err := audit.Open(ctx, audit.Options{Store: db, Node: "n1", SpillPath: filepath.Join(hostd.ControlDir(h.c), "audit.spill"),
		SpillSize: 64 << 10, Key: key, Checkpoints: notes, Now: time.Now})
	h.must(err)
	h.must(Record(ctx, log, h.c))
	use(log)
	h.must(errors.Join(log.Close(ctx), notes.Close(), db.Close()))
}

func (h *house) log(action string, n int) {
	h.t.Helper()
	h.opened(func(l *audit.Log) {
		for range n {
			h.must(l.Event(h.t.Context(), audit.Event{Action: "test." + action, Result: audit.OK, Actor: "t"}))
		}
	})
}

// verify compares the log with checkpoints: its own, or others.
func (h *house) verify(notes string) audit.Report {
	h.t.Helper()
	key, err := checkpoint.LoadKey(filepath.Join(hostd.ControlDir(h.c), "audit.key"))
	h.must(err)
	db, err := open.Open(h.t.Context(), "", h.c.DataDir)
	h.must(err)
	report, err := audit.Verify(h.t.Context(), db, checkpoint.ReadFile(notes), key.Keys())
	h.must(errors.Join(err, db.Close()))
	return report
}

func (h *house) options() Options {
	return Options{Config: withNode(h.c), Version: "v1", Now: time.Now}
}

func withNode(c config.Config) config.Config { c.Node = "n1"; return c }

// backup makes one and returns its bytes.
func (h *house) backup(change func(*Options)) []byte {
	h.t.Helper()
	o := h.options()
	if change != nil {
		change(&o)
	}
	var b bytes.Buffer
	_, err := Create(h.t.Context(), &b, o)
	h.must(err)
	return b.Bytes()
}
