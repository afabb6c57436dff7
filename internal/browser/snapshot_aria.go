package browser

import (
	"context"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/chromedp/cdproto/accessibility"

	"github.com/clawjail/clawjail/internal/cdp"
)

const (
	// wholeTree is the number of elements up to which the accessibility tree is fetched all the way down. For a larger
	// document it is fetched to the depth that has no more: the browser takes a minute for a hundred thousand.
	wholeTree = 20_000
	// maxNodeText bounds a name, a value and a description, in bytes.
	maxNodeText = 2000
	// maxTreeText bounds those of all nodes together.
	maxTreeText = 4 << 20
)

// axNode is what is read of a node of the protocol's; the rest, which is most, is skipped.
type axNode struct {
	NodeID      string   `json:"nodeId"`
	Ignored     bool     `json:"ignored"`
	Role        axValue  `json:"role"`
	Name        axValue  `json:"name"`
	Value       axValue  `json:"value"`
	Description axValue  `json:"description"`
	ParentID    string   `json:"parentId"`
	ChildIDs    []string `json:"childIds"`
	Backend     int64    `json:"backendDOMNodeId"`
}

type axValue struct {
	Value jsontext.Value `json:"value"`
}

// text is a value as a text, cut.
func (v axValue) text() string {
	if len(v.Value) == 0 {
		return ""
	}
	if v.Value.Kind() != '"' {
		return bounded(string(v.Value), 100)
	}
	var text string
	if err := cdp.Decode(v.Value, &text); err != nil {
		return ""
	}
	return bounded(text, maxNodeText)
}

// aria takes the accessibility tree of the main frame. A node that the tree ignores is folded: its children hang where it
// would.
func (s Snapshot) aria(ctx context.Context, p *Page, result *SnapshotResult) error {
	f := p.mainFrame()
	// The registry says later whether the document is still the one whose nodes these are.
	var page struct {
		Depth   int64
		Secrets []string
	}
	if err := f.ask(ctx, remake, "about", &page, wholeTree); err != nil {
		return err
	}
	secrets := make(masker, len(page.Secrets))
	for _, value := range page.Secrets {
		secrets[bounded(value, maxNodeText)] = true
	}
	maximum, depth := s.nodes(), snapshotDepth
	if s.Depth != 0 {
		depth = s.Depth
	}
	params := accessibility.GetFullAXTreeParams{}
	if page.Depth > 0 {
		params.Depth = &page.Depth
	}
	var answer struct {
		Nodes []axNode `json:"nodes"`
	}
	var raw jsontext.Value
	if err := p.session.Call(ctx, accessibility.CommandGetFullAXTree, params, &raw); err != nil {
		return err
	}
	if err := cdp.Decode(p.b.clean(raw), &answer); err != nil {
		return err
	}
	tree := newAXTree(answer.Nodes)
	chosen := tree.choose(maximum, depth)
	result.Truncated = page.Depth > 0 || chosen.cut
	p.view.mu.Lock()
	defer p.view.mu.Unlock()
	result.Nodes = tree.list(chosen, secrets, p.view.ax.number)
	for _, node := range result.Nodes {
		result.Stats.Chars += len(node.Name) + len(node.Value) + len(node.Description)
		if usableRole(node.Role) {
			result.Stats.Interactive++
		}
	}
	result.Stats.Lines, result.Stats.Refs = len(result.Nodes), len(result.Nodes)
	return nil
}

// accessible is a tree of nodes, by their place in the list.
type accessible struct {
	nodes []axNode
	index map[string]int
	root  int
}

func newAXTree(nodes []axNode) *accessible {
	t := &accessible{nodes: nodes, index: make(map[string]int, len(nodes)), root: -1}
	for i := range nodes {
		t.index[nodes[i].NodeID] = i
		if nodes[i].ParentID == "" && t.root < 0 {
			t.root = i
		}
	}
	return t
}

// chosen are the nodes that are shown, with their depths.
type chosen struct {
	depth map[int]int
	cut   bool // there are more
}

// choose takes nodes level by level, so that a bound cuts what is deep before what is wide.
func (t *accessible) choose(maximum, depth int) chosen {
	out := chosen{depth: make(map[int]int)}
	if t.root < 0 {
		return out
	}
	type entry struct{ node, depth int }
	queue, seen := []entry{{t.root, 0}}, make(map[int]bool)
	for len(queue) > 0 {
		at := queue[0]
		queue = queue[1:]
		if seen[at.node] {
			continue
		}
		seen[at.node] = true
		node, below := &t.nodes[at.node], at.depth
		if !folded(node) {
			if at.depth >= depth {
				continue
			}
			if len(out.depth) >= maximum {
				out.cut = true
				return out
			}
			out.depth[at.node] = at.depth
			below++
		}
		for _, id := range node.ChildIDs {
			if child, ok := t.index[id]; ok {
				queue = append(queue, entry{child, below})
			}
		}
	}
	return out
}

// folded says that a node is not shown itself.
func folded(node *axNode) bool {
	if node.Ignored {
		return true
	}
	switch node.Role.text() {
	case "InlineTextBox", "none":
		return true
	case "generic":
		return node.Name.text() == ""
	}
	return false
}

// list writes the chosen nodes in document order. number gives a node its ref.
func (t *accessible) list(chosen chosen, secrets masker, number func(node int64) int) []SnapshotNode {
	out := make([]SnapshotNode, 0, len(chosen.depth))
	if t.root < 0 {
		return out
	}
	stack, seen, left := []int{t.root}, make(map[int]bool), maxTreeText
	for len(stack) > 0 && len(out) < len(chosen.depth) {
		at := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		if seen[at] {
			continue
		}
		seen[at] = true
		node := &t.nodes[at]
		if depth, ok := chosen.depth[at]; ok {
			shown := SnapshotNode{
				Ref:  ref{ax: true, number: number(node.Backend)}.String(),
				Role: bounded(node.Role.text(), 100), BackendDOMNodeID: node.Backend, Depth: depth,
			}
			if left > 0 {
				shown.Name, shown.Description = secrets.text(node.Name), secrets.text(node.Description)
				shown.Value = secrets.text(node.Value)
				left -= len(shown.Name) + len(shown.Value) + len(shown.Description)
			}
			out = append(out, shown)
		}
		for i := len(node.ChildIDs) - 1; i >= 0; i-- {
			if child, ok := t.index[node.ChildIDs[i]]; ok {
				stack = append(stack, child)
			}
		}
	}
	return out
}

// masker takes the values of secret fields out of a tree. The browser gives a dot for every character of a password,
// and that tells how many there are; what a page shows of it, and fields that it only calls passwords, the browser
// gives as they are.
type masker map[string]bool

func (m masker) text(v axValue) string {
	text := v.text()
	if m[text] || strings.Trim(text, "•") == "" {
		return ""
	}
	for strings.Contains(text, "••") {
		text = strings.ReplaceAll(text, "••", "•")
	}
	return text
}

// usableRole says that something can be done with what has the role.
func usableRole(role string) bool {
	switch role {
	case "button", "checkbox", "combobox", "gridcell", "link", "listbox", "menuitem", "menuitemcheckbox",
		"menuitemradio", "option", "radio", "searchbox", "slider", "spinbutton", "switch", "tab", "textbox", "treeitem":
		return true
	}
	return false
}
