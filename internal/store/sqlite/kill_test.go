package sqlite_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"testing"

	"github.com/clawjail/clawjail/internal/store"
	"github.com/clawjail/clawjail/internal/store/sqlite"
)

// appender is the variable that turns this test binary into a process that appends rows to the database in a folder,
// and says which the store has confirmed, until it is killed.
const appender = "CLAWJAIL_TEST_APPENDER"

func TestMain(m *testing.M) {
	dir := os.Getenv(appender)
	if dir == "" {
		os.Exit(m.Run())
	}
	fmt.Fprintln(os.Stderr, appendForever(context.Background(), dir))
	os.Exit(1)
}

func appendForever(ctx context.Context, dir string) error {
	db, err := sqlite.Open(ctx, dir)
	if err != nil {
		return err
	}
	for seq := int64(1); ; {
		rows := []store.AuditRow{row("n1", seq), row("n1", seq+1), row("n1", seq+2)}
		if err := db.AppendAudit(ctx, rows); err != nil {
			return err
		}
		seq += int64(len(rows))
		fmt.Println(seq - 1)
	}
}

// TestConfirmedAuditRowsSurviveAKill: all that was confirmed before a SIGKILL is there, in whole batches, without a
// gap; and the log goes on.
func TestConfirmedAuditRowsSurviveAKill(t *testing.T) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, after := range []int{1, 20, 77, 150} {
		dir := t.TempDir()
		cmd := exec.Command(exe)
		cmd.Env = append(os.Environ(), appender+"="+dir)
		cmd.Stderr = os.Stderr
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		confirmed := int64(0)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			if confirmed, err = strconv.ParseInt(lines.Text(), 10, 64); err != nil {
				t.Fatal(err)
			}
			// It goes on while the signal is on its way, and what it says until then counts too.
			if after--; after == 0 {
				if err := cmd.Process.Kill(); err != nil {
					t.Fatal(err)
				}
			}
		}
		if err := cmd.Wait(); err == nil || err.Error() != "signal: killed" {
			t.Fatalf("the process ended by itself: %v", err)
		}

		db := open(t, dir)
		count := int64(0)
		for r, err := range db.WalkAudit(t.Context(), "n1", 1) {
			if err != nil {
				t.Fatal(err)
			}
			if count++; r.Seq != count {
				t.Fatalf("row %d has the seq %d", count, r.Seq)
			}
		}
		if count < confirmed || count%3 != 0 {
			t.Errorf("%d rows were confirmed, and %d are there", confirmed, count)
		}
		if err := db.AppendAudit(t.Context(), []store.AuditRow{row("n1", count+1)}); err != nil {
			t.Error(err)
		}
	}
}
