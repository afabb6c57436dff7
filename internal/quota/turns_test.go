package quota

import (
	"context"
	"errors"
	"slices"
	"testing"
)

// workingOf are the tenants whose turn it is, of those who asked.
func workingOf(all []Waiter, names string) (out string) {
	for i, w := range all {
		select {
		case <-w.Come:
			out += names[i : i+1]
		default:
		}
	}
	return out
}

func TestTurnsGoRoundTenants(t *testing.T) {
	turns := NewTurns(1, nil)
	names := "aaaaaabbc"
	var all []Waiter
	for i := range names {
		all = append(all, turns.Wait(names[i:i+1]))
	}
	order := ""
	for range names {
		for i, w := range all {
			select {
			case <-w.Come:
				order += names[i : i+1]
				all[i].Come = nil
				defer w.Leave() // once more
				w.Leave()
			default:
				continue
			}
			break
		}
	}
	if want := "abcabaaaa"; order != want {
		t.Errorf("let in are %s, want %s", order, want)
	}
	if turns.count != 0 || len(turns.waiting)+len(turns.working)+len(turns.latest) != 0 {
		t.Errorf("%d work and %d wait, of nobody", turns.count, len(turns.waiting))
	}
}

func TestNoTenantHasAllTurns(t *testing.T) {
	tenants := 2
	turns := NewTurns(4, func(whole int64) int64 {
		if tenants == 1 {
			return whole
		}
		return whole * 8 / 10
	})
	names := "aaaaaa"
	var all []Waiter
	for range names {
		all = append(all, turns.Wait("a"))
	}
	if got := workingOf(all, names); got != "aaa" {
		t.Errorf("of one tenant %q work, want three of four", got)
	}
	leave, err := turns.Enter(t.Context(), "b") // does not wait for anybody of a
	if err != nil {
		t.Fatal(err)
	}
	full, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := turns.Enter(full, "c"); !errors.Is(err, context.Canceled) {
		t.Errorf("a fifth of four: %v", err)
	}
	leave()
	if got := workingOf(all, names); got != "aaa" {
		t.Errorf("of one tenant %q work", got)
	}
	tenants = 1
	all[5].Leave() // has not waited until the end
	all[0].Leave()
	if got := workingOf(all, names); got != "aaaaa" {
		t.Errorf("alone, a tenant has %q at work", got[1:])
	}
	for _, w := range slices.Backward(all) {
		w.Leave()
	}
	if turns.count != 0 || len(turns.waiting) != 0 {
		t.Errorf("%d work and %d wait, of nobody", turns.count, len(turns.waiting))
	}
}

func TestTenantsWithTurnsOfTheirOwnDoNotWaitForEachOther(t *testing.T) {
	turns := TurnsOfTenants(2)
	names := "aaabb"
	var all []Waiter
	for i := range names {
		all = append(all, turns.Wait(names[i:i+1]))
	}
	if got := workingOf(all, names); got != "aabb" {
		t.Errorf("%s work, want two of each", got)
	}
	gone := errors.New("has left")
	ctx, leave := context.WithCancelCause(t.Context())
	leave(gone)
	if _, err := turns.Enter(ctx, "a"); !errors.Is(err, gone) {
		t.Errorf("who does not wait until the end is told %v", err)
	}
	for _, w := range all {
		w.Leave()
	}
	if len(turns.waiting)+len(turns.working)+len(turns.latest) != 0 {
		t.Error("tenants are remembered of whom nobody works or waits")
	}
}
