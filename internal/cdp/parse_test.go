package cdp

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParseAcceptsTheProtocol(t *testing.T) {
	tests := []struct {
		name  string
		from  origin
		frame string
		want  Message
	}{
		{"command", fromClient, `{"id":7,"method":"Page.navigate","params":{"url":"x"},"sessionId":"S"}`,
			Message{Kind: Command, ID: 7, Method: "Page.navigate", SessionID: "S", Params: []byte(`{"url":"x"}`)}},
		{"command in another order and with space", fromClient, " {\n\"method\" : \"A.b\", \"id\": -1 } ",
			Message{Kind: Command, ID: -1, Method: "A.b"}},
		{"command with params null", fromClient, `{"id":0,"method":"A.b","params":null}`,
			Message{Kind: Command, Method: "A.b"}},
		{"an escaped method is decoded", fromClient, `{"id":1,"method":"Storage.get\u0043ookies"}`,
			Message{Kind: Command, ID: 1, Method: "Storage.getCookies"}},
		{"a client may send a lone surrogate", fromClient, `{"id":1,"method":"A.b","params":{"a":"\ud800"}}`,
			Message{Kind: Command, ID: 1, Method: "A.b", Params: []byte(`{"a":"\ud800"}`)}},
		{"reply", fromBrowser, `{"id":7,"result":{"a":[1,{}]},"sessionId":"S"}`,
			Message{Kind: Reply, ID: 7, SessionID: "S", Result: []byte(`{"a":[1,{}]}`)}},
		{"failed reply", fromBrowser, `{"id":7,"error":{"code":-32001,"message":"m","data":"d","more":[1]}}`,
			Message{Kind: Reply, ID: 7, Error: &Error{Code: -32001, Message: "m", Data: []byte(`"d"`)}}},
		{"event", fromBrowser, `{"method":"A.b","params":{}}`,
			Message{Kind: Event, Method: "A.b", Params: []byte(`{}`)}},
		{"a page may use one name twice", fromBrowser, `{"method":"A.b","params":{"a":1,"a":2,"\ud800":1,"\ud801":2}}`,
			Message{Kind: Event, Method: "A.b", Params: []byte(`{"a":1,"a":2,"\ud800":1,"\ud801":2}`)}},
		{"stray", fromBrowser, `{"error":{"code":-32700,"message":"m"}}`,
			Message{Kind: Stray, Error: &Error{Code: -32700, Message: "m"}}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			got, err := parse([]byte(test.frame), test.from)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(&test.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

func TestParseRefusesEverythingElse(t *testing.T) {
	deep := strings.Repeat("[", 2*maxClientDepth) + strings.Repeat("]", 2*maxClientDepth)
	tests := []struct {
		name  string
		from  origin
		frame string
	}{
		{"nothing", fromClient, ``},
		{"no JSON", fromClient, `{"id":1,`},
		{"two messages", fromClient, `{"id":1,"method":"A.b"}{"id":2,"method":"A.b"}`},
		{"array", fromClient, `[{"id":1,"method":"A.b"}]`},
		{"no id", fromClient, `{"method":"A.b"}`},
		{"no method", fromClient, `{"id":1}`},
		{"empty method", fromClient, `{"id":1,"method":""}`},
		{"id as text", fromClient, `{"id":"1","method":"A.b"}`},
		{"id with fraction", fromClient, `{"id":1.0,"method":"A.b"}`},
		{"id beyond 32 bits", fromClient, `{"id":2147483648,"method":"A.b"}`},
		{"method as number", fromClient, `{"id":1,"method":1}`},
		{"session as null", fromClient, `{"id":1,"method":"A.b","sessionId":null}`},
		{"params as array", fromClient, `{"id":1,"method":"A.b","params":[]}`},
		{"duplicate member", fromClient, `{"id":1,"method":"A.b","method":"A.c"}`},
		{"duplicate member by an escape", fromClient, `{"id":1,"method":"A.b","m\u0065thod":"A.c"}`},
		{"duplicate name in params", fromClient, `{"id":1,"method":"A.b","params":{"u":1,"u":2}}`},
		{"duplicate name deep in params", fromClient, `{"id":1,"method":"A.b","params":{"x":[{"u":1,"\u0075":2}]}}`},
		{"member in another case", fromClient, `{"id":1,"Method":"A.b"}`},
		{"second member in another case", fromClient, `{"id":1,"method":"A.b","Params":{}}`},
		{"unknown member", fromClient, `{"id":1,"method":"A.b","foo":1}`},
		{"client sends a reply", fromClient, `{"id":1,"result":{}}`},
		{"client sends a mixture", fromClient, `{"id":1,"method":"A.b","result":{}}`},
		{"NUL", fromClient, "{\"id\":1,\"method\":\"A.b\",\"params\":{\"a\":\"\x00\"}}"},
		{"not UTF-8", fromClient, "{\"id\":1,\"method\":\"A.b\",\"params\":{\"a\":\"\xff\"}}"},
		{"number out of range", fromClient, `{"id":1,"method":"A.b","params":{"a":"\"","b":[1e999]}}`},
		{"too deep", fromClient, `{"id":1,"method":"A.b","params":{"a":` + deep + `}}`},
		{"comment", fromClient, `{"id":1,/**/"method":"A.b"}`},
		{"browser sends a command", fromBrowser, `{"id":1,"method":"A.b"}`},
		{"browser sends result and error", fromBrowser, `{"id":1,"result":{},"error":{"code":1,"message":"m"}}`},
		{"browser sends a result that is no object", fromBrowser, `{"id":1,"result":[]}`},
		{"browser sends an unknown member", fromBrowser, `{"id":1,"result":{},"x":1}`},
		{"browser repeats a member", fromBrowser, `{"id":1,"id":2,"result":{}}`},
		{"browser sends nothing", fromBrowser, ``},
		{"browser sends an error that is text", fromBrowser, `{"id":1,"error":"m"}`},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			m, err := parse([]byte(test.frame), test.from)
			if !errors.Is(err, ErrProtocol) {
				t.Fatalf("got %+v, %v", m, err)
			}
		})
	}
}

// Chromium must take every message that passes acceptable at the limit; TestChromiumAnswersWhateverTheCodecAccepts tries it.
func TestAcceptableKnowsStringsFromStructure(t *testing.T) {
	brackets := `"` + strings.Repeat(`[{\"\\`, 1000) + `"`
	for _, ok := range []string{brackets, `["1e999","\\",-0,1E5,12345678901234567890123]`} {
		if err := acceptable([]byte(ok)); err != nil {
			t.Errorf("%.40s: %v", ok, err)
		}
	}
	for _, bad := range []string{`["\\\\",1e999]`, `["\"\\",-1e999]`} {
		if acceptable([]byte(bad)) == nil {
			t.Errorf("%s passed", bad)
		}
	}
}

// FuzzCodec: whatever is accepted is encoded to something that is accepted again and means the same, is stable from
// there on, and holds no delimiter. A message that is accepted from a client has no member twice under any spelling.
func FuzzCodec(f *testing.F) {
	for _, seed := range []string{
		`{"id":7,"method":"Page.navigate","params":{"url":"x"},"sessionId":"S"}`,
		`{"id":7,"result":{"a":[1,{"b":"\ud800"}]},"sessionId":"S"}`,
		`{"id":7,"error":{"code":-32001,"message":"m\u0000","data":"d"}}`,
		`{"method":"A.b","params":{"a":1,"a":2}}`,
		`{"error":{"code":-32700,"message":"m"}}`,
		`{"id":1,"method":"A.b","m\u0065thod":"A.c"}`,
		`{"id":1,"METHOD":"A.b"}`,
	} {
		f.Add([]byte(seed), true)
		f.Add([]byte(seed), false)
	}
	f.Fuzz(func(t *testing.T, frame []byte, client bool) {
		from := fromBrowser
		if client {
			from = fromClient
		}
		first, err := parse(frame, from)
		if err != nil {
			if !errors.Is(err, ErrProtocol) {
				t.Fatalf("error of another kind: %v", err)
			}
			return
		}
		wire := first.encoded()
		if bytes.IndexByte(wire, 0) >= 0 {
			t.Fatalf("delimiter in %q", wire)
		}
		second, err := parse(wire, from)
		if err != nil {
			t.Fatalf("encoded to %q: %v", wire, err)
		}
		if diff := cmp.Diff(first, second); diff != "" {
			t.Fatalf("means something else (-first +second):\n%s", diff)
		}
		if again := second.encoded(); !bytes.Equal(wire, again) {
			t.Fatalf("not stable: %q, then %q", wire, again)
		}
		if client {
			body := bytes.TrimSuffix(bytes.TrimSpace(frame), []byte("}"))
			twice := append(bytes.Clone(body), `,"\u0069d":1}`...)
			if _, err := parse(twice, from); err == nil {
				t.Fatalf("%q accepted with two ids", twice)
			}
		}
	})
}
