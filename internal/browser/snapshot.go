package browser

import (
	"context"
	"time"

	"github.com/clawjail/clawjail/internal/problem"
)

// The formats of a snapshot.
const (
	formatAI   = "ai"
	formatAria = "aria"
	formatDOM  = "domSnapshot"
)

const (
	snapshotTimeout     = 20 * time.Second
	snapshotChars       = 40_000
	maxChars            = 500_000
	snapshotDepth       = 100
	snapshotNodes       = 500
	maxNodes            = 50_000
	efficient           = "efficient"
	efficientChars      = 8_000
	efficientDepth      = 6
	maxSnapshotSelector = 4 << 10
	minSnapshotMS       = 500
	maxSnapshotMS       = 120_000
	maxDOMDepth         = 1000
)

// Tool implements [Operation].
func (s Snapshot) Tool() string { return "snapshot" }

// Target implements [Operation].
func (s Snapshot) Target() string { return bounded(s.Selector, maxText) }

// Effect implements [Operation].
func (s Snapshot) Effect() Effect { return Looks }

// Limit implements [Operation].
func (s Snapshot) Limit() time.Duration { return limit(s.TimeoutMS, snapshotTimeout) }

// Result implements [Operation].
func (s Snapshot) Result() any { return new(SnapshotResult) }

// Validate implements [Operation].
func (s Snapshot) Validate() error {
	format := s.format()
	wrong := problem.ValidationError{Code: problem.BadRequest}
	between := func(name string, value, minimum, maximum int) {
		if value != 0 && (value < minimum || value > maximum) {
			wrong.Add(name, "must be from %d to %d", minimum, maximum)
		}
	}
	switch format {
	case formatAI:
	case formatAria, formatDOM:
		if s.Mode == efficient {
			wrong.Add("mode", "efficient goes with format ai only")
		}
		if s.Interactive || s.Compact || s.URLs || s.MaxChars != 0 {
			wrong.Add("format", "interactive, compact, urls and maxChars go with format ai only")
		}
		if format == formatAria && s.Selector != "" {
			wrong.Add("selector", "does not go with format aria")
		}
	default:
		wrong.Add("format", "must be ai, aria or domSnapshot")
	}
	if s.Mode != "" && s.Mode != efficient {
		wrong.Add("mode", "must be efficient, or left out")
	}
	if len(s.Selector) > maxSnapshotSelector {
		wrong.Add("selector", "is longer than %d bytes", maxSnapshotSelector)
	}
	between("limit", s.Max, 1, maxNodes)
	between("maxChars", s.MaxChars, 1, maxChars)
	between("depth", s.Depth, 1, snapshotDepth)
	between("timeoutMs", s.TimeoutMS, minSnapshotMS, maxSnapshotMS)
	return wrong.Err()
}

func (s Snapshot) format() string {
	if s.Format == "" {
		return formatAI
	}
	return s.Format
}

// Run implements [Operation]. It returns a [SnapshotResult].
func (s Snapshot) Run(ctx context.Context, b *Browser) (any, error) {
	p, err := b.tab(ctx, s.TargetID)
	if err != nil {
		return nil, err
	}
	result := SnapshotResult{OK: true, Format: s.format(), TargetID: p.handle()}
	switch result.Format {
	case formatAI:
		err = s.ai(ctx, p, &result)
	case formatAria:
		err = s.aria(ctx, p, &result)
	default:
		err = s.dom(ctx, p, &result)
	}
	if err != nil {
		return nil, explain(err, "take a snapshot")
	}
	if result.URL, result.Title, err = p.info(ctx); err != nil {
		return nil, explain(err, "take a snapshot")
	}
	result.Dialogs = p.takeDialogs()
	return result, nil
}

// share is the time that the page's walk may take, so that the answer comes before the operation is over.
func (s Snapshot) share() int64 { return s.Limit().Milliseconds() / 2 }

func (s Snapshot) nodes() int {
	if s.Max == 0 {
		return snapshotNodes
	}
	return s.Max
}
