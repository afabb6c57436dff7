//go:build unix

package browser

import (
	"context"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/clawjail/clawjail/internal/problem"
)

func TestSnapshotOfAHugePageIsCutAndSaysSo(t *testing.T) {
	b, p := show(t, Shell, `<h1>Huge</h1><div id=all></div>`)
	script(t, p, `for (let i = 0; i < 15000; i++) {
		const item = document.createElement('li');
		item.append(Object.assign(document.createElement('a'), {href: '/' + i, textContent: 'link ' + i}));
		all.append(item);
	}`)
	got := take(t, b, Snapshot{})
	mark := strings.LastIndex(got.Snapshot, "\n")
	if last := got.Snapshot[mark+1:]; !got.Truncated || !strings.HasPrefix(last, "… truncated: ") ||
		!strings.HasSuffix(last, " characters shown; narrow it with selector, depth or interactive") {
		t.Errorf("truncated %v, the last line is %q", got.Truncated, last)
	}
	if shown := utf8.RuneCountInString(got.Snapshot[:mark]); shown > snapshotChars || shown < snapshotChars-100 {
		t.Errorf("%d characters are shown", shown)
	}
	if efficient := take(t, b, Snapshot{Mode: "efficient"}); !efficient.Truncated || efficient.Stats.Chars > efficientChars+150 {
		t.Errorf("%+v", efficient.Stats)
	}
	if few := take(t, b, Snapshot{MaxChars: 10}); !few.Truncated || few.Stats.Lines != 1 || few.Stats.Refs != 0 {
		t.Errorf("%+v", few)
	}
	for _, s := range []Snapshot{{Format: "aria"}, {Format: "domSnapshot"}, {Format: "domSnapshot", Max: 7}} {
		got := take(t, b, s)
		if maximum := s.nodes(); len(got.Nodes) > maximum || len(got.Nodes) < 2 || !got.Truncated {
			t.Errorf("%+v: %d nodes, truncated %v", s, len(got.Nodes), got.Truncated)
		}
	}
}

func TestSnapshotOfAHostilePageEnds(t *testing.T) {
	for name, js := range map[string]string{
		"huge texts": `const big = 'x '.repeat(1e5); document.body.append(big); document.body.innerHTML += '<button></button><input><a href=/></a><select><option></select>';
			document.querySelector('button').setAttribute('aria-label', big); document.querySelector('input').value = big; document.querySelector('a').title = big;
			document.querySelector('a').href = '/' + 'y'.repeat(1e6); document.querySelector('option').label = big`,
		"deep elements":     `let at = document.body; for (let i = 0; i < 3000; i++) { const d = document.createElement('span'); at.append(d); at = d } at.textContent = 'deep'`,
		"deep shadow roots": `let at = document.body; for (let i = 0; i < 1000; i++) { const d = document.createElement('div'); at.append(d); at = d.attachShadow({mode: 'open'}); at.append('s' + i) }`,
		"labels in circles": `document.body.innerHTML = '<div role=button id=x aria-labelledby="y x"></div><div role=button id=y aria-labelledby="x y"></div>' +
			'<div role=group aria-owns=o2 id=o1></div><div role=group aria-owns=o1 id=o2></div>'`,
		"names within names": `let html = ''; for (let i = 0; i < 300; i++) html += '<div role=button>' + 'w'.repeat(50); document.body.innerHTML = html`,
		"many options":       `document.body.innerHTML = '<select>' + '<option>o'.repeat(10000) + '</select>'`,
		"a slot for all":     `document.body.attachShadow({mode: 'open'}).innerHTML = '<slot></slot>'; for (let i = 0; i < 15000; i++) document.body.append(document.createElement('i'))`,
		"no document":        `document.documentElement.remove()`,
		"a frame in itself":  `document.body.innerHTML = '<iframe src="/"></iframe>'.repeat(50)`,
	} {
		t.Run(name, func(t *testing.T) {
			b, p := show(t, Shell, `<body>`)
			script(t, p, js)
			for _, s := range []Snapshot{{}, {URLs: true, Compact: true}, {Mode: "efficient"}, {Format: "aria"}, {Format: "domSnapshot"}} {
				got := take(t, b, s)
				if got.Stats.Chars > snapshotChars+150 && s.Format == "" {
					t.Errorf("%+v: %d characters", s, got.Stats.Chars)
				}
				for _, line := range strings.Split(got.Snapshot, "\n") {
					if text := strings.TrimLeft(line, " "); len(text) > 4*maxText {
						t.Errorf("a line of %d bytes", len(text))
					}
				}
			}
		})
	}
}

func TestSnapshotOfAPageThatHangsEndsWithItsLimit(t *testing.T) {
	b := openOwn(t, Shell, newGateway(t, pages(map[string]string{"/": `<button>x</button>`})).URL)
	p := visit(t, b, site+"/")
	take(t, b, Snapshot{})
	script(t, p, `setTimeout(() => { for (;;); }); 0`)
	for _, format := range []string{"ai", "aria", "domSnapshot"} {
		_, err := b.Do(context.Background(), Snapshot{Format: format, TimeoutMS: 700})
		wantCode(t, err, problem.Timeout)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 700*time.Millisecond)
	defer cancel()
	_, err := p.find(ctx, Where{Ref: "e1"})
	wantCode(t, err, problem.Timeout)
}

func TestSnapshotReportsDialogs(t *testing.T) {
	b, p := show(t, Shell, `<button>x</button>`)
	script(t, p, `setInterval(() => { alert('again') }, 1); 0`)
	testEventually(t, func() bool { return p.dialogsSeen() > 3 })
	if got := take(t, b, Snapshot{}); len(got.Dialogs) == 0 || got.Stats.Refs != 1 {
		t.Errorf("%+v", got)
	}
}

func TestSnapshotFollowsAPageThatNeverRests(t *testing.T) {
	b, p := show(t, Shell, `<button>x</button>`)
	for range 10 {
		script(t, p, `location.href = '/?' + Math.random(); 0`)
		got := take(t, b, Snapshot{})
		for _, ref := range p.refs() {
			e, err := p.find(within(t, 5*time.Second), Where{Ref: ref})
			if err == nil {
				e.release()
			} else if problem.CodeOf(err) != problem.StaleRef {
				t.Errorf("%v\n%s", err, got.Snapshot)
			}
		}
	}
}
