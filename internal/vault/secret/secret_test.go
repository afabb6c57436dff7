package secret

import (
	"bytes"
	"encoding/gob"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"strings"
	"testing"

	jsonv2 "github.com/go-json-experiment/json"
)

const canary = "s3cr3t-canary"

// holder has a value in each place in which a structure can have one.
type holder struct {
	Exported   Value
	Pointer    *Value
	List       []Value
	Map        map[string]Value
	Any        any
	unexported Value
	list       []Value
	hidden     *Value
}

func newHolder() holder {
	v := New([]byte(canary))
	return holder{v, &v, []Value{v}, map[string]Value{"k": v}, v, v, []Value{v}, &v}
}

// finds says whether a text has the canary, also as the list of numbers that %v makes of bytes, and in hexadecimal.
func finds(text string) bool {
	numbers := strings.Trim(fmt.Sprint([]byte(canary)), "[]")
	for _, form := range []string{canary, numbers, fmt.Sprintf("%x", canary), fmt.Sprintf("%X", canary), "0x73, 0x33"} {
		if strings.Contains(text, form) {
			return true
		}
	}
	return false
}

func TestValuePrintsAsRedactedEverywhere(t *testing.T) {
	v, h := New([]byte(canary)), newHolder()
	if h.unexported.Len() == 0 || len(h.list) == 0 || h.hidden == nil {
		t.Fatal("the holder is empty")
	}
	for _, x := range []any{v, &v, h, &h, []any{v}, struct{ v Value }{v}, errors.Join(fmt.Errorf("x %v", v))} {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%b", "%t", "% x", "%w"} {
			if text := fmt.Sprintf(verb, x); finds(text) {
				t.Errorf("%s of a %T shows the value: %s", verb, x, text)
			}
		}
		var log bytes.Buffer
		slog.New(slog.NewTextHandler(&log, nil)).Info("m", "x", x)
		slog.New(slog.NewJSONHandler(&log, nil)).Info("m", "x", x)
		if finds(log.String()) {
			t.Errorf("the log of a %T shows the value: %s", x, &log)
		}
		one, _ := json.Marshal(x)
		two, _ := jsonv2.Marshal(x)
		three, _ := xml.Marshal(x)
		var four bytes.Buffer
		_ = gob.NewEncoder(&four).Encode(x)
		for _, out := range [][]byte{one, two, three, four.Bytes()} {
			if finds(string(out)) {
				t.Errorf("an encoding of a %T shows the value: %s", x, out)
			}
		}
	}
	if got := fmt.Sprintf("%v %s %#v %x", v, v, v, v); got != strings.TrimSpace(strings.Repeat(Redacted+" ", 4)) {
		t.Errorf("got %q", got)
	}
	if got, err := json.Marshal(v); err != nil || string(got) != `"[redacted]"` {
		t.Errorf("JSON is %s, %v", got, err)
	}
	// The search finds what is there.
	for _, plain := range []any{canary, []byte(canary), struct{ b []byte }{[]byte(canary)}} {
		if !finds(fmt.Sprintf("%v", plain)) || !finds(fmt.Sprintf("%x", plain)) {
			t.Errorf("the search does not find a %T", plain)
		}
	}
}

func TestValueCannotBeComparedWithEquals(t *testing.T) {
	if reflect.TypeFor[Value]().Comparable() {
		t.Error("a value can be compared with ==")
	}
	a, b, c := New([]byte("a")), New([]byte("a")), New([]byte("c"))
	if !a.Equal(b) || a.Equal(c) || a.Equal(Value{}) || !(Value{}).Equal(New(nil)) {
		t.Error("Equal is wrong")
	}
}

func TestUseShowsTheBytesAndWipeRemovesThem(t *testing.T) {
	source := []byte(canary)
	v := New(source)
	clear(source)
	copied := v
	var seen, kept []byte
	if err := v.Use(func(b []byte) error { seen, kept = bytes.Clone(b), b; return nil }); err != nil {
		t.Fatal(err)
	}
	if string(seen) != canary {
		t.Errorf("Use shows %q", seen)
	}
	if got := errors.New("x"); !errors.Is(v.Use(func([]byte) error { return got }), got) {
		t.Error("Use loses the error of its function")
	}
	v.Wipe()
	if !bytes.Equal(kept, make([]byte, len(canary))) || !bytes.Equal(copied.Append(nil), kept) {
		t.Error("Wipe left bytes behind")
	}
	if v.Len() != len(canary) {
		t.Error("Wipe changed the length")
	}
	Value{}.Wipe()
}

func TestValueIsReadFromJSON(t *testing.T) {
	var body struct {
		Value Value `json:"value"`
	}
	if err := json.Unmarshal([]byte(`{"value":"a\"b"}`), &body); err != nil || string(body.Value.Append(nil)) != `a"b` {
		t.Errorf("got %q, %v", body.Value.Append(nil), err)
	}
	for _, bad := range []string{`{"value":"[redacted]"}`, `{"value":12345}`, `{"value":["s3cr3t-canary"]}`} {
		err := json.Unmarshal([]byte(bad), &body)
		if err == nil || finds(err.Error()) || strings.Contains(err.Error(), "12345") {
			t.Errorf("%s: %v", bad, err)
		}
	}
}
