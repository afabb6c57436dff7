//go:build unix

package browser

import (
	"strings"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/problem"
	"github.com/clawjail/clawjail/internal/testenv"
)

func testEventually(t testing.TB, condition func() bool) {
	t.Helper()
	testenv.Eventually(t, 10*time.Second, condition, "the condition of the test")
}

func TestAriaIsTheAccessibilityTreeWithUsableRefs(t *testing.T) {
	anyBuild(t, func(t *testing.T, build Build) {
		b, p := show(t, build, `<main><div><div><h1>News</h1></div></div><button id=b aria-description="does it">Go</button>
			<input value=typed aria-label=Field><div aria-hidden=true>hidden</div></main>`)
		got := take(t, b, Snapshot{Format: "aria"})
		find := func(role, name string) SnapshotNode {
			t.Helper()
			for _, node := range got.Nodes {
				if node.Role == role && node.Name == name {
					return node
				}
			}
			t.Fatalf("no %s %q in %+v", role, name, got.Nodes)
			return SnapshotNode{}
		}
		if got.Nodes[0].Role != "RootWebArea" || got.Nodes[0].Depth != 0 || got.Truncated ||
			got.Snapshot != "" || got.Stats.Refs != len(got.Nodes) {
			t.Errorf("%+v", got)
		}
		main, heading, button, field := find("main", ""), find("heading", "News"), find("button", "Go"), find("textbox", "Field")
		if main.Depth != 1 || heading.Depth != 2 || button.Depth != 2 || got.Stats.Interactive != 2 ||
			button.Description != "does it" || field.Value != "typed" {
			t.Errorf("%+v", got.Nodes)
		}
		for _, node := range got.Nodes {
			if strings.Contains(node.Name, "hidden") {
				t.Errorf("%+v", node)
			}
		}
		for node, tag := range map[string]string{button.Ref: "BUTTON", find("StaticText", "News").Ref: "H1", got.Nodes[0].Ref: "HTML"} {
			e, err := p.find(within(t, 5*time.Second), Where{Ref: node})
			if err != nil {
				t.Fatal(err)
			}
			var name string
			if err := e.call(within(t, 5*time.Second), `e => e.tagName`, &name); err != nil || name != tag {
				t.Errorf("%s is a %s, %v", node, name, err)
			}
			e.release()
		}
		// The same node keeps its ref, and a node that went away leaves one that fails.
		again := take(t, b, Snapshot{Format: "aria", Depth: 2})
		if again.Nodes[0].Ref != got.Nodes[0].Ref || len(again.Nodes) != 2 {
			t.Errorf("%+v", again.Nodes)
		}
		script(t, p, `b.remove()`)
		_, err := p.find(within(t, 5*time.Second), Where{Ref: button.Ref})
		wantCode(t, err, problem.StaleRef)
		visit(t, b, site+"/?2")
		take(t, b, Snapshot{Format: "aria"})
		for _, node := range got.Nodes {
			_, err := p.find(within(t, 5*time.Second), Where{Ref: node.Ref})
			wantCode(t, err, problem.StaleRef)
		}
	})
}

func TestAriaCutsWhatIsDeepBeforeWhatIsWide(t *testing.T) {
	b, _ := show(t, Shell, `<ul><li>`+strings.Repeat("<ul><li>", 30)+"deep"+strings.Repeat("</ul>", 31)+`<h1>Wide</h1>`)
	got := take(t, b, Snapshot{Format: "aria", Max: 10})
	if !got.Truncated || len(got.Nodes) != 10 || !strings.HasPrefix(got.Nodes[8].Name+got.Nodes[9].Name, "WideWide") {
		t.Errorf("%+v", got)
	}
	for i, node := range got.Nodes[1:] {
		if node.Depth > got.Nodes[i].Depth+1 {
			t.Errorf("%+v hangs nowhere", node)
		}
	}
}

func TestDOMSnapshotListsElementsAsTheyAre(t *testing.T) {
	b, _ := show(t, Shell, `<body id=top><p class="a b" onclick="x">One <b>two</b> three</p><a href="/x" title=t>l</a><input name=n type=password value=secret>
		<script>var secret</script><div style="display:none">hidden</div>`)
	got := take(t, b, Snapshot{Format: "domSnapshot", Selector: "body"})
	var lines []string
	for _, node := range got.Nodes {
		line := strings.Repeat(" ", node.Depth) + node.Tag + " " + node.Text
		for _, name := range []string{"id", "class", "href", "title", "name", "type", "value", "onclick"} {
			if value, ok := node.Attributes[name]; ok {
				line += " " + name + "=" + value
			}
		}
		lines = append(lines, line)
	}
	want := "body  id=top\n p One three class=a b\n  b two\n a l href=/x title=t\n input  name=n type=password\n script \n div hidden"
	if text := strings.Join(lines, "\n"); text != want || got.Truncated {
		t.Errorf("got:\n%s\nwant:\n%s", text, want)
	}
	if flat := take(t, b, Snapshot{Format: "domSnapshot", Selector: "body", Depth: 1}); len(flat.Nodes) != 1 || flat.Truncated {
		t.Errorf("%+v", flat)
	}
}
