package jail_test

import (
	"log/slog"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/jail/jailtest"
)

func TestWhichJailsShouldNotBe(t *testing.T) {
	const never = -time.Second
	ended := func(r *jail.Record) { r.Exit = &jail.Exit{At: r.Created} }
	for name, c := range map[string]struct {
		change  func(*jail.Record)
		awaited time.Duration // from the opening on; owners can come back then
		back    bool          // and theirs does
		after   time.Duration // that; or the opening
		want    string
	}{
		"it runs":                                {nil, 0, true, 50 * time.Minute, ""},
		"its time is over":                       {nil, 0, true, 61 * time.Minute, "its wall clock has run out"},
		"it has no limit, and the clock was set": {func(r *jail.Record) { r.Spec.Limits.WallClock = jail.MaxWallClock }, 0, true, 800 * 24 * time.Hour, ""},
		"it was made half":                       {func(r *jail.Record) { r.State = jail.StateCloned }, never, false, 0, "left in state cloned by a process that is gone"},
		"its owner is away":                      {nil, time.Minute, false, grace - 1, ""},
		"its owner is gone":                      {nil, time.Minute, false, grace, "its owner is gone"},
		"it is kept":                             {func(r *jail.Record) { ended(r); r.Spec.Lifetime = jail.LifetimeKeep }, 0, false, 50 * time.Minute, ""},
		"both have just ended":                   {ended, time.Minute, false, jail.EndedGrace - 1, ""},
		"both have ended":                        {ended, time.Minute, false, jail.EndedGrace, "its owner is gone and its program has ended"},
		"nobody can come back":                   {nil, never, false, 50 * time.Minute, ""},
		"nobody can come back and ask":           {ended, never, false, 50 * time.Minute, ""},
		"its owner came back late to ask":        {ended, time.Minute, true, grace - 1, ""},
		"its owner never asks":                   {ended, time.Minute, true, grace, "its program has ended and nobody destroyed it"},
	} {
		t.Run(name, func(t *testing.T) {
			now := time.Now()
			r := jail.Record{Name: "btest00001", State: jail.StateStarted, Owner: "me", Spec: spec(), Created: now, Deadline: now.Add(time.Hour)}
			if c.change != nil {
				c.change(&r)
			}
			journal := jailtest.NewMemory(jailtest.NewHost()).Options().Journal
			if err := journal.Put(t.Context(), r); err != nil {
				t.Fatal(err)
			}
			jails, err := jail.OpenRegistry(t.Context(), jail.RegistryOptions{
				Journal: journal, Log: slog.New(slog.DiscardHandler), Grace: grace, Now: func() time.Time { return now }})
			if err != nil {
				t.Fatal(err)
			}
			if c.awaited != never {
				now = now.Add(c.awaited)
				jails.AwaitOwners()
			}
			if c.back {
				jails.Found("me")
			}
			now = now.Add(c.after)
			got := ""
			for _, why := range jails.Overdue() {
				got = why.Text
			}
			if got != c.want {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
}
