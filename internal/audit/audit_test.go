package audit

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/clawjail/clawjail/internal/audit/checkpoint"
	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/store"
)

func TestAnIntentIsInTheDatabaseWhenBeginReturnsAndItsOutcomeFollows(t *testing.T) {
	w := newFixture(t)
	l := w.open()
	p, err := l.Begin(t.Context(), Intent{
		Action: "session.open", Tenant: "default", Actor: "operator:1", Session: "s1", Target: "https://u:p@example.com:8443/a?code=1#f",
		Detail: NewDetail(Fields{"domains": []string{"example.com"}, "cookie_count": 3}),
	})
	if err != nil {
		t.Fatal(err)
	}
	rows := w.store.all()
	wantRows(t, rows, "intent session.open ")
	if r := rows[0]; r.ID != idOf(p) || r.Seq != 1 || r.Target != "https://example.com:8443/a" ||
		string(r.Detail) != `{"cookie_count":3,"domains":["example.com"]}` {
		t.Errorf("got %+v", r)
	}
	p.End(Outcome{Result: Refused, Jail: "b00001"})
	p.End(Outcome{Result: OK}) // too late
	w.close(l)
	rows = w.store.all()
	wantRows(t, rows, "intent session.open ", "outcome session.open refused")
	if r := rows[1]; r.Ref != idOf(p) || r.Actor != "operator:1" || r.Session != "s1" || r.Jail != "b00001" {
		t.Errorf("got %+v", r)
	}
	w.sound()
	if n := w.verify().Nodes[0]; n.Covered != 2 || n.Uncovered != 0 {
		t.Errorf("a log that was closed has a checkpoint of its last row: %+v", n)
	}
}

func TestWithoutARecordThereIsNoAction(t *testing.T) {
	w := newFixture(t)
	l := w.open()
	w.store.set(func(m *memory) { m.full = true })
	for range 2 {
		_, err := l.Begin(t.Context(), Intent{Action: "a"})
		wantCode(t, err, problem.AuditUnavailable)
		if p, _ := problem.As(err); p == nil || p.Hint == "" || problem.Status(p.Code) != 503 {
			t.Errorf("got %#v", p)
		}
		wantCode(t, l.Event(t.Context(), Event{Action: "e"}), problem.AuditUnavailable)
	}
	if s := l.Status(); !s.Down || s.Err == nil || s.Broken {
		t.Errorf("status %+v", s)
	}
	w.store.set(func(m *memory) { m.full = false })
	w.begin(l, "b").End(Outcome{Result: OK})
	if l.Status().Down {
		t.Error("still down")
	}
	w.close(l)
	wantRows(t, w.store.all(), "intent b ", "outcome b ok")
	w.sound()
}

func TestWhatCannotBeRecordedAsItIsIsRefused(t *testing.T) {
	w := newFixture(t)
	l := w.open()
	for name, i := range map[string]Intent{
		"no action": {}, "action": {Action: "Session Open"}, "NUL": {Action: "a", Actor: "x\x00"}, "line": {Action: "a", Jail: "x\ny"},
		"not UTF-8": {Action: "a", Target: "\xff"}, "long": {Action: "a", Tenant: strings.Repeat("x", 200)},
		"detail": {Action: "a", Detail: NewDetail(Fields{"password": "x"})},
	} {
		if _, err := l.Begin(t.Context(), i); err == nil {
			t.Errorf("%s: it is recorded", name)
		}
	}
	// An ending must happen, so it is recorded as far as it can be.
	l.BeginEnding(Intent{Action: "session.close", Session: "s1", Actor: "x\x00", Detail: NewDetail(Fields{"password": "hunter2"})}).
		End(Outcome{Result: "strange", Detail: NewDetail(Fields{"x": day})})
	w.close(l)
	rows := w.store.all()
	wantRows(t, rows, "intent session.close ", "outcome session.close unknown")
	for _, r := range rows {
		if !strings.Contains(string(r.Detail), "left_out") || strings.Contains(string(r.Detail), "hunter2") || r.Session != "s1" || r.Actor != "" {
			t.Errorf("got %+v", r)
		}
	}
}

func TestWhatIsQueuedIsOneTransaction(t *testing.T) {
	w := newFixture(t)
	l := w.open()
	w.store.set(func(m *memory) { m.entered, m.release = make(chan struct{}), make(chan struct{}) })
	l.Note(Event{Action: "first"})
	<-w.store.entered
	const many = 2*groupRows + 10
	for range many {
		l.Note(Event{Action: "more"})
	}
	release := w.store.release
	w.store.set(func(m *memory) { m.release = nil })
	close(release)
	w.close(l)
	if want := []int{1, groupRows, groupRows, 10}; !slices.Equal(w.store.groups, want) {
		t.Errorf("transactions of %v rows, want %v", w.store.groups, want)
	}
	w.sound()
}

func TestManyCallersMakeOneChain(t *testing.T) {
	w := newFixture(t)
	l := w.open()
	var wait sync.WaitGroup
	for range 32 {
		wait.Go(func() {
			for range 20 {
				p, err := l.Begin(t.Context(), Intent{Action: "a"})
				if err != nil {
					t.Error(err)
					return
				}
				p.End(Outcome{Result: OK})
			}
		})
	}
	wait.Wait()
	w.close(l)
	if n := w.verify().Nodes[0]; n.Rows != 2*32*20 || n.Bad != nil || n.To != n.Rows {
		t.Errorf("got %+v", n)
	}
}

func TestACallerThatLeavesDoesNotAct(t *testing.T) {
	w := newFixture(t)
	l := w.open()
	w.store.set(func(m *memory) { m.entered, m.release = make(chan struct{}), make(chan struct{}) })
	ctx, cancel := context.WithCancel(t.Context())
	answer := make(chan error)
	go func() {
		_, err := l.Begin(ctx, Intent{Action: "written"})
		answer <- err
	}()
	<-w.store.entered // being written
	go func() {
		_, err := l.Begin(ctx, Intent{Action: "queued"})
		answer <- err
	}()
	cancel()
	for range 2 {
		if err := <-answer; !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
	}
	release := w.store.release
	w.store.set(func(m *memory) { m.release = nil })
	close(release)
	w.close(l)
	wantRows(t, w.store.all(), "intent written ", "outcome written failed")
	if _, err := l.Begin(t.Context(), Intent{Action: "a"}); problem.CodeOf(err) != problem.ShuttingDown {
		t.Errorf("after Close: %v", err)
	}
}

func TestARecordThatWasWrittenWithoutAWordIsFound(t *testing.T) {
	for _, readable := range []bool{true, false} {
		w := newFixture(t)
		l := w.open()
		w.begin(l, "before").End(Outcome{Result: OK})
		w.store.set(func(m *memory) { m.silent, m.mute = true, !readable })
		_, err := l.Begin(t.Context(), Intent{Action: "doubtful"})
		if readable {
			if err != nil {
				t.Errorf("the row is there, and Begin says %v", err)
			}
		} else {
			wantCode(t, err, problem.AuditUnavailable)
		}
		w.store.set(func(m *memory) { m.mute = false })
		w.begin(l, "after").End(Outcome{Result: OK})
		w.close(l)
		w.sound()
		rows := phases(w.store.all())
		if told := slices.Contains(rows, "outcome doubtful failed"); told == readable || !slices.Contains(rows, "intent doubtful ") {
			t.Errorf("readable %v: %q", readable, rows)
		}
	}
}

// What a transaction says of lost records is not said again by the next one, which began before the first was known to be there.
func TestLostRecordsAreToldOnceByATransactionThatEndsAfterItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(t)
		l := w.open()
		l.writer.lost.Store(3)
		w.store.set(func(m *memory) { m.stall = true })
		_, err := l.Begin(t.Context(), Intent{Action: "doubtful"})
		wantCode(t, err, problem.AuditUnavailable)
		w.store.set(func(m *memory) { m.stall, m.rows = false, append(m.rows, m.stalled...) })
		w.begin(l, "after").End(Outcome{Result: OK})
		w.close(l)
		w.sound()
		told := 0
		for _, row := range w.store.all() {
			if row.Action == actionLost {
				told++
			}
		}
		if lost := l.writer.lost.Load(); told != 1 || lost != 0 {
			t.Errorf("told %d times, and %d are left to tell", told, lost)
		}
	})
}

// A server that waits for its disk has not undone a transaction because nobody waits for the server any more.
func TestATransactionThatEndsAfterItsTimeIsOurs(t *testing.T) {
	for name, finish := range map[string]func(*memory){
		"it comes":        func(m *memory) { m.stall, m.rows = false, append(m.rows, m.stalled...) },
		"it comes undone": func(m *memory) { m.stall = false },
		// The server comes back between the look and the writing, so that the rows are sent twice.
		"it comes while it is sent again": func(m *memory) {
			m.stall, m.beforeAppend = false, func() { m.rows, m.beforeAppend = append(m.rows, m.stalled...), nil }
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newFixture(t)
				l := w.open()
				w.begin(l, "before").End(Outcome{Result: OK})
				w.settled(l, 2)
				w.store.set(func(m *memory) { m.stall = true })
				for _, action := range []string{"doubtful", "waiting"} {
					_, err := l.Begin(t.Context(), Intent{Action: action})
					wantCode(t, err, problem.AuditUnavailable)
				}
				closing := l.BeginEnding(Intent{Action: "session.close"})
				w.store.set(finish)
				w.begin(l, "after").End(Outcome{Result: OK})
				closing.End(Outcome{Result: OK})
				w.close(l)
				w.sound()
				rows := phases(w.store.all())
				slices.Sort(rows)
				want := []string{"intent after ", "intent before ", "intent doubtful ", "intent session.close ",
					"outcome after ok", "outcome before ok", "outcome doubtful failed", "outcome session.close ok"}
				if !slices.Equal(rows, want) {
					t.Errorf("got %q\nwant %q", rows, want)
				}
			})
		})
	}
}

func TestRowsOfSomebodyElseStopTheLog(t *testing.T) {
	w := newFixture(t)
	l := w.open()
	w.begin(l, "a").End(Outcome{Result: OK})
	w.close(l)
	l = w.open()
	forged := w.store.all()[1]
	forged.Seq, forged.ID = 3, "forged"
	w.store.set(func(m *memory) { m.rows = append(m.rows, forged) })
	for range 2 {
		_, err := l.Begin(t.Context(), Intent{Action: "b"})
		wantCode(t, err, problem.AuditBroken)
	}
	// It stays so, whatever the database says later.
	w.store.set(func(m *memory) { m.rows = m.rows[:2] })
	if _, err := l.Begin(t.Context(), Intent{Action: "c"}); problem.CodeOf(err) != problem.AuditBroken {
		t.Errorf("it went on: %v", err)
	}
	w.store.set(func(m *memory) { m.rows = append(m.rows, forged) })
	if !l.Status().Broken {
		t.Errorf("status %+v", l.Status())
	}
	l.BeginEnding(Intent{Action: "session.close"}).End(Outcome{Result: OK})
	w.close(l)
	if len(w.store.all()) != 3 {
		t.Error("the log went on behind a row that is not its own")
	}
}

func TestEndingsGoOnAndJoinLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(t)
		l := w.open()
		open := w.begin(l, "session.open")
		w.store.set(func(m *memory) { m.full = true })
		began := time.Now()
		for range 3 {
			l.BeginEnding(Intent{Action: "session.close", Session: "s1"}).End(Outcome{Result: OK})
			time.Sleep(300 * time.Millisecond)
		}
		open.End(Outcome{Result: Failed})
		l.Note(Event{Action: "host.denied", Result: Refused})
		time.Sleep(linger)
		synctest.Wait()
		if s := l.Status(); !s.Down || s.Spilled != 8 || s.Lost != 0 {
			t.Fatalf("status %+v", s)
		}
		time.Sleep(5 * time.Second)
		w.store.set(func(m *memory) { m.full = false })
		time.Sleep(2 * time.Second) // it tries by itself
		synctest.Wait()
		if s := l.Status(); s.Down || s.Spilled != 0 {
			t.Errorf("status %+v", s)
		}
		rows := w.store.all()
		wantRows(t, rows, "intent session.open ", "intent session.close ", "outcome session.close ok", "intent session.close ",
			"outcome session.close ok", "intent session.close ", "outcome session.close ok", "outcome session.open failed", "event host.denied refused")
		for i, r := range rows[1:] {
			want := began.Add(time.Duration(min(i/2*300, 900)) * time.Millisecond).UTC()
			if !r.Time.Equal(want) || !strings.Contains(string(r.Detail), `"spilled_at":"`+want.Format(timeFormat)) {
				t.Errorf("row %d is of %v, %s, want %v", r.Seq, r.Time, r.Detail, want)
			}
		}
		w.close(l)
		w.sound()
	})
}

func TestAnEndingDoesNotWaitForADatabaseThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(t)
		l := w.open()
		w.store.set(func(m *memory) { m.hang = true })
		start := time.Now()
		p := l.BeginEnding(Intent{Action: "session.close"})
		if took := time.Since(start); took > time.Second {
			t.Errorf("it waited for %v", took)
		}
		p.End(Outcome{Result: OK})
		start = time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := l.Begin(ctx, Intent{Action: "a"}); !errors.Is(err, context.DeadlineExceeded) || time.Since(start) > 2*time.Second {
			t.Errorf("Begin: %v after %v", err, time.Since(start))
		}
		w.store.set(func(m *memory) { m.hang = false })
		time.Sleep(10 * time.Second)
		synctest.Wait()
		wantRows(t, w.store.all(), "intent session.close ", "outcome session.close ok")
		w.close(l)
		w.sound()
	})
}

func TestARecordInTheFileThatTheDatabaseHasTooJoinsOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(t)
		l := w.open()
		w.store.set(func(m *memory) { m.entered, m.release = make(chan struct{}, 1), make(chan struct{}) })
		p := l.BeginEnding(Intent{Action: "session.close"}) // the database is slow: it goes to the file too
		p.End(Outcome{Result: OK})
		release := w.store.release
		w.store.set(func(m *memory) { m.release = nil })
		if l.Status().Spilled != 1 {
			t.Fatalf("status %+v", l.Status())
		}
		close(release)
		synctest.Wait()
		w.close(l)
		wantRows(t, w.store.all(), "intent session.close ", "outcome session.close ok")
		w.sound()
	})
}

func TestWhatFindsNoPlaceIsCounted(t *testing.T) {
	w := newFixture(t)
	w.options.QueueRows = 4
	l := w.open()
	w.store.set(func(m *memory) { m.entered, m.release = make(chan struct{}), make(chan struct{}) })
	l.Note(Event{Action: "first"})
	<-w.store.entered
	for range 10 {
		l.Note(Event{Action: "more"})
	}
	release := w.store.release
	w.store.set(func(m *memory) { m.release = nil })
	close(release)
	w.close(l)
	rows := w.store.all()
	wantRows(t, rows, "event first ok", "event more ok", "event more ok", "event more ok", "event more ok", "event audit.lost failed")
	if last := rows[len(rows)-1]; string(last.Detail) != `{"count":6}` {
		t.Errorf("got %s", last.Detail)
	}

	// In the file the oldest stay, notes do not take the place of endings, and the number survives a restart.
	w = newFixture(t)
	l = w.open()
	w.store.set(func(m *memory) { m.full = true })
	const many = 400
	for range many {
		l.Note(Event{Action: "note"})
		l.BeginEnding(Intent{Action: "session.close"}).End(Outcome{Result: OK})
	}
	w.close(l)
	w.store.set(func(m *memory) { m.full = false })
	w.close(w.open())
	count := map[string]int{}
	var lost struct{ Count int }
	for _, r := range w.store.all() {
		count[r.Action]++
		if r.Action == actionLost {
			if err := json.Unmarshal(r.Detail, &lost); err != nil {
				t.Fatal(err)
			}
		}
	}
	open := 0
	for _, r := range w.store.all() {
		if r.Result == string(Unknown) {
			open++ // written by recovery, and not in the file
		}
	}
	if got := count["note"] + count["session.close"] - open + lost.Count; count[actionLost] != 1 || got != 3*many {
		t.Errorf("%v and %d lost: %d in all, want %d", count, lost.Count, got, 3*many)
	}
	if count["note"] == 0 || count["session.close"] < 2*count["note"] {
		t.Errorf("%v: notes took the place of endings", count)
	}
	w.sound()
}

func TestTimeDoesNotGoBack(t *testing.T) {
	w := newFixture(t)
	var mu sync.Mutex
	now := day
	w.options.Now = func() time.Time { mu.Lock(); defer mu.Unlock(); return now }
	move := func(d time.Duration) { mu.Lock(); defer mu.Unlock(); now = now.Add(d) }
	l := w.open()
	w.begin(l, "a")
	move(-time.Minute)
	w.begin(l, "b")
	w.begin(l, "c")
	move(2 * time.Minute)
	w.begin(l, "d")
	move(-500 * time.Millisecond) // less than callers may differ
	w.begin(l, "e")
	w.close(l)
	rows := w.store.all()
	wantRows(t, rows, "intent a ", "event audit.clock ok", "intent b ", "intent c ", "intent d ", "intent e ")
	if !strings.HasPrefix(string(rows[1].Detail), `{"behind_ms":60000,`) || !rows[3].Time.Equal(day) || !rows[4].Time.Equal(day.Add(time.Minute)) ||
		!rows[5].Time.Equal(rows[4].Time) {
		t.Errorf("got %+v", rows)
	}
	for n, r := range rows { // those made before it had caught up say what the clock said
		if said := strings.Contains(string(r.Detail), `"clock_at":"`+day.Add(-time.Minute).Format(timeFormat)); said != (n >= 1 && n <= 3) {
			t.Errorf("row %d has %s", n, r.Detail)
		}
	}
	w.sound()
}

func TestRecoveryClosesWhatWasUnderWay(t *testing.T) {
	w := newFixture(t)
	l := w.open()
	for range 3 {
		w.begin(l, "session.open")
	}
	w.begin(l, "grant.issue").End(Outcome{Result: OK})
	w.close(l) // the three say nothing: the process is as good as dead
	asked := 0
	w.options.Settle = func(_ context.Context, intent Row) (Outcome, bool) {
		asked++
		return Outcome{Result: OK}, intent.Seq == 2
	}
	w.close(w.open())
	w.close(w.open())
	if asked != 3 {
		t.Errorf("asked about %d intents, want 3", asked)
	}
	rows := w.store.all()
	wantRows(t, rows[5:], "outcome session.open unknown", "outcome session.open ok", "outcome session.open unknown")
	if rows[5].Ref != rows[0].ID || rows[6].Ref != rows[1].ID {
		t.Error("an outcome belongs to another intent")
	}
	w.sound()
}

func TestAnOutcomeInTheFileIsNotUnknown(t *testing.T) {
	w := newFixture(t)
	l := w.open()
	p := w.begin(l, "session.open")
	w.store.set(func(m *memory) { m.full = true })
	p.End(Outcome{Result: Refused})
	w.close(l)
	wantRows(t, w.store.all(), "intent session.open ")
	if _, err := Open(t.Context(), w.options); problem.CodeOf(err) != problem.AuditUnavailable {
		t.Errorf("a log whose file cannot join is open: %v", err)
	}
	w.store.set(func(m *memory) { m.full = false })
	w.close(w.open())
	wantRows(t, w.store.all(), "intent session.open ", "outcome session.open refused")
	w.sound()
}

// adding puts something into the file while the number of lost records is being written.
type adding struct {
	*memory
	add func()
}

func (a *adding) AppendAudit(ctx context.Context, rows []store.AuditRow) error {
	if add := a.add; add != nil && rows[0].Action == actionLost {
		a.add = nil
		add()
	}
	return a.memory.AppendAudit(ctx, rows)
}

func TestALostRecordIsCountedOnce(t *testing.T) {
	w := newFixture(t)
	db := &adding{memory: w.store}
	w.options.Store = db
	l := w.open()
	w.store.set(func(m *memory) { m.full = true })
	for l.Status().Lost < 3 {
		l.BeginEnding(Intent{Action: "session.close"})
	}
	w.close(l)
	sp, err := openSpill(w.options.SpillPath, minSpill, "n1")
	if err != nil {
		t.Fatal(err)
	}
	defer sp.close()
	db.add = func() { _ = sp.add(spillRow(newID(day)), kindEnding) } // one more that finds no place
	w.store.set(func(m *memory) { m.full = false })
	o := w.options.withDefaults()
	held, err := newRecordQuota(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	wr := newWriter(o, head{}, newQueue(1), sp, newNoter(w.options), newBroadcast(), held)
	defer wr.cancel()
	if err := wr.join(); err != nil {
		t.Fatal(err)
	}
	var counts []string
	for _, r := range w.store.all() {
		if r.Action == actionLost {
			counts = append(counts, string(r.Detail))
		}
	}
	if want := []string{`{"count":3}`, `{"count":1}`}; !slices.Equal(counts, want) || sp.waiting() {
		t.Errorf("got %q, want %q", counts, want)
	}
}

func TestABrokenHeadIsNotContinued(t *testing.T) {
	for name, change := range map[string]func(rows []store.AuditRow){
		"edited":        func(rows []store.AuditRow) { rows[len(rows)-1].Target = "other" },
		"edited before": func(rows []store.AuditRow) { rows[len(rows)-5].Actor = "other" },
		"no hash":       func(rows []store.AuditRow) { rows[len(rows)-1].Hash = nil },
		"goes back":     func(rows []store.AuditRow) { rows[4].Time = rows[4].Time.Add(-time.Hour); rehash(rows, 4) },
	} {
		w := newFixture(t)
		l := w.open()
		for range 5 {
			w.begin(l, "a").End(Outcome{Result: OK})
		}
		w.close(l)
		w.store.set(func(m *memory) { change(m.rows) })
		_, err := Open(t.Context(), w.options)
		if problem.CodeOf(err) != problem.AuditBroken {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestANodeHasOneWriter(t *testing.T) {
	w := newFixture(t)
	l := w.open()
	_, err := Open(t.Context(), w.options)
	wantCode(t, err, problem.Conflict)
	w.close(l)
	w.options.Node = "n2"
	if _, err := Open(t.Context(), w.options); err == nil || !strings.Contains(err.Error(), "n1") {
		t.Errorf("the file of another node is taken: %v", err)
	}
	w.options.Node = "n1"
	w.close(w.open())
	if err := os.WriteFile(w.options.SpillPath, []byte("something else"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(t.Context(), w.options); err == nil {
		t.Error("a file that is something else is taken")
	}
	if got, _ := os.ReadFile(w.options.SpillPath); string(got) != "something else" {
		t.Error("a file that is something else is overwritten")
	}
}

func TestOptionsSayEverythingThatIsWrong(t *testing.T) {
	err := Options{SpillSize: 1, QueueRows: -1}.Validate()
	for _, want := range []string{"database", "node", "file for what", "key", "spill file must", "negative"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q does not speak of %q", err, want)
		}
	}
}

func TestCheckpointsComeInTimeAndWithMuch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(t)
		w.options.CheckpointRows = 10
		l := w.open()
		count := func() (n int) {
			for range w.keeper.notes() {
				n++
			}
			return n
		}
		w.begin(l, "a")
		synctest.Wait()
		if got := count(); got != 0 {
			t.Errorf("%d checkpoints at once", got)
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if got := count(); got != 1 || l.Status().Noted != 1 {
			t.Errorf("%d checkpoints after a second, %+v", got, l.Status())
		}
		time.Sleep(time.Minute + time.Second/2)
		if got := count(); got != 1 {
			t.Errorf("%d checkpoints of nothing new", got)
		}
		for range 10 {
			w.begin(l, "b")
		}
		synctest.Wait()
		if got := count(); got != 2 || l.Status().Noted != 11 {
			t.Errorf("%d checkpoints of many rows, %+v", got, l.Status())
		}
		w.keeper.set(true)
		w.begin(l, "c")
		time.Sleep(3 * time.Second)
		synctest.Wait()
		if s := l.Status(); s.Noted != 11 || s.Down {
			t.Errorf("status %+v", s)
		}
		w.keeper.set(false)
		time.Sleep(time.Second)
		synctest.Wait()
		if s := l.Status(); s.Noted != 12 {
			t.Errorf("status %+v", s)
		}
		w.close(l)
		w.sound()
	})
}

func TestTheFileKeeperTakesWhatTheLogSigns(t *testing.T) {
	w := newFixture(t)
	path := filepath.Join(t.TempDir(), "checkpoints")
	file, err := checkpoint.OpenFile(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = file.Close(); unprotect(t, path) })
	w.options.Checkpoints = file
	l := w.open()
	w.begin(l, "a").End(Outcome{Result: OK})
	w.close(l)
	report, err := Verify(t.Context(), w.store, checkpoint.ReadFile(path), w.options.Key.Keys())
	if err != nil || !report.OK() || report.Nodes[0].Covered != 2 {
		t.Errorf("%+v %v", report, err)
	}
}

// An outcome for which nobody waits must not make the next intent wait for a transaction of its own.
func TestOutcomesGoWithTheNextIntent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newFixture(t)
		l := w.open()
		transactions := func() (n int) {
			w.store.set(func(m *memory) { n = len(m.groups) })
			return n
		}
		before := transactions()
		for range 10 {
			w.begin(l, "gateway.forward").End(Outcome{Result: OK})
			synctest.Wait() // the writer has seen the outcome
		}
		if n := transactions() - before; n != 10 {
			t.Errorf("10 intents took %d transactions", n)
		}
		if n := len(w.store.all()); n != 19 {
			t.Errorf("%d rows", n)
		}
		time.Sleep(linger)
		synctest.Wait()
		if n := len(w.store.all()); n != 20 {
			t.Errorf("%d rows after a moment: the last outcome waits for company", n)
		}
		w.close(l)
	})
}
