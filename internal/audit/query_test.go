package audit

import (
	"context"
	"slices"
	"testing"
)

func TestListIsBounded(t *testing.T) {
	w := newFixture(t)
	l := w.open()
	for range MaxList + 5 {
		l.Note(Event{Action: "a"})
	}
	w.begin(l, "b")
	for _, limit := range []int{-1, 0, MaxList + 1} {
		rows, err := l.List(t.Context(), Filter{Limit: limit})
		if err != nil || len(rows) != MaxList {
			t.Errorf("limit %d: %d rows, %v", limit, len(rows), err)
		}
	}
	rows, err := l.List(t.Context(), Filter{Action: "b"})
	if err != nil || len(rows) != 1 {
		t.Errorf("%d rows, %v", len(rows), err)
	}
}

func TestTailFollowsWhatMatches(t *testing.T) {
	w := newFixture(t)
	l := w.open()
	for _, action := range []string{"session.one", "session.two", "grant.issue", "session.three"} {
		w.begin(l, action)
	}
	f := Filter{ActionPrefix: "session.", Limit: 2}
	var got []string
	for r, err := range l.Tail(t.Context(), f, false) {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, r.Action)
	}
	if want := []string{"session.two", "session.three"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	rows := make(chan string)
	ended := make(chan error, 1)
	go func() {
		for r, err := range l.Tail(ctx, f, true) {
			if err != nil {
				ended <- err
				return
			}
			rows <- r.Action
		}
		ended <- nil
	}()
	for _, want := range []string{"session.two", "session.three"} {
		if got := <-rows; got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	for _, action := range []string{"session.four", "grant.use", "session.five"} {
		w.begin(l, action)
	}
	for _, want := range []string{"session.four", "session.five"} {
		if got := <-rows; got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("the end of a tail is an error: %v", err)
	}
}
