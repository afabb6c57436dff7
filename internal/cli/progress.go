package cli

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
)

// barWidth is how many characters wide a bar is, and minBar the narrowest terminal that has one.
const (
	barWidth = 24
	minBar   = 60
)

// step is one step forward of something that takes long.
type step struct {
	// Stage is what is being done, in a word or two.
	Stage string
	// Done of Total, in units of Unit: "bytes", or what is counted. Total is 0 where nobody knows it.
	Done, Total int64
	Unit        string
	// Line is what else there is to say, such as the last line that a tool has printed.
	Line string
}

// progress shows how far something is: on a terminal one line that changes, with a bar where it is known how much there is
// to do, otherwise a line per stage.
type progress struct {
	write  func(string)
	now    func() time.Time
	width  int
	stage  string
	began  time.Time
	shown  time.Time
	onLine bool
}

func newProgress(w io.Writer, now func() time.Time) *progress {
	p := &progress{now: now, write: func(s string) {
		_, _ = w.Write([]byte(s)) // progress that nobody sees is no reason to stop
	}}
	if width, ok := terminal(w); ok {
		p.width = width
	}
	return p
}

// step is called for every step, one at a time.
func (p *progress) step(s step) {
	now := p.now()
	if s.Stage != p.stage {
		p.end()
		p.stage, p.began = s.Stage, now
		if p.width == 0 {
			p.write(s.Stage + "\n")
			return
		}
	}
	// Ten times a second is as fast as anybody reads.
	if p.width == 0 || now.Sub(p.shown) < 100*time.Millisecond {
		return
	}
	p.shown, p.onLine = now, true
	line := fmt.Sprintf("%-9s", s.Stage)
	if s.Total > 0 {
		if p.width >= minBar {
			line += " " + bar(s.Done, s.Total)
		}
		line += fmt.Sprintf(" %s of %s", amount(s.Done, s.Unit), amount(s.Total, s.Unit))
	}
	if s.Line != "" {
		line += "  " + printable(s.Line)
	}
	if r := []rune(line); len(r) >= p.width {
		line = string(r[:p.width-1])
	}
	p.write("\r\x1b[K" + line)
}

// bar is how much of something is done, as a picture and in percent.
func bar(done, total int64) string {
	part := min(max(float64(done)/float64(total), 0), 1)
	full := int(part * barWidth)
	return fmt.Sprintf("[%s%s] %3d %%", strings.Repeat("#", full), strings.Repeat(".", barWidth-full), int(part*100))
}

func amount(n int64, unit string) string {
	if unit == "bytes" {
		return size(n)
	}
	return strings.TrimSpace(strconv.FormatInt(n, 10) + " " + unit)
}

// end finishes the line of the stage that is shown.
func (p *progress) end() {
	if p.onLine {
		p.write(fmt.Sprintf("\r\x1b[K%s: %s\n", p.stage, p.now().Sub(p.began).Round(100*time.Millisecond)))
	}
	p.onLine = false
}
