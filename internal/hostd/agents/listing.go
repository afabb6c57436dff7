package agents

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/clawjail/clawjail/internal/jail"
)

// changed says that the listing is another now. k.mu is held.
func (k *Keeper) changed() {
	k.version++
	if k.news != nil {
		close(k.news)
		k.news = nil
	}
}

// Kept implements jail.Keeper.
func (k *Keeper) Kept(ctx context.Context, after uint64, usage bool) (uint64, []jail.KeptStatus, error) {
	patience := time.NewTimer(time.Minute)
	defer patience.Stop()
	for {
		k.mu.Lock()
		if k.version != after || k.closed {
			break
		}
		if k.news == nil {
			k.news = make(chan struct{})
		}
		news := k.news
		k.mu.Unlock()
		select {
		case <-news:
			continue
		case <-k.background.Done():
		case <-patience.C:
		case <-ctx.Done():
		}
		k.mu.Lock()
		break
	}
	version := k.version
	all := make([]jail.KeptStatus, 0, len(k.agents))
	for _, key := range slices.Sorted(maps.Keys(k.agents)) {
		if a := k.agents[key]; !a.blank {
			all = append(all, a.report())
		}
	}
	k.mu.Unlock()
	if usage {
		k.measure(ctx, all)
	}
	return version, all, nil
}

// measure fills in what the jails that run consume. One that cannot be measured has ended, or is about to.
func (k *Keeper) measure(ctx context.Context, all []jail.KeptStatus) {
	eachOf(all, func(s *jail.KeptStatus) {
		if s.Jail == "" || s.Phase != jail.PhaseRunning {
			return
		}
		m, err := k.Maker(ctx, s.Jail.InContainer())
		if err != nil {
			return
		}
		if st, err := m.Inspect(ctx, s.Jail); err == nil {
			s.Usage, s.PID = &st.Usage, st.PID
		}
	})
}

// eachOf does something for each of a slice, some at a time.
func eachOf[T any](all []T, do func(*T)) {
	const atOnce = 8
	places := make(chan struct{}, atOnce)
	var working sync.WaitGroup
	for i := range all {
		places <- struct{}{}
		working.Go(func() {
			defer func() { <-places }()
			do(&all[i])
		})
	}
	working.Wait()
}

// CheckKept implements jail.Keeper.
func (k *Keeper) CheckKept(ctx context.Context, all []jail.Kept) ([]error, error) {
	type check struct {
		kept jail.Kept
		err  error
	}
	checks := make([]check, len(all))
	for i := range all {
		checks[i].kept = all[i]
	}
	eachOf(checks, func(c *check) {
		if c.err = Validate(c.kept); c.err != nil {
			return
		}
		m, err := k.Maker(ctx, c.kept.Spec.Image != "")
		if err == nil {
			err = m.Check(ctx, c.kept.Spec)
		}
		c.err = err
	})
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	errs := make([]error, len(all))
	for i := range checks {
		errs[i] = checks[i].err
	}
	return errs, nil
}
