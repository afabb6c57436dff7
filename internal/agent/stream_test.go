package agent

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/clawjail/clawjail/internal/testenv/property"
)

// cutAll is the events of a stream that comes in pieces of some size.
func cutAll(data []byte, size int) []Event {
	var c cutter
	var r reader
	var out []Event
	emit := func(l line) error {
		out = append(out, r.event(l))
		return nil
	}
	for len(data) > 0 {
		n := min(size, len(data))
		if err := c.feed(data[:n], emit); err != nil {
			panic(err)
		}
		data = data[n:]
	}
	if err := c.flush(emit); err != nil {
		panic(err)
	}
	return out
}

func TestLinesBecomeEvents(t *testing.T) {
	long := strings.Repeat("x", maxEventLine)
	for name, test := range map[string]struct {
		in   string
		want []Event
	}{
		"text":              {"hello\nworld\n", []Event{{Type: EventText, Text: "hello"}, {Type: EventText, Text: "world"}}},
		"no end":            {"hello", []Event{{Type: EventText, Text: "hello"}}},
		"empty line":        {"\n", []Event{{Type: EventText}}},
		"end of another":    {"hello\r\n", []Event{{Type: EventText, Text: "hello"}}},
		"object":            {`{"a":1}` + "\n", []Event{{Type: EventJSON, JSON: json.RawMessage(`{"a":1}`)}}},
		"typed object":      {`{"a":{"type":"inner"},"type":"turn_end"}` + "\n", []Event{{Type: EventJSON, Name: "turn_end", JSON: json.RawMessage(`{"a":{"type":"inner"},"type":"turn_end"}`)}}},
		"typed in escapes":  {`{"\u0074ype":"a\u0062"}` + "\n", []Event{{Type: EventJSON, Name: "ab", JSON: json.RawMessage(`{"\u0074ype":"a\u0062"}`)}}},
		"two types":         {`{"type":"a","type":"b"}` + "\n", []Event{{Type: EventJSON, Name: "a", JSON: json.RawMessage(`{"type":"a","type":"b"}`)}}},
		"type is no text":   {`{"type":5}` + "\n", []Event{{Type: EventJSON, JSON: json.RawMessage(`{"type":5}`)}}},
		"type is long":      {`{"type":"` + strings.Repeat("n", 101) + `"}` + "\n", []Event{{Type: EventJSON, JSON: json.RawMessage(`{"type":"` + strings.Repeat("n", 101) + `"}`)}}},
		"array":             {"[1]\n", []Event{{Type: EventText, Text: "[1]"}}},
		"not whole":         {`{"a":1` + "\n", []Event{{Type: EventText, Text: `{"a":1`}}},
		"more behind it":    {`{"a":1} x` + "\n", []Event{{Type: EventText, Text: `{"a":1} x`}}},
		"two objects":       {`{"a":1}{"b":2}` + "\n", []Event{{Type: EventText, Text: `{"a":1}{"b":2}`}}},
		"JSON, not UTF-8":   {"{\"a\":\"\xff\"}\n", []Event{{Type: EventText, Text: "{\"a\":\"\uFFFD\"}"}}},
		"text, not UTF-8":   {"a\xffb\x00c\n", []Event{{Type: EventText, Text: "a\uFFFDb\uFFFDc"}}},
		"longest":           {long + "\nnext\n", []Event{{Type: EventText, Text: long}, {Type: EventText, Text: "next"}}},
		"too long":          {long + "yz\nnext\n", []Event{{Type: EventText, Text: long, Cut: true}, {Type: EventText, Text: "next"}}},
		"too long, no end":  {long + "yz", []Event{{Type: EventText, Text: long, Cut: true}}},
		"too long for JSON": {`{"a":"` + long + `"}` + "\nnext\n", []Event{{Type: EventText, Text: (`{"a":"` + long)[:maxEventLine], Cut: true}, {Type: EventText, Text: "next"}}},
	} {
		t.Run(name, func(t *testing.T) {
			for _, size := range []int{1 << 20, maxEventLine, 4096, 7} {
				if diff := cmp.Diff(test.want, cutAll([]byte(test.in), size)); diff != "" {
					t.Fatalf("in pieces of %d: %s", size, diff[:min(len(diff), 2000)])
				}
			}
		})
	}
}

func TestWhoGoesOnAfterAnyLineSeesTheRest(t *testing.T) {
	long := strings.Repeat("x", maxEventLine+100)
	text := []byte("one\n{\"type\":\"two\"}\n\n" + long + "\nfive\nsix")
	var c cutter
	var r reader
	type seen struct {
		event Event
		at    place
	}
	var all []seen
	emit := func(l line) error {
		all = append(all, seen{r.event(l), c.place()})
		return nil
	}
	if err := errors.Join(c.feed(text, emit), c.flush(emit)); err != nil {
		t.Fatal(err)
	}
	if len(all) != 6 {
		t.Fatalf("%d events", len(all))
	}
	for n, s := range all {
		var again cutter
		again.at(s.at.offset, s.at.skipping, false)
		var rest []Event
		emit := func(l line) error { rest = append(rest, r.event(l)); return nil }
		if err := errors.Join(again.feed(text[s.at.offset:], emit), again.flush(emit)); err != nil {
			t.Fatal(err)
		}
		var want []Event
		for _, s := range all[n+1:] {
			want = append(want, s.event)
		}
		if diff := cmp.Diff(want, rest); diff != "" {
			t.Errorf("after event %d: %s", n, diff)
		}
	}
}

func TestALineWhoseBeginningIsLostIsNotTakenForOne(t *testing.T) {
	var c cutter
	var r reader
	c.at(100, false, true)
	var got []Event
	if err := c.feed([]byte("{\"b\":1}\n{\"c\":2}\n"), func(l line) error { got = append(got, r.event(l)); return nil }); err != nil {
		t.Fatal(err)
	}
	want := []Event{{Type: EventText, Text: `{"b":1}`, Cut: true}, {Type: EventJSON, JSON: json.RawMessage(`{"c":2}`)}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestIDsOfEventsAreReadAsTheyAreWritten(t *testing.T) {
	property.Check(t, func(t *rapid.T) {
		offset := rapid.Int64Range(0, 1<<62)
		p := position{
			place{offset.Draw(t, "out"), rapid.Bool().Draw(t, "in a line")}, place{offset.Draw(t, "err"), rapid.Bool().Draw(t, "in a line")},
			offset.Draw(t, "mark"),
		}
		got, err := parsePosition(p.String())
		if err != nil || got != p {
			t.Fatalf("%v becomes %v, %v", p, got, err)
		}
	})
	for _, bad := range []string{"x", "1-2", "1-2-3-4", "-1-2-3", "01-2-3", "1-2-3~", "1~~-2-3", "+1-2-3", "1 -2-3", "1-2-99999999999999999999",
		strings.Repeat("1", 100) + "-2-3"} {
		if p, err := parsePosition(bad); err == nil {
			t.Errorf("%q is taken for %v", bad, p)
		}
	}
}

// FuzzLines cuts any bytes in any pieces: the events are the same, and can be sent.
func FuzzLines(f *testing.F) {
	f.Add([]byte("hello\n{\"type\":\"x\"}\n\xff\x00\n{\"a\":1"), 3)
	f.Add([]byte("{\"type\":\"\\ud800\"}\r\n\r\n[]\n{}\n{ } \n"), 1)
	f.Add([]byte("{\"a\":{\"b\":[{}]},\"type\":null}\n"), 100)
	f.Add(append(bytes.Repeat([]byte("y"), maxEventLine+1), '\n', 'z'), 1000)
	f.Fuzz(func(t *testing.T, data []byte, size int) {
		if size < 1 || len(data)/size > 10_000 {
			size = max(1, len(data)/100)
		}
		whole := cutAll(data, max(1, len(data)))
		if diff := cmp.Diff(whole, cutAll(data, size)); diff != "" {
			t.Fatalf("in pieces of %d: %s", size, diff)
		}
		lines := bytes.Count(data, []byte("\n"))
		if len(data) > 0 && data[len(data)-1] != '\n' {
			lines++
		}
		if len(whole) != lines {
			t.Fatalf("%d lines became %d events", lines, len(whole))
		}
		for _, e := range whole {
			if len(e.Text) > 3*maxEventLine || len(e.JSON) > maxEventLine || len(e.Name) > maxEventName || !utf8.ValidString(e.Text) || strings.Contains(e.Text, "\x00") {
				t.Fatalf("%+v", e)
			}
			text, err := json.Marshal(e)
			if err != nil || bytes.ContainsAny(text, "\n\r") || !utf8.Valid(text) {
				t.Fatalf("%+v becomes %q, %v", e, text, err)
			}
		}
	})
}

// FuzzEventID reads any text as the id of an event.
func FuzzEventID(f *testing.F) {
	for _, s := range []string{"1-2-3", "1~-2~-0", "", "-", "1-2", "99999999999999999999-1-1"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, id string) {
		p, err := parsePosition(id)
		if err != nil {
			return
		}
		if p.String() != id || p.out.offset < 0 || p.err.offset < 0 || p.mark < 0 {
			t.Fatalf("%q is taken for %v", id, p)
		}
	})
}

func BenchmarkLinesToEvents(b *testing.B) {
	data := sampleLines(10_000)
	b.SetBytes(int64(len(data)))
	b.ReportAllocs()
	var c cutter
	var r reader
	n := 0
	for b.Loop() {
		for at := 0; at < len(data); at += chunkSize {
			if err := c.feed(data[at:min(at+chunkSize, len(data))], func(l line) error { n++; _ = r.event(l); return nil }); err != nil {
				b.Fatal(err)
			}
		}
	}
	b.ReportMetric(float64(n)/b.Elapsed().Seconds(), "lines/s")
}

// sampleLines are lines as agents print them.
func sampleLines(count int) []byte {
	var b bytes.Buffer
	for n := range count {
		fmt.Fprintf(&b, `{"type":"message_update","n":%d,"message":{"role":"assistant","content":[{"type":"text","text":"so it goes"}]}}`+"\n", n)
	}
	return b.Bytes()
}
