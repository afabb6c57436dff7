package browser

import "context"

// domOptions is what the page is asked for; see inpage/dom.js.
type domOptions struct {
	Selector string `json:"selector,omitempty"`
	Nodes    int    `json:"nodes"`
	Depth    int    `json:"depth"`
	MS       int64  `json:"ms"`
}

// dom lists the elements of the main frame as they are in the document.
func (s Snapshot) dom(ctx context.Context, p *Page, result *SnapshotResult) error {
	options := domOptions{Selector: s.Selector, Nodes: s.nodes(), Depth: maxDOMDepth, MS: s.share()}
	if s.Depth != 0 {
		options.Depth = s.Depth - 1
	}
	var answer struct {
		Bad, None bool
		Nodes     []SnapshotNode
		Truncated bool
		Chars     int
	}
	if err := p.mainFrame().ask(ctx, remake, "dom", &answer, options); err != nil {
		return err
	}
	if err := p.mainFrame().confirms(ctx, s.Selector); err != nil {
		return err
	}
	switch {
	case answer.Bad:
		return badSelector(s.Selector)
	case answer.None:
		return noMatch(s.Selector)
	}
	result.Nodes, result.Truncated = answer.Nodes, answer.Truncated
	result.Stats = SnapshotStats{Lines: len(answer.Nodes), Chars: answer.Chars}
	return nil
}
