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

// charger is the same for charges of usage, of one request each.
const charger = "CLAWJAIL_TEST_CHARGER"

func TestMain(m *testing.M) {
	for variable, forever := range map[string]func(context.Context, string) error{appender: appendForever, charger: chargeForever} {
		if dir := os.Getenv(variable); dir != "" {
			fmt.Fprintln(os.Stderr, forever(context.Background(), dir))
			os.Exit(1)
		}
	}
	os.Exit(m.Run())
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

func chargeForever(ctx context.Context, dir string) error {
	db, err := sqlite.Open(ctx, dir)
	if err != nil {
		return err
	}
	for {
		now, charged, err := db.ChargeUsage(ctx, oneRequest(), store.UsageLimit{Tokens: 1 << 40})
		if err != nil || !charged {
			return fmt.Errorf("charged %v: %w", charged, err)
		}
		fmt.Println(now.Requests)
	}
}

func oneRequest() store.Usage {
	key := store.UsageKey{Tenant: store.DefaultTenant, Agent: "a1", Day: "2031-02-03"}
	return store.Usage{UsageKey: key, Requests: 1, InputTokens: 2, OutputTokens: 3, MicroCost: 4}
}

// killed starts this test binary as a process with a variable, kills it when it has confirmed something so many times, and
// returns the last number that it confirmed.
func killed(t *testing.T, variable, dir string, after int) (confirmed int64) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), variable+"="+dir)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
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
	return confirmed
}

// TestConfirmedChargesSurviveAKill: every one of them, and each wholly.
func TestConfirmedChargesSurviveAKill(t *testing.T) {
	for _, after := range []int{1, 20, 150} {
		dir := t.TempDir()
		confirmed := killed(t, charger, dir, after)
		list, err := open(t, dir).ListUsage(t.Context(), "", "2031-02-03")
		if err != nil || len(list) != 1 {
			t.Fatalf("%v, %v", list, err)
		}
		u := list[0]
		if u.Requests < confirmed || u.InputTokens != 2*u.Requests || u.OutputTokens != 3*u.Requests || u.MicroCost != 4*u.Requests {
			t.Errorf("%d charges were confirmed, and the row is %+v", confirmed, u)
		}
	}
}

// TestConfirmedAuditRowsSurviveAKill: all that was confirmed before a SIGKILL is there, in whole batches, without a
// gap; and the log goes on.
func TestConfirmedAuditRowsSurviveAKill(t *testing.T) {
	for _, after := range []int{1, 20, 77, 150} {
		dir := t.TempDir()
		confirmed := killed(t, appender, dir, after)
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
