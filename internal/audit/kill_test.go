package audit

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/audit/checkpoint"
	"github.com/clawjail/clawjail/internal/store/sqlite"
	"github.com/clawjail/clawjail/internal/testenv"
)

// The test binary runs itself to have a process to kill. The first variable says what the child is to do, and
// the second where.
const (
	childVariable = "CLAWJAIL_TEST_AUDIT_CHILD"
	childFolder   = "CLAWJAIL_TEST_AUDIT_FOLDER"
)

// With the suffix inTheMiddle a mode has each of the eight go on to the middle of a request, and stay there, after as many as
// heldAfter. By then allSeen requests were seen.
const (
	inTheMiddle = ", and stays in the middle"
	heldAfter   = 20
	allSeen     = 8 * (heldAfter + 1)
)

// openReal opens a log on a real database and real files in a folder.
func openReal(dir string) (*sqlite.DB, *checkpoint.File, *checkpoint.Key, *Log, error) {
	ctx := context.Background()
	db, err := sqlite.Open(ctx, filepath.Join(dir, "db"))
	if err != nil {
		return nil, nil, nil, nil, err
	}
	file, err := checkpoint.OpenFile(filepath.Join(dir, "checkpoints"))
	if err != nil {
		return nil, nil, nil, nil, err
	}
	key, err := checkpoint.LoadKey(filepath.Join(dir, "key"))
	if err != nil {
		return nil, nil, nil, nil, err
	}
	l, err := Open(ctx, Options{
		Store: db, Node: "n1", SpillPath: filepath.Join(dir, "spill"), SpillSize: 256 << 10, Key: key, Checkpoints: file,
		CheckpointRows: 50, CheckpointEvery: 20 * time.Millisecond, RetryEvery: 10 * time.Millisecond,
	})
	return db, file, key, l, err
}

// child is what the killed process does. It counts upstream requests by writing one byte each to its standard output,
// which the parent reads: the bytes that are in the pipe outlive it.
func child(mode string) {
	mode, held := strings.CutSuffix(mode, inTheMiddle)
	_, _, _, l, err := openReal(os.Getenv(childFolder))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	var wait sync.WaitGroup
	for i := range 8 {
		wait.Go(func() {
			for n := 0; ; n++ {
				switch {
				case mode != "endings":
					request(l, mode == "acted first", held && n == heldAfter)
				case n < 30: // all of them have a place in the file
					p := l.BeginEnding(Intent{Action: "session.close", Session: fmt.Sprint(i)})
					fmt.Fprintln(os.Stdout, idOf(p))
				default:
					time.Sleep(time.Minute) // until it is killed
				}
			}
		})
	}
	wait.Wait()
}

// request acts and records. When it is held, it stays between the two, or between what it does and how that ended.
func request(l *Log, actFirst, held bool) {
	if actFirst {
		_, _ = os.Stdout.Write([]byte{'.'})
		if held {
			time.Sleep(time.Hour) // until it is killed
		}
	}
	p, err := l.Begin(context.Background(), Intent{Action: "request"})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	if !actFirst {
		_, _ = os.Stdout.Write([]byte{'.'})
		if held {
			time.Sleep(time.Hour) // likewise
		}
	}
	p.End(Outcome{Result: OK})
}

// killed runs a child until enough bytes came and some time more has passed, kills it, and returns all that it wrote.
func killed(t *testing.T, mode, dir string, enough int, after time.Duration) []byte {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^$")
	cmd.Env = append(os.Environ(), childVariable+"="+mode, childFolder+"="+dir)
	var said strings.Builder
	cmd.Stderr = &said
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	first := make([]byte, enough)
	_, readErr := io.ReadFull(out, first)
	kill := time.AfterFunc(after, func() { _ = cmd.Process.Kill() })
	defer kill.Stop()
	rest, err := io.ReadAll(out)
	if readErr != nil || err != nil {
		t.Fatalf("the child wrote too little: %v, %v: %s", readErr, err, said.String())
	}
	_ = cmd.Wait() // killed
	if said.Len() > 0 {
		t.Fatalf("the child says: %s", said.String())
	}
	return append(first, rest...)
}

// folder is a temporary folder whose checkpoints can be removed at the end.
func folder(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	t.Cleanup(func() { unprotect(t, filepath.Join(dir, "checkpoints")) })
	return dir
}

// inspect reopens the log after a kill, closes it, verifies it, and counts its rows by phase and result.
func inspect(t *testing.T, dir string) map[string]int {
	t.Helper()
	db, file, key, l, err := openReal(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	defer file.Close()
	if err := l.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	open, err := db.OpenIntents(t.Context(), "n1")
	if err != nil || len(open) != 0 {
		t.Fatalf("%d intents stay open, %v", len(open), err)
	}
	report, err := Verify(t.Context(), db, checkpoint.ReadFile(filepath.Join(dir, "checkpoints")), key.Keys())
	if err != nil || !report.OK() {
		t.Fatalf("the log of a killed process is bad: %v, %v", report.Bad(), err)
	}
	count := map[string]int{}
	for row, err := range db.WalkAudit(t.Context(), "n1", 1) {
		if err != nil {
			t.Fatal(err)
		}
		count[row.Phase+" "+row.Result]++
	}
	return count
}

func TestKilledAtAnyMomentNoRequestWasMadeWithoutARecord(t *testing.T) {
	dir := folder(t)
	seen, unknown := 0, 0
	rounds, dice := 12, testenv.Dice(t)
	if testing.Short() {
		rounds = 3
	}
	for round := range rounds {
		if round == 1 {
			seen += len(killed(t, "recorded first"+inTheMiddle, dir, allSeen, 0))
		} else {
			seen += len(killed(t, "recorded first", dir, 1+dice.IntN(200), soon(dice)))
		}
		count := inspect(t, dir)
		intents := count["intent "]
		if seen > intents {
			t.Fatalf("round %d: %d requests were seen, and %d are recorded", round, seen, intents)
		}
		if ok := count["outcome ok"]; ok > seen {
			t.Errorf("round %d: %d requests went well, and %d were seen", round, ok, seen)
		}
		if unknown = count["outcome unknown"]; count["outcome ok"]+unknown != intents {
			t.Errorf("round %d: %v", round, count)
		}
	}
	if unknown < 8 {
		t.Errorf("%d requests were under way when they were killed, want the eight that were held at least", unknown)
	}
	t.Logf("%d requests, %d of them without an outcome", seen, unknown)
}

// The one above would say nothing if it could not see a request that came before its record.
func TestARequestBeforeItsRecordIsSeen(t *testing.T) {
	dir := folder(t)
	seen := len(killed(t, "acted first"+inTheMiddle, dir, allSeen, 0))
	if recorded := inspect(t, dir)["intent "]; seen != allSeen || recorded != allSeen-8 {
		t.Errorf("%d requests were seen, and %d are recorded, want %d and %d", seen, recorded, allSeen, allSeen-8)
	}
}

// soon is a moment in which a few requests are made.
func soon(dice *rand.Rand) time.Duration { return time.Duration(dice.IntN(20_000)) * time.Microsecond }

func readLines(data []byte) []string {
	var out []string
	for lines := bufio.NewScanner(strings.NewReader(string(data))); lines.Scan(); {
		if len(lines.Text()) == 26 { // the last one may be cut off
			out = append(out, lines.Text())
		}
	}
	return out
}
