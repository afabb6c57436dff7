package mcpserver

import (
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
	"pgregory.net/rapid"

	"github.com/clawjail/clawjail/internal/testenv/property"
)

func TestOfferedNames(t *testing.T) {
	for tool, want := range map[string]string{
		"read_file":             "files__read_file",
		"a":                     "files__a",
		"with space":            "files__with_space_",
		"ünï":                   "files___n__",
		"a/b.c":                 "files__a_b_c_",
		strings.Repeat("a", 57): "files__" + strings.Repeat("a", 57),
		strings.Repeat("a", 58): "files__" + strings.Repeat("a", 48) + "_",
	} {
		if got := offeredName("files", tool); !strings.HasPrefix(got, want) || len(got) > maxOffered || (got == want) != (len(want) >= 8 && want[len(want)-1] != '_') {
			t.Errorf("%q is offered as %q", tool, got)
		}
	}
}

func TestOfferedNamesAreGoodAndTellToolsApart(t *testing.T) {
	good := regexp.MustCompile(`^[a-zA-Z0-9_-]{1,64}$`)
	property.Check(t, func(t *rapid.T) {
		server := rapid.StringMatching(`[a-z0-9-]{1,20}`).Draw(t, "server")
		one, two := rapid.StringN(1, 80, 256).Draw(t, "one"), rapid.StringN(1, 80, 256).Draw(t, "two")
		name := offeredName(server, one)
		if !good.MatchString(name) || serverOf(name) != server || name != offeredName(server, one) || !Offered(name) {
			t.Fatalf("%q of %q is offered as %q", one, server, name)
		}
		if one != two && name == offeredName(server, two) {
			t.Fatalf("%q and %q are both offered as %q", one, two, name)
		}
	})
}

func TestWhatNobodySeesIsLeftOut(t *testing.T) {
	for _, r := range []rune{0x00AD, 0x034F, 0x061C, 0x115F, 0x1160, 0x17B4, 0x180B, 0x180F, 0x200D, 0x2065, 0x2800, 0x3164, 0xFE00, 0xFE0E, 0xFE0F, 0xFFA0, 0xFFF0,
		0x13441, 0x16FE4, 0x1BCA0, 0x1D159, 0x1D173, 0xE0001, 0xE0020, 0xE0100, 0xE01EF, 0xE0FFF, 0xE1000, 0x10FFFF, 0x0378} {
		if got := visible("a"+string(r)+string(r)+"b", 100); got != "ab" {
			t.Errorf("with U+%04X: %+q", r, got)
		}
		if properName("a" + string(r)) {
			t.Errorf("U+%04X is in a name", r)
		}
	}
	for text, want := range map[string]string{
		"naïve 東京 हिन्दी ไทย a\u0301 €½\n\tx": "naïve 東京 हिन्दी ไทย a\u0301 €½\n\tx",
		"\u2764\ufe0f 1\ufe0f\u20e3 ⚠\ufe0e":  "\u2764\ufe0f 1\ufe0f\u20e3 ⚠\ufe0e", // one selector behind a symbol
		"\u2764\ufe0f\ufe0e\ufe0f":            "\u2764\ufe0f",
		"\u2764\ufe01\ufe0f":                  "\u2764\ufe0f",
		"\ufe0fx\ufe0f":                       "x",
	} {
		if got := visible(text, 100); got != want {
			t.Errorf("%+q is shown as %+q, want %+q", text, got, want)
		}
	}
}

func FuzzCatalog(f *testing.F) {
	f.Add(`{"name":"a","description":"x","inputSchema":{"type":"object"}}`)
	f.Add(`{"name":"a\u0000b","title":"\u202e","inputSchema":{"type":"object","$ref":"http://x/","x-mcp-header":"Authorization"}}`)
	f.Add(`{"name":"` + strings.Repeat("long", 30) + `","inputSchema":[],"outputSchema":{"type":"object"},"annotations":{"title":"\u001b[31m"}}`)
	f.Fuzz(func(t *testing.T, text string) {
		var tool sdk.Tool
		if json.Unmarshal([]byte(text), &tool) != nil {
			return
		}
		for _, out := range newCatalog(files(), Offers{Tools: []*sdk.Tool{&tool, &tool}}).Tools {
			schema, ok := out.InputSchema.(json.RawMessage)
			if len(out.Name) > maxOffered || len(out.Description) > maxDescription+100 || !ok || len(schema) > maxSchema {
				t.Errorf("%q is offered as %q", text, out.Name)
			}
			if strings.ContainsFunc(out.Title+strings.NewReplacer("\n", "", "\t", "", string(asText), "", string(asPicture), "").Replace(out.Description), invisible) {
				t.Errorf("%q is described as %q, %q", text, out.Title, out.Description)
			}
		}
	})
}

func TestHostileToolsAreMadeHarmless(t *testing.T) {
	var list struct{ Tools []*sdk.Tool }
	text := fmt.Sprintf(`{"tools":[
		{"name":"plain","title":"T\u001b[2J","description":"one\r\ntwo\u202e\u200b\udb40\udc41\u0007","inputSchema":{"type":"object","description":"a\u0000b","properties":{"p\u0001":{"type":"string","$ref":"https://evil.test/s.json","x-mcp-header":"Authorization","x":{"$ref":"#/y"}}}}},
		{"name":"noschema","inputSchema":{"type":"array"}},
		{"name":"large","description":%q,"inputSchema":{"type":"object","description":%q},"outputSchema":{"type":"string"}},
		{"name":"","inputSchema":{"type":"object"}},
		{"name":"bad\nname","inputSchema":{"type":"object"}},
		{"name":"plain","inputSchema":{"type":"object"}}]}`, strings.Repeat("é", 2*maxDescription), strings.Repeat("x", maxSchema))
	if err := json.Unmarshal([]byte(text), &list); err != nil {
		t.Fatal(err)
	}
	c := newCatalog(files(), Offers{Tools: list.Tools})
	if len(c.Tools) != 3 || c.left != 3 {
		t.Fatalf("%d are offered, %d not", len(c.Tools), c.left)
	}
	plain := c.Tools[0]
	if plain.Title != "T[2J" || plain.Description != "one\ntwo" {
		t.Errorf("described as %q, %q", plain.Title, plain.Description)
	}
	if got := string(plain.InputSchema.(json.RawMessage)); got != `{"description":"ab","properties":{"p":{"type":"string","x":{"$ref":"#/y"}}},"type":"object"}` {
		t.Errorf("the schema is %s", got)
	}
	for _, tool := range c.Tools[1:] {
		if got := string(tool.InputSchema.(json.RawMessage)); got != `{"type":"object"}` || !strings.HasSuffix(tool.Description, "was left out]") || tool.OutputSchema != nil {
			t.Errorf("%s: %s %q %v", tool.Name, got, tool.Description, tool.OutputSchema)
		}
	}
	if n := len(c.Tools[2].Description); n > maxDescription+60 {
		t.Errorf("the description has %d bytes", n)
	}
}

func TestListsAreBounded(t *testing.T) {
	w := newFixture(t, files())
	w.behave = func(p *peer) {
		var tools []string
		for n := range 3 * maxTools {
			tools = append(tools, fmt.Sprintf(`{"name":"t%d","inputSchema":{"type":"object"}}`, n))
		}
		p.setTools(`{"tools":[` + strings.Join(tools, ",") + `],"nextCursor":"again"}`)
		p.serve(echo)
	}
	if got := w.names(agent()); len(got) != maxTools {
		t.Errorf("%d tools are offered", len(got))
	}
	if pages := w.peer(0).times("tools/list"); pages != 2 { // the same cursor twice is the end
		t.Errorf("%d pages were asked for", pages)
	}
}

func TestAnswersAreBoundedAndPassedOn(t *testing.T) {
	out := bounded(new(catalog), &sdk.CallToolResult{IsError: true, Meta: sdk.Meta{"x": "y"}, StructuredContent: map[string]any{"a": 1.0}, Content: []sdk.Content{
		&sdk.TextContent{Text: strings.Repeat("é", 300_000)}, &sdk.ImageContent{Data: []byte("png"), MIMEType: "image/png"},
		&sdk.AudioContent{Data: []byte("wav"), MIMEType: "audio/wav"}, &sdk.ResourceLink{URI: "file:///x\u0007"},
		&sdk.EmbeddedResource{Resource: &sdk.ResourceContents{URI: "u", Text: strings.Repeat("x", 600_000)}}, &sdk.TextContent{Text: "more"},
	}})
	if len(out.Content) != 6 || !out.IsError || out.Meta != nil {
		t.Fatalf("%d parts, %v", len(out.Content), out.Meta)
	}
	total := 0
	for _, c := range out.Content {
		switch c := c.(type) {
		case *sdk.TextContent:
			total += len(c.Text)
		case *sdk.EmbeddedResource:
			total += len(c.Resource.Text)
		case *sdk.ImageContent:
			if string(c.Data) != "png" || c.MIMEType != "image/png" {
				t.Errorf("%+v", c)
			}
		case *sdk.AudioContent:
			if string(c.Data) != "wav" {
				t.Errorf("%+v", c)
			}
		case *sdk.ResourceLink:
			if c.URI != "file:///x" {
				t.Errorf("%+v", c)
			}
		}
	}
	if total != 600_000+600_000+4 {
		t.Errorf("%d bytes of text", total)
	}
	if got := fmt.Sprint(out.StructuredContent); got != "map[a:1]" {
		t.Errorf("structured is %s", got)
	}
	out = bounded(new(catalog), &sdk.CallToolResult{Content: make([]sdk.Content, 3*maxParted)})
	if !strings.Contains(textOf(out), "2000 more parts") {
		t.Errorf("%q", textOf(out))
	}
}

func TestWhenAServerIsStartedAgain(t *testing.T) {
	at := func(s float64) time.Time { return time.Unix(1000, 0).Add(time.Duration(s * float64(time.Second))) }
	for name, c := range map[string]struct {
		crashes []float64
		now     float64
		wait    time.Duration
		paused  float64 // 0: not
	}{
		"it never crashed":                {nil, 0, 0, 0},
		"it crashed just now":             {[]float64{10}, 10, time.Second, 0},
		"and a moment ago":                {[]float64{10}, 10.25, 750 * time.Millisecond, 0},
		"it crashed a while ago":          {[]float64{10}, 12, 0, 0},
		"twice":                           {[]float64{10, 11}, 11, 2 * time.Second, 0},
		"three times":                     {[]float64{10, 11, 13}, 13, 4 * time.Second, 0},
		"too often":                       {[]float64{10, 11, 13, 17}, 17, 0, 77},
		"too often, before the pause":     {[]float64{10, 11, 13, 17}, 69, 0, 77},
		"too often, but long ago":         {[]float64{10, 11, 13, 17}, 77, 0, 0},
		"often, and the first long ago":   {[]float64{10, 71, 73, 77}, 77, 4 * time.Second, 0},
		"more than is remembered, lately": {[]float64{1, 2, 3, 4, 5, 6}, 6, 0, 66},
	} {
		s := starts{first: time.Second, window: time.Minute}
		for _, crash := range c.crashes {
			s.crashed(at(crash))
		}
		wait, paused := s.next(at(c.now))
		// A pause in which some crashes are too old to count has become a wait.
		if name == "too often, before the pause" {
			if !paused.Equal(at(c.paused)) {
				t.Errorf("%s: until %s", name, paused)
			}
			continue
		}
		if wait != c.wait || (c.paused != 0) != !paused.IsZero() || c.paused != 0 && !paused.Equal(at(c.paused)) {
			t.Errorf("%s: wait %s, until %s", name, wait, paused)
		}
	}
}

// However often a server crashes, it is not started more than maxCrashes times within any window.
func TestCrashesAreBoundedWithinAnyWindow(t *testing.T) {
	property.Check(t, func(t *rapid.T) {
		s := starts{first: time.Second, window: time.Minute}
		now := time.Unix(0, 0)
		var began []time.Time
		for range rapid.IntRange(1, 40).Draw(t, "starts") {
			for {
				wait, paused := s.next(now)
				if now.Before(paused) {
					now = paused
					continue
				}
				now = now.Add(wait)
				break
			}
			began = append(began, now)
			if n := len(began); n > maxCrashes && began[n-1].Sub(began[n-1-maxCrashes]) < s.window {
				t.Fatalf("%d starts within %s", maxCrashes+1, began[n-1].Sub(began[n-1-maxCrashes]))
			}
			now = now.Add(time.Duration(rapid.Int64Range(0, int64(20*time.Second)).Draw(t, "lived")))
			s.crashed(now)
		}
	})
}
