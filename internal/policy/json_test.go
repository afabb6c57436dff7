package policy

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/clawjail/clawjail/internal/testenv/property"
)

// strictly reads one JSON value and nothing else.
func strictly(data []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("something follows")
	}
	return nil
}

func sameRule(a, b Rule) bool {
	return cmp.Equal(a, b, cmp.Comparer(func(a, b Pattern) bool { return a == b }), cmp.Comparer(func(a, b Path) bool { return a == b }),
		cmp.Comparer(func(a, b netip.Addr) bool { return a == b }))
}

func TestRuleAsJSON(t *testing.T) {
	for text, want := range map[string]Rule{
		`{"name":"github","action":"allow","host":"api.github.com","ports":["443","8000-8080"],"scheme":"https","methods":["GET","POST"],"path":"/repos/**"}`: {
			Name: "github", Action: Allow, Host: MustParsePattern("api.github.com"), Ports: []PortRange{{443, 443}, {8000, 8080}}, Scheme: HTTPS,
			Methods: []string{"GET", "POST"}, Path: MustParsePath("/repos/**"),
		},
		`{"name":"wiki","action":"allow","host":"wiki.corp","ports":["*"],"address":"10.0.0.1","opaque":true}`: {
			Name: "wiki", Action: Allow, Host: MustParsePattern("wiki.corp"), Ports: AnyPort(), Address: netip.MustParseAddr("10.0.0.1"), Opaque: true,
		},
		`{}`: {},
	} {
		got, err := json.Marshal(want)
		if err != nil || string(got) != text {
			t.Errorf("%+v is\n%s, %v; want\n%s", want, got, err, text)
		}
		var back Rule
		if err := strictly([]byte(text), &back); err != nil || !sameRule(back, want) {
			t.Errorf("%s is\n%+v, %v; want\n%+v", text, back, err, want)
		}
	}
}

// Entries of the database hold a rule among other fields; a method on Rule would swallow those.
func TestRuleInAnotherStructLeavesItsFieldsAlone(t *testing.T) {
	type entry struct {
		ID string `json:"id"`
		Rule
		Priority int `json:"priority"`
	}
	in := entry{ID: "ru_1", Rule: allow("a", "*.example.com", 443), Priority: 7}
	data, err := json.Marshal(in)
	if want := `{"id":"ru_1","name":"a","action":"allow","host":"*.example.com","ports":["443"],"priority":7}`; err != nil || string(data) != want {
		t.Fatalf("%s, %v; want %s", data, err, want)
	}
	var out entry
	if err := strictly(data, &out); err != nil || out.ID != in.ID || out.Priority != in.Priority || !sameRule(out.Rule, in.Rule) {
		t.Fatalf("%+v, %v", out, err)
	}
}

func TestDamagedRulesAreNotRead(t *testing.T) {
	for _, text := range []string{
		`{"ports":[443]}`, `{"ports":"443"}`, `{"ports":["0"]}`, `{"ports":["65536"]}`, `{"ports":["90-80"]}`, `{"ports":["80-"]}`, `{"ports":["-80"]}`, `{"ports":["080"]}`, `{"ports":["**"]}`, `{"ports":[""]}`,
		`{"ports":["1-2-3"]}`, `{"ports":[{"First":1,"Last":2}]}`, `{"host":""}`, `{"host":"a.*"}`, `{"host":"0x7f.1"}`, `{"host":7}`, `{"path":""}`, `{"path":"a"}`, `{"path":"/**/a"}`, `{"path":"/../a"}`,
		`{"address":"x"}`, `{"methods":"GET"}`, `{"unknown":1}`, `{} {}`, `[]`, ``,
	} {
		var r Rule
		if err := strictly([]byte(text), &r); err == nil {
			t.Errorf("%s is %+v", text, r)
		}
	}
	// These are read, and then found wrong.
	for _, text := range []string{
		`{"name":"a","action":"allow","host":"*","ports":[null]}`, `{"name":"a","action":"allow","host":"*","ports":null}`, `{"name":"a","action":"allow","host":"*","ports":[]}`,
		`{"name":"a","action":"allow","host":null,"ports":["*"]}`, `{"name":"a","action":"allow","host":"*","ports":["*"],"methods":[null]}`, `{"name":"a","action":"ALLOW","host":"*","ports":["*"]}`,
		`{"name":"a","action":"allow","host":"*","ports":["*"],"scheme":"HTTPS"}`, `{"name":"a","action":"allow","host":"*","ports":["*"],"address":"10.0.0.1"}`,
	} {
		var r Rule
		if err := strictly([]byte(text), &r); err != nil {
			t.Errorf("%s: %v", text, err)
		} else if Only(r).Validate() == nil {
			t.Errorf("%s is valid", text)
		}
	}
	if text, err := json.Marshal(Rule{Ports: []PortRange{{90, 80}}}); err == nil {
		t.Errorf("a range that is none is written as %s", text)
	}
}

func TestValidRulesSurviveJSON(t *testing.T) {
	property.Check(t, func(t *rapid.T) {
		in := drawRule(t, "r")
		if len(in.Methods) == 0 {
			in.Methods = nil
		}
		data, err := json.Marshal(in)
		if err != nil {
			t.Fatal(err)
		}
		var out Rule
		if err := strictly(data, &out); err != nil || !sameRule(in, out) {
			t.Fatalf("%+v\n%s\n%+v, %v", in, data, out, err)
		}
	})
}

func FuzzRuleJSON(f *testing.F) {
	for _, s := range []string{
		`{"name":"x","action":"allow","host":"a.example","ports":["443","8000-8080","*"],"scheme":"https","methods":["GET"],"path":"/a/*/**","address":"10.0.0.1","opaque":true}`,
		`{"name":"x","action":"deny","host":"*","ports":["*"]}`, `{"name":"x","action":"allow","host":"*.BÜCHER.de.","ports":["1-65535"],"methods":[]}`, `{"host":null,"ports":[null]}`, `{"Name":"x","name":"y"}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var r Rule
		if strictly(data, &r) != nil || Only(r).Validate() != nil {
			return
		}
		first, err := json.Marshal(r)
		if err != nil {
			t.Fatalf("%+v is valid and cannot be written: %v", r, err)
		}
		var again Rule
		if err := strictly(first, &again); err != nil {
			t.Fatalf("%s cannot be read back: %v", first, err)
		}
		if len(r.Methods) == 0 {
			r.Methods = nil
		}
		if !sameRule(r, again) {
			t.Fatalf("%+v became %+v", r, again)
		}
		if second, err := json.Marshal(again); err != nil || !bytes.Equal(first, second) {
			t.Fatalf("%s became %s, %v", first, second, err)
		}
	})
}
