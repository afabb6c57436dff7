//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/clawjail/clawjail/internal/browser"
)

const (
	// watchedFor is how long a page is watched for what that costs, and idleRounds how often where a floor depends on it.
	watchedFor = 8 * time.Second
	idleRounds = 3
	// viewersAtOnce look at one session.
	viewersAtOnce = 4
	// calmAfter is how long a browser may take to come to rest.
	calmAfter = 3 * time.Second
)

// idleView is what one viewer of a page on which nobody does anything costs, beside what it costs alone.
func (b *bench) idleView(ctx context.Context, d *desk, session, page, name string, rounds int) (added float64, err error) {
	if _, err := d.api.Navigate(ctx, session, browser.Navigate{URL: b.site.address(page)}); err != nil {
		return 0, err
	}
	var without, with []cost
	pictures := 0
	for range rounds {
		calm()
		c, err := d.costs()
		if err != nil {
			return 0, err
		}
		without = append(without, c)
		w, err := d.watch(ctx, session)
		if err != nil {
			return 0, err
		}
		if _, err := w.next(ctx); err != nil {
			w.end()
			return 0, err
		}
		calm()
		before := len(w.pictures)
		c, err = d.costs()
		pictures += len(w.pictures) - before
		w.end()
		if err != nil {
			return 0, err
		}
		with = append(with, c)
	}
	withoutAt, withAt := middle(without), middle(with)
	b.result.Value(name+"jail, nobody watches", "% of a core", withoutAt.jail)
	b.result.Value(name+"jail, one viewer", "% of a core", withAt.jail)
	b.result.Value(name+"daemons, nobody watches", "% of a core", withoutAt.daemons)
	b.result.Value(name+"daemons, one viewer", "% of a core", withAt.daemons)
	b.result.Value(name+"pictures of one viewer", "1/s", float64(pictures)/float64(rounds)/watchedFor.Seconds())
	for _, who := range []string{"jail", "daemons"} {
		b.result.Beside(name+who+", one viewer", name+who+", nobody watches", "nobody watches")
	}
	return withAt.daemons + withAt.jail - withoutAt.daemons - withoutAt.jail, nil
}

// viewers is what a page that moves costs while some look at it. When the pictures of all are the same, they were made once.
func (b *bench) viewers(ctx context.Context, d *desk, session string, count int) error {
	var all []*watcher
	defer func() {
		for _, w := range all {
			w.end()
		}
	}()
	for range count {
		w, err := d.watch(ctx, session)
		if err != nil {
			return err
		}
		all = append(all, w)
		if _, err := w.next(ctx); err != nil {
			return err
		}
	}
	calm()
	for _, w := range all { // from here on they are counted
		for len(w.pictures) > 0 {
			<-w.pictures
		}
	}
	c, err := d.costs()
	if err != nil {
		return err
	}
	distinct, most := map[string]bool{}, 0
	for _, w := range all {
		n := len(w.pictures)
		most = max(most, n)
		for range n {
			distinct[(<-w.pictures).taken] = true
		}
	}
	if most == 0 {
		return errors.New("no picture came of a page that moves")
	}
	name := fmt.Sprintf("console: moving page, viewers: %d, ", count)
	b.result.Value(name+"jail", "% of a core", c.jail)
	b.result.Value(name+"daemons", "% of a core", c.daemons)
	b.result.Value(name+"pictures of one", "1/s", float64(most)/watchedFor.Seconds())
	if count > 1 {
		b.result.Value(name+"pictures of all, to those of one", "×", float64(len(distinct))/float64(most))
		b.result.AtMost(name+"pictures of all, to those of one", 1.2)
		const one = "console: moving page, viewers: 1, "
		b.result.Beside(name+"jail", one+"jail", "one viewer")
		b.result.Beside(name+"daemons", one+"daemons", "one viewer")
	}
	return nil
}

// cost is processor time in percent of a core.
type cost struct{ daemons, jail float64 }

// middle is the median of each, so that what a daemon does once in a while is not taken for what watching costs.
func middle(all []cost) cost {
	var daemons, jails []float64
	for _, c := range all {
		daemons, jails = append(daemons, c.daemons), append(jails, c.jail)
	}
	slices.Sort(daemons)
	slices.Sort(jails)
	return cost{daemons[len(daemons)/2], jails[len(jails)/2]}
}

// calm waits until a browser has come to rest after what has just begun.
func calm() { time.Sleep(calmAfter) }

// costs is what both daemons and all jails use for as long as a page is watched.
func (d *desk) costs() (cost, error) {
	began := time.Now()
	before, err := d.used()
	if err != nil {
		return cost{}, err
	}
	time.Sleep(watchedFor)
	after, err := d.used()
	took := time.Since(began).Seconds()
	return cost{(after.daemons - before.daemons) / took, (after.jail - before.jail) / took}, err
}

// used is the processor time of both daemons and all jails so far, in hundredths of a second.
func (d *desk) used() (out cost, err error) {
	daemons, err := d.Processes()
	if err != nil {
		return out, err
	}
	for _, pid := range daemons[1:] {
		out.daemons += ticks(fmt.Sprintf("/proc/%d", pid))
	}
	scope, err := d.Scope()
	if err != nil {
		return out, err
	}
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return out, err
	}
	for _, dir := range dirs {
		info, err := os.Stat(dir)
		if err != nil {
			continue // it has ended
		}
		if uid := info.Sys().(*syscall.Stat_t).Uid; uid >= scope.UIDBase && uid < scope.UIDBase+scope.UIDs {
			out.jail += ticks(dir)
		}
	}
	return out, nil
}

// ticks is the processor time of a process, in hundredths of a second; 0 when it has ended.
func ticks(dir string) (sum float64) {
	text, _ := os.ReadFile(filepath.Join(dir, "stat"))
	behind := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	if len(behind) < 13 {
		return 0
	}
	for _, field := range behind[11:13] { // utime and stime, see proc_pid_stat(5)
		n, _ := strconv.ParseFloat(field, 64) // the kernel writes numbers
		sum += n
	}
	return sum
}
