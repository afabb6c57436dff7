package hostd

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/testenv"
)

// helperRun is a whole host daemon on a disk. Arguments: the folder, the user.
func helperRun(args []string) error {
	c := runConfig(args[0], args[1])
	if err := Harden(); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM)
	defer stop()
	return Run(ctx, RunOptions{
		Config: c, EndJails: true, Version: "test", Now: time.Now,
		Log:       slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
		Templates: func(context.Context) ([]Template, error) { return nil, nil },
		Substrate: Substrate{
			FreeSubnet: subnet("10.99.0.0/24"),
			Assemble: func(_ context.Context, o AssembleOptions) (Parts, error) {
				d, err := newDisk(filepath.Join(args[0], "host"))
				d.pool = o.Pool
				return Parts{Parts: d.parts()}, err
			},
		},
		Notify: func(state string) error { fmt.Println(state); return nil },
	})
}

func TestAWholeHostDaemon(t *testing.T) {
	testenv.Need(t, testenv.Root)
	nobody, err := lookupAccount("nobody")
	if err != nil {
		testenv.Missing(t, "the user nobody", "make it")
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Dir(newSocket(t))
	conf := runConfig(dir, "nobody")
	p := startHelper(t, self, "run", nil, dir, "nobody")
	p.expect(t, "READY=1")
	for _, f := range []struct {
		path     string
		mode     os.FileMode
		uid, gid int
	}{
		{conf.DataDir, 0o755, 0, 0},
		{ControlDir(conf), 0o700, nobody.uid, nobody.gid},
		{DatabaseDir(conf), 0o700, nobody.uid, nobody.gid},
		{filepath.Dir(CheckpointsPath(conf)), 0o755, 0, 0},
		{CheckpointsPath(conf), 0o644, 0, 0},
		{conf.TemplatesDir, 0o700, 0, 0},
		{filepath.Join(conf.DataDir, "journal"), 0o700, 0, 0},
		{filepath.Join(conf.DataDir, InstallationFile), 0o600, 0, 0},
		{conf.RunDir, 0o750, 0, nobody.gid},
		{SocketPath(conf), 0o660, 0, nobody.gid},
		{filepath.Join(conf.RunDir, "hostd.lock"), 0o600, 0, 0},
	} {
		info, err := os.Lstat(f.path)
		if err != nil {
			t.Error(err)
			continue
		}
		st := info.Sys().(*syscall.Stat_t)
		if info.Mode().Perm() != f.mode || int(st.Uid) != f.uid || int(st.Gid) != f.gid {
			t.Errorf("%s is %04o %d:%d, want %04o %d:%d", f.path, info.Mode().Perm(), st.Uid, st.Gid, f.mode, f.uid, f.gid)
		}
	}
	second := startHelper(t, self, "run", nil, dir, "nobody")
	if said := second.expect(t, "error:"); !strings.Contains(said, "another host daemon") ||
		!strings.Contains(said, strconv.Itoa(p.cmd.Process.Pid)) {
		t.Errorf("a second host daemon says %q", said)
	}
	c := NewClient(SocketPath(conf), nil)
	if err := c.Hold(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Create(t.Context(), spec("exec cat")); !hasCode(err, problem.TemplateMissing) {
		t.Errorf("a template that has not been built: %v", err)
	}
	template := filepath.Join(conf.TemplatesDir, "tiny")
	if err := os.Mkdir(template, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(template, "template.json"), []byte("{}"), 0o644); err != nil {
		t.Fatal(err)
	}
	j := create(t, c, spec("exec cat"))
	fmt.Fprintln(j.Stdio.In, "hello")
	if line, err := bufio.NewReader(j.Stdio.Out).ReadString('\n'); line != "hello\n" {
		t.Fatalf("the jail answers %q, %v", line, err)
	}
	key := newNoteKey(t)
	if err := c.AppendCheckpoint(t.Context(), key.note(t, 1)); err != nil {
		t.Fatal(err)
	}
	before, err := c.Info(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Wait(); err != nil {
		t.Fatalf("the end: %v", err)
	}
	d, err := newDisk(filepath.Join(dir, "host"))
	if err != nil {
		t.Fatal(err)
	}
	if rest, err := d.list(jail.ResourceKinds()...); err != nil || len(rest) > 0 {
		t.Errorf("left: %v, %v", rest, err)
	}
	again := startHelper(t, self, "run", nil, dir, "nobody")
	again.expect(t, "READY=1")
	if after, err := c.Info(t.Context()); err != nil || after.Installation != before.Installation || after.Subnet != before.Subnet {
		t.Errorf("another installation after a restart: %+v and %+v, %v", before, after, err)
	}
	if err := c.AppendCheckpoint(t.Context(), key.note(t, 2)); err != nil {
		t.Fatalf("after a restart: %v", err)
	}
	if got := noted(t, CheckpointsPath(conf)); !slices.Equal(got, []int64{1, 2}) {
		t.Errorf("the notes are %v", got)
	}
}

func TestFoldersOfOthersAreRefused(t *testing.T) {
	testenv.Need(t, testenv.Root)
	dir := filepath.Dir(newSocket(t))
	conf := runConfig(dir, "nobody")
	control := account{uid: 64001, gid: 64001}
	if err := makeFolders(conf, control); err != nil {
		t.Fatal(err)
	}
	if err := makeFolders(conf, control); err != nil {
		t.Fatalf("a second time: %v", err)
	}
	if err := os.Chown(conf.TemplatesDir, 64003, 64003); err != nil {
		t.Fatal(err)
	}
	if err := makeFolders(conf, control); !hasCode(err, problem.BadConfig) {
		t.Errorf("a folder of somebody else: %v", err)
	}
	if err := errors.Join(os.Remove(conf.TemplatesDir), os.Symlink("/etc", conf.TemplatesDir)); err != nil {
		t.Fatal(err)
	}
	if err := makeFolders(conf, control); !hasCode(err, problem.BadConfig) {
		t.Errorf("a link in the place of a folder: %v", err)
	}
}
