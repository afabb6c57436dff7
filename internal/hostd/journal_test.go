package hostd

import (
	"bytes"
	"errors"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/sys/unix"

	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/problem"
)

func openJournal(t testing.TB, dir string, log *slog.Logger) *FileJournal {
	t.Helper()
	j, err := OpenJournal(dir, "test", log)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := j.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
			t.Error(err)
		}
	})
	return j
}

func record(name jail.Name) jail.Record {
	return jail.Record{
		Version: recordVersion, Name: name, State: jail.StateStarted, Owner: strings.Repeat("a", 32), Spec: spec("exec cat"),
		Lease:   jail.Lease{Index: 3, Addr: netip.MustParseAddr("10.99.0.153"), UID: 1879100003},
		Process: jail.Process{PID: 42, Started: 99}, Root: "/run/x", NetNS: "/run/y",
		Created:  time.Date(2026, 1, 2, 3, 4, 5, 678901234, time.UTC),
		Deadline: time.Date(2026, 1, 2, 12, 4, 5, 0, time.UTC),
		Exit: &jail.Exit{Code: -1, Signal: "killed", Cause: jail.CauseMemory, Hit: []jail.LimitName{jail.LimitMemory},
			At: time.Date(2026, 1, 2, 4, 0, 0, 0, time.UTC)},
	}
}

func load(t testing.TB, j *FileJournal) ([]jail.Record, []jail.Name) {
	t.Helper()
	records, damaged, err := j.Load(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return records, damaged
}

func TestRecordsComeBackAsTheyWere(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "journal")
	j := openJournal(t, dir, nil)
	kept := record("atest00002")
	kept.Spec.Lifetime = jail.LifetimeKeep
	with := record("btest00001")
	with.Spec.HomeFiles = []jail.File{{Path: "cert9.db", Data: bytes.Repeat([]byte("secret"), 1000)}}
	with.Spec.Program.Env = map[string]string{"PASSWORD": "secret"}
	for _, r := range []jail.Record{with, kept} {
		if err := j.Put(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
	without := with
	without.Spec.HomeFiles, without.Spec.Program.Env = nil, nil
	records, damaged := load(t, j)
	if diff := cmp.Diff([]jail.Record{kept, without}, records, cmp.Comparer(func(a, b netip.Addr) bool { return a == b }), cmpopts.EquateEmpty()); diff != "" || len(damaged) > 0 {
		t.Errorf("records (-want +got):\n%s\ndamaged %v", diff, damaged)
	}
	data, err := os.ReadFile(filepath.Join(dir, "btest00001.json"))
	if err != nil || bytes.Contains(data, []byte("cert9")) {
		t.Errorf("the staged files are in the record: %v", err)
	}
	for path, want := range map[string]os.FileMode{dir: 0o700, filepath.Join(dir, "btest00001.json"): 0o600} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s has mode %v, want %v", path, info.Mode(), want)
		}
	}
	for range 2 { // deleting what is not there succeeds
		if err := j.Delete(t.Context(), "btest00001"); err != nil {
			t.Fatal(err)
		}
	}
	if records, _ := load(t, j); len(records) != 1 || records[0].Name != kept.Name {
		t.Errorf("after a delete: %v", records)
	}
}

func TestJournalRefusesNamesOfOthers(t *testing.T) {
	j := openJournal(t, filepath.Join(t.TempDir(), "journal"), nil)
	for _, name := range []jail.Name{"bxxxx00001", "../../../etc/passwd", "", "btest1"} {
		if err := j.Put(t.Context(), record(name)); err == nil {
			t.Errorf("put %q succeeds", name)
		}
		if err := j.Delete(t.Context(), name); err == nil {
			t.Errorf("delete %q succeeds", name)
		}
	}
}

func TestDamagedRecordsAreReportedAndForeignFilesLeftAlone(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "journal")
	var log bytes.Buffer
	j := openJournal(t, dir, slog.New(slog.NewTextHandler(&log, nil)))
	if err := j.Put(t.Context(), record("btest00001")); err != nil {
		t.Fatal(err)
	}
	good, err := os.ReadFile(filepath.Join(dir, "btest00001.json"))
	if err != nil {
		t.Fatal(err)
	}
	write := func(name string, data []byte) {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	bad := map[jail.Name][]byte{
		"btest00010": nil,
		"btest00011": good[:len(good)/2],
		"btest00012": bytes.ReplaceAll(good, []byte("btest00001"), []byte("btest00099")), // speaks of another
		"btest00013": bytes.ReplaceAll(bytes.ReplaceAll(good, []byte("btest00001"), []byte("btest00013")), []byte(`"version":1`), []byte(`"version":9`)),
		"btest00014": bytes.Repeat([]byte(" "), maxRecord+1),
		"btest00015": append(bytes.ReplaceAll(good, []byte("btest00001"), []byte("btest00015")), '{'),
		"btest00018": bytes.ReplaceAll(bytes.ReplaceAll(good, []byte("btest00001"), []byte("btest00018")), []byte(`"state":"started"`), []byte(`"state":""`)),
	}
	for name, data := range bad {
		write(string(name)+".json", data)
	}
	if err := unix.Mkfifo(filepath.Join(dir, "btest00016.json"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/etc/passwd", filepath.Join(dir, "btest00017.json")); err != nil {
		t.Fatal(err)
	}
	write("README", []byte("mine"))
	write("bxxxx00001.json", good) // of another installation
	records, damaged := load(t, j)
	if len(records) != 1 || records[0].Name != "btest00001" {
		t.Errorf("records: %v", records)
	}
	if len(damaged) != len(bad)+2 {
		t.Errorf("damaged: %v", damaged)
	}
	for _, name := range damaged {
		if err := j.Delete(t.Context(), name); err != nil {
			t.Errorf("delete the damaged %s: %v", name, err)
		}
	}
	if records, damaged := load(t, j); len(records) != 1 || len(damaged) != 0 {
		t.Errorf("after deleting: %v %v", records, damaged)
	}
	for _, name := range []string{"README", "bxxxx00001.json"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			t.Errorf("a foreign file is gone: %v", err)
		}
		if !strings.Contains(log.String(), name) {
			t.Errorf("nothing was logged of %s", name)
		}
	}
}

func TestThereIsOneJournalAtATime(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "journal")
	first := openJournal(t, dir, nil)
	if _, err := OpenJournal(dir, "test", nil); !hasCode(err, problem.Conflict) {
		t.Fatalf("a second journal opens: %v", err)
	}
	temp := filepath.Join(dir, ".btest00001.1.tmp")
	if err := os.WriteFile(temp, []byte("{"), 0o600); err != nil { // of a process that died while it wrote
		t.Fatal(err)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	openJournal(t, dir, nil)
	if _, err := os.Stat(temp); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("what a dead process left is there: %v", err)
	}
}

func TestAJournalThatOthersCanReadIsRefused(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "journal")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for mode, ok := range map[os.FileMode]bool{0o700: true, 0o750: false, 0o701: false} {
		if err := os.Chmod(dir, mode); err != nil {
			t.Fatal(err)
		}
		j, err := OpenJournal(dir, "test", nil)
		if (err == nil) != ok {
			t.Errorf("mode %v: %v", mode, err)
		}
		if err == nil {
			_ = j.Close()
		}
	}
}

func BenchmarkJournalPut(b *testing.B) {
	for _, lifetime := range []jail.Lifetime{jail.LifetimeOwner, jail.LifetimeKeep} {
		b.Run(string(lifetime), func(b *testing.B) {
			j := openJournal(b, filepath.Join(b.TempDir(), "journal"), nil)
			r := record("btest00001")
			r.Spec.Lifetime = lifetime
			for b.Loop() {
				if err := j.Put(b.Context(), r); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
