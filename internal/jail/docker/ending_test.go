//go:build linux

package docker

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/moby/moby/api/types/container"

	"github.com/clawjail/clawjail/internal/jail"
)

// listingEngine is the socket of an engine that lists containers, and has nothing else.
func listingEngine(t *testing.T, list func() []container.Summary) string {
	mux := http.NewServeMux()
	mux.HandleFunc("/_ping", func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Api-Version", "1.44") })
	mux.HandleFunc("/v1.44/containers/json", func(w http.ResponseWriter, _ *http.Request) {
		if err := json.NewEncoder(w).Encode(list()); err != nil {
			t.Error(err)
		}
	})
	return serveEngine(t, mux)
}

// openWith is a driver with started containers of an owner. They have no process, and nothing on the host.
func openWith(t *testing.T, count int, o Options) *Driver {
	journal := &memoryJournal{recs: map[jail.Name]jail.Record{}}
	for i := range count {
		name := jail.Name(fmt.Sprintf("cdzzz%05d", i))
		journal.recs[name] = jail.Record{Name: name, State: jail.StateStarted, Owner: "me", Spec: shell(jail.LifetimeOwner, `:`),
			Lease: jail.Lease{Index: -1}, Deadline: time.Now().Add(time.Hour)}
	}
	o.Installation, o.Port, o.Journal, o.RunDir, o.DataDir = "dzzz", 3000, journal, t.TempDir(), t.TempDir()
	d, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
	return d
}

func TestAnOwnerThatComesBackKeepsTheContainersThatAreNotEndedYet(t *testing.T) {
	for name, look := range map[string]func(*testing.T, *Driver){
		"reap": func(t *testing.T, d *Driver) {
			r, err := d.Reap(t.Context(), jail.ReapOptions{})
			if err != nil || r.Jails+len(r.Findings) != 3 {
				t.Errorf("%+v, %v", r, err)
			}
		},
		"run": func(t *testing.T, d *Driver) {
			scanned := d.o.Now()
			if err := d.look(t.Context(), &scanned); err == nil {
				t.Error("there is a network")
			}
		},
	} {
		for _, back := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s back=%t", name, back), func(t *testing.T) {
				var d *Driver
				now := time.Now()
				d = openWith(t, 3, Options{
					Socket: listingEngine(t, func() []container.Summary { return nil }), Now: func() time.Time { return now },
					Barrier: func(jail.Step) {
						if back { // while the first is being ended
							d.Found("me")
						}
					}})
				d.AwaitOwners()
				now = now.Add(d.o.Grace)
				look(t, d)
				left, err := d.List(t.Context())
				if want := map[bool]int{true: 2}[back]; err != nil || len(left) != want {
					t.Errorf("%d containers are left, want %d; %v", len(left), want, err)
				}
			})
		}
	}
}

func TestASlowStartTakesNothingOfAnOwnersGraceForContainers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := openWith(t, 2, Options{Socket: "/nonexistent/socket"})
		left := func(want int) {
			t.Helper()
			list, err := d.List(t.Context())
			// Without an engine a container that is being ended stays in the list.
			list = slices.DeleteFunc(list, func(s jail.Status) bool { return s.State == jail.StateStopping })
			if err != nil || len(list) != want {
				t.Fatalf("%d containers are left, want %d; %v", len(list), want, err)
			}
		}
		time.Sleep(d.o.Grace)
		var running sync.WaitGroup
		ctx, stop := context.WithCancel(t.Context())
		running.Go(func() { _ = d.Run(ctx) }) // it has no error
		defer running.Wait()
		defer stop()
		time.Sleep(d.o.Grace - time.Second)
		left(2)
		time.Sleep(3 * time.Second) // one look compares with the engine, which does not answer
		left(0)
	})
}

// A container that ends while the engine's answer is on its way is running in it.
func TestAContainerThatHasJustEndedWasNotStartedAgain(t *testing.T) {
	var d *Driver
	now := time.Now()
	runs := container.Summary{Names: []string{"/cdzzz00000"}, State: container.StateRunning, Labels: map[string]string{labelJail: "cdzzz00000"}}
	listed := 0
	d = openWith(t, 1, Options{Now: func() time.Time { return now }, Socket: listingEngine(t, func() []container.Summary {
		if listed++; listed == 1 {
			now = now.Add(time.Millisecond)
			e, _ := d.Lookup("cdzzz00000")
			e.Change(func(r *jail.Record) { r.Exit = &jail.Exit{At: now} })
		}
		return []container.Summary{runs}
	})})
	if r, err := d.Reap(t.Context(), jail.ReapOptions{}); err != nil || len(r.Findings) != 0 {
		t.Errorf("it has ended: %+v, %v", r, err)
	}
	now = now.Add(time.Millisecond)
	r, err := d.Reap(t.Context(), jail.ReapOptions{})
	if err != nil || len(r.Findings) != 1 || !strings.Contains(r.Findings[0].Reason, "started it again") {
		t.Errorf("it was started again: %+v, %v", r, err)
	}
}

// An engine that learns of a container's end before it learns that memory was the reason.
func TestAMemoryLimitThatIsToldLateIsToldOfTheContainer(t *testing.T) {
	for name, c := range map[string]struct {
		code   int
		memory bool
		ours   bool
		want   jail.Exit
		asked  func(int) bool
	}{
		"late":       {137, true, false, jail.Exit{Code: 137, Signal: "killed", Cause: jail.CauseMemory, Hit: []jail.LimitName{jail.LimitMemory}}, func(n int) bool { return n == 3 }},
		"of a child": {1, true, false, jail.Exit{Code: 1, Cause: jail.CauseExited, Hit: []jail.LimitName{jail.LimitMemory}}, func(n int) bool { return n == 3 }},
		"never":      {137, false, false, jail.Exit{Code: 137, Signal: "killed", Cause: jail.CauseExited}, func(n int) bool { return n > 3 }},
		"by us":      {137, true, true, jail.Exit{Code: 137, Signal: "killed", Cause: jail.CauseDestroyed}, func(n int) bool { return n == 1 }},
		"well":       {0, true, false, jail.Exit{Cause: jail.CauseExited}, func(n int) bool { return n == 1 }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			asked := 0
			mux := http.NewServeMux()
			mux.HandleFunc("/_ping", func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Api-Version", "1.44") })
			mux.HandleFunc("/v1.44/containers/cdzzz00000/wait", func(w http.ResponseWriter, _ *http.Request) {
				_, _ = fmt.Fprint(w, `{"StatusCode":137}`) // the caller reads what arrives
			})
			mux.HandleFunc("/v1.44/containers/cdzzz00000/json", func(w http.ResponseWriter, _ *http.Request) {
				asked++
				if err := json.NewEncoder(w).Encode(container.InspectResponse{
					State:  &container.State{ExitCode: c.code, OOMKilled: c.memory && asked == 3},
					Config: &container.Config{Labels: map[string]string{labelJail: "cdzzz00000"}},
				}); err != nil {
					t.Error(err)
				}
			})
			d := openWith(t, 1, Options{Socket: serveEngine(t, mux)})
			e, err := d.Lookup("cdzzz00000")
			if err != nil {
				t.Fatal(err)
			}
			if c.ours {
				e.SetCause(jail.CauseDestroyed)
			}
			d.watch(e)
			<-e.Ended()
			x := *e.Record().Exit
			x.At = time.Time{}
			if !reflect.DeepEqual(x, c.want) || !c.asked(asked) {
				t.Errorf("%+v, want %+v; asked %d times", x, c.want, asked)
			}
		})
	}
}
