package template

import (
	"bytes"
	"strings"
	"sync"

	"github.com/clawjail/clawjail/internal/base/texts"
)

// Progress is one step forward of a build, or a line that a tool has printed.
type Progress struct {
	// Stage is one of the Stage constants.
	Stage string
	// Done of Total, in units of Unit. Total is 0 where it is not known.
	Done, Total int64
	// Unit is "packages", "bytes", "files", or empty where nothing is counted.
	Unit string
	// Line is the last line that the tool at work has printed, or empty.
	Line string
}

// The stages of a build, in their order. A source has only those that apply to it.
const (
	StageWait      = "waiting for another build"
	StageBootstrap = "bootstrap" // the smallest Debian, by debootstrap
	StageIndex     = "index"     // the package lists, with the security suite
	StageDownload  = "download"  // packages
	StageInstall   = "install"   // packages, in the chroot
	StageFetch     = "fetch"     // layers of an image
	StageUnpack    = "unpack"    // an archive
	StageCopy      = "copy"      // a folder
	StageFinish    = "finish"    // clean, strip and check
	StageManifest  = "manifest"  // read every file
	StagePublish   = "publish"
)

// maxTail is how many lines of a tool's output an error carries, maxLine how much of one line.
const (
	maxTail = 20
	maxLine = 400
)

// output receives what tools print, hands it on as progress, and keeps the last lines for an error message.
type output struct {
	report func(Progress)
	parse  func(line string, p *Progress) (keep bool)

	mu      sync.Mutex
	partial []byte
	tail    []string
	current Progress
}

func newOutput(report func(Progress)) *output {
	if report == nil {
		report = func(Progress) {}
	}
	return &output{report: report}
}

// stage begins a stage. parse, when not nil, sees every line and may count with it; lines for which it returns false
// are a tool talking to us, not to people, and are not kept.
func (o *output) stage(name, unit string, total int64, parse func(line string, p *Progress) bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.partial, o.tail, o.parse = nil, nil, parse
	o.current = Progress{Stage: name, Unit: unit, Total: total}
	o.report(o.current)
}

// advance sets what is done in this stage.
func (o *output) advance(done int64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.current.Done = done
	o.report(o.current)
}

// Write implements io.Writer. Carriage returns end lines too: tools draw progress bars with them.
func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.partial = append(o.partial, p...)
	for {
		i := bytes.IndexAny(o.partial, "\r\n")
		if i < 0 {
			break
		}
		o.line(string(o.partial[:i]))
		o.partial = o.partial[i+1:]
	}
	if len(o.partial) > maxLine {
		o.line(string(o.partial))
		o.partial = nil
	}
	return len(p), nil
}

func (o *output) line(line string) {
	line = strings.TrimSpace(strings.ToValidUTF8(line, "?"))
	if line == "" {
		return
	}
	line = texts.Clip(line, maxLine)
	if o.parse == nil || o.parse(line, &o.current) {
		if len(o.tail) == maxTail {
			o.tail = o.tail[1:]
		}
		o.tail = append(o.tail, line)
		o.current.Line = line
	}
	o.report(o.current)
}

// lines are the last lines that were printed in this stage.
func (o *output) lines() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	if rest := strings.TrimSpace(string(o.partial)); rest != "" {
		o.line(rest)
		o.partial = nil
	}
	return append([]string(nil), o.tail...)
}

// stageName is the stage at work.
func (o *output) stageName() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.current.Stage
}
