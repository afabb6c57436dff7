//go:build unix

package browser

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// BenchmarkLiveInputToFrame is from a key to the frame that shows what it wrote, on a page of text that stands still.
func BenchmarkLiveInputToFrame(b *testing.B) {
	for _, build := range []Build{Shell, Full} {
		b.Run(string(build), func(b *testing.B) {
			page := `<title>text</title><body><textarea autofocus rows=4 cols=80></textarea>` + strings.Repeat("<p>some lines of text that stand still</p>", 40)
			browser := liveSite(b, build, map[string]string{"/": page})
			if _, err := browser.Navigate(b.Context(), site+"/"); err != nil {
				b.Fatal(err)
			}
			takeOver(b, browser)
			read(b, browser, "document.querySelector('textarea').focus()")
			// The caret blinks, which makes frames of its own.
			read(b, browser, "document.querySelector('textarea').style.caretColor = 'transparent'")
			v := browser.Live().Watch()
			defer v.Close()
			settleFrames(b, v)
			var took []time.Duration
			for b.Loop() {
				started := time.Now()
				give(b, browser, LiveInput{Type: "keydown", Key: "a", Code: "KeyA"})
				nextFrame(b, v, func(*Frame) bool { return true })
				took = append(took, time.Since(started))
				b.StopTimer()
				give(b, browser, LiveInput{Type: "keyup", Key: "a", Code: "KeyA"})
				settleFrames(b, v)
				b.StartTimer()
			}
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "ms-median")
			b.ReportMetric(float64(took[len(took)*95/100].Microseconds())/1000, "ms-p95")
		})
	}
}

// settleFrames draws frames until none comes for a moment.
func settleFrames(b *testing.B, v *Viewer) {
	b.Helper()
	for {
		frames := make(chan bool, 1)
		go func() {
			ctx := within(b, 30*time.Millisecond)
			frame, state, _ := v.Next(ctx)
			frames <- frame != nil || state != nil
		}()
		if !<-frames {
			return
		}
		v.Shown()
	}
}

// BenchmarkLiveIdle is what a page that stands still costs while it is watched, in percent of a core, beside what it costs
// while it is not.
func BenchmarkLiveIdle(b *testing.B) {
	const watched = 4 * time.Second
	for _, build := range []Build{Shell, Full} {
		b.Run(string(build), func(b *testing.B) {
			pages := newGateway(b, tinySite(nil))
			conn, process, o := launch(b, build, pages.URL)
			browser, err := Open(b.Context(), conn)
			if err != nil {
				b.Fatal(err)
			}
			defer browser.Close(b.Context())
			_ = process
			if _, err := browser.Navigate(b.Context(), site+"/"); err != nil {
				b.Fatal(err)
			}
			time.Sleep(quiet)
			for b.Loop() {
				before := ticks(b, o.ProfileDir)
				time.Sleep(watched)
				alone := ticks(b, o.ProfileDir) - before
				v := browser.Live().Watch()
				settleFrames(b, v)
				before = ticks(b, o.ProfileDir)
				time.Sleep(watched)
				looked := ticks(b, o.ProfileDir) - before
				v.Close()
				b.ReportMetric(float64(alone)/watched.Seconds(), "%core-alone")
				b.ReportMetric(float64(looked)/watched.Seconds(), "%core-watched")
			}
		})
	}
}

// ticks is the processor time of all processes of a browser, in hundredths of a second: they are those whose command line names
// its profile, and their children.
func ticks(b *testing.B, profile string) (total int) {
	b.Helper()
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		b.Fatal(err)
	}
	parents, used, ours := map[int]int{}, map[int]int{}, map[int]bool{}
	for _, name := range stats {
		raw, err := os.ReadFile(name)
		if err != nil {
			continue // it has ended
		}
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(name)))
		fields := strings.Fields(string(raw[strings.LastIndexByte(string(raw), ')')+2:]))
		parents[pid], _ = strconv.Atoi(fields[1])
		user, _ := strconv.Atoi(fields[11])
		system, _ := strconv.Atoi(fields[12])
		used[pid] = user + system
		line, _ := os.ReadFile(filepath.Dir(name) + "/cmdline")
		ours[pid] = strings.Contains(string(line), "--user-data-dir="+profile)
	}
	for pid := range used {
		for up := pid; up > 1; up = parents[up] {
			if ours[up] {
				total += used[pid]
				break
			}
		}
	}
	if total == 0 {
		b.Fatal("the browser's processes were not found")
	}
	return total
}
