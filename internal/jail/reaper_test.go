package jail_test

import (
	"context"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/jail/jailtest"
)

const grace = 30 * time.Second

// ownedJails is a host with jails of an owner. They have no process, so that a fake clock can go on.
func ownedJails(t *testing.T, count int) *jailtest.Memory {
	m := jailtest.NewMemory(jailtest.NewHost())
	for i := range count {
		r := jail.Record{Name: jail.Name(fmt.Sprintf("btest%05d", i)), State: jail.StateStarted, Owner: "me", Spec: spec(),
			Lease: jail.Lease{Index: -1}, Deadline: time.Now().Add(time.Hour)}
		if err := m.Options().Journal.Put(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
	return m
}

func expectJails(t *testing.T, l *jail.Lifecycle, want int) {
	t.Helper()
	if left, err := l.List(t.Context()); err != nil || len(left) != want {
		t.Fatalf("there are %d jails, want %d; %v", len(left), want, err)
	}
}

// Ending one jail can take half a minute.
func TestAnOwnerThatComesBackKeepsTheJailsThatAreNotEndedYet(t *testing.T) {
	for name, look := range map[string]func(*testing.T, *jail.Lifecycle){
		"reap": func(t *testing.T, l *jail.Lifecycle) {
			l.AwaitOwners()
			time.Sleep(grace)
			r, err := l.Reap(t.Context(), jail.ReapOptions{})
			if left, _ := l.List(t.Context()); err != nil || r.Jails != len(left) || len(r.Findings) != 3-len(left) {
				t.Errorf("%d jails are left, and the report is %+v, %v", len(left), r, err)
			}
		},
		"run": func(t *testing.T, l *jail.Lifecycle) {
			ctx, cancel := context.WithTimeout(t.Context(), grace+1500*time.Millisecond)
			defer cancel()
			l.Run(ctx)
		},
	} {
		for _, back := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s back=%t", name, back), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					var l *jail.Lifecycle
					l = newLifecycle(t, ownedJails(t, 3), func(o *jail.Options) {
						o.Grace = grace
						o.Barrier = func(jail.Step) {
							if back { // while the first is being ended
								l.Found("me")
							}
						}
					})
					look(t, l)
					if back {
						expectJails(t, l, 2)
					} else {
						expectJails(t, l, 0)
					}
				})
			})
		}
	}
}

// The host daemon takes connections after its first Reap, when Run begins.
func TestASlowStartTakesNothingOfAnOwnersGrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := ownedJails(t, 2)
		half := jail.Record{Name: "btest99999", State: jail.StateStopping, Owner: "me", Lease: jail.Lease{Index: -1}}
		ended := jail.Record{Name: "btest99998", State: jail.StateStarted, Owner: "me", Spec: spec(), Exit: &jail.Exit{At: time.Now()},
			Lease: jail.Lease{Index: -1}, Deadline: time.Now().Add(time.Hour)}
		for _, r := range []jail.Record{half, ended} {
			if err := m.Options().Journal.Put(t.Context(), r); err != nil {
				t.Fatal(err)
			}
		}
		slow := true
		l := newLifecycle(t, m, func(o *jail.Options) {
			o.Grace = grace
			o.Barrier = func(jail.Step) {
				if slow {
					time.Sleep(grace)
				}
				slow = false
			}
		})
		time.Sleep(grace) // before it, too
		if r, err := l.Reap(t.Context(), jail.ReapOptions{}); err != nil || len(r.Findings) != 1 || slow {
			t.Fatalf("%+v, %v", r, err)
		}
		running(t, l)
		time.Sleep(jail.EndedGrace - time.Second/2)
		expectJails(t, l, 3) // also the owner of the one that has ended may still ask how
		time.Sleep(grace - jail.EndedGrace - time.Second/2)
		expectJails(t, l, 2)
		time.Sleep(2 * time.Second)
		expectJails(t, l, 0) // and no more than the grace
	})
}

func TestAJailThatComesWhileOthersAreEndedIsNoStray(t *testing.T) {
	for _, comes := range []bool{false, true} {
		t.Run(fmt.Sprint(comes), func(t *testing.T) {
			m := ownedJails(t, 1)
			m.Host.Plant(jail.HostResource{Kind: jail.ResourceRuntimeState, Name: "btest00001", Index: -1, ID: "btest00001"})
			var l *jail.Lifecycle
			l = newLifecycle(t, m, func(o *jail.Options) {
				o.Now = func() time.Time { return time.Unix(7_000_000_000, 0) } // by which the next jail has the number 1
				o.Barrier = func(jail.Step) {
					if !comes { // while the one whose time is over is being ended
						return
					}
					comes = false
					j, err := l.Create(t.Context(), spec())
					if err != nil || j.Name != "btest00001" {
						t.Errorf("%+v, %v", j, err)
						return
					}
					t.Cleanup(j.Stdio.Close)
				}
			})
			want := 2
			if comes {
				want = 1
			}
			if r, err := l.Reap(t.Context(), jail.ReapOptions{}); err != nil || len(r.Findings) != want {
				t.Errorf("%+v, %v", r, err)
			}
			expectJails(t, l, 2-want)
			if err := l.Destroy(t.Context(), "btest00001"); err != nil {
				t.Error(err)
			}
		})
	}
}
