package secret

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"
)

const canary = "s3cr3t-canary"

func TestEqualTellsValuesApart(t *testing.T) {
	a, b, c := New([]byte("a")), New([]byte("a")), New([]byte("c"))
	if !a.Equal(b) || a.Equal(c) || a.Equal(Value{}) || !(Value{}).Equal(New(nil)) {
		t.Error("Equal is wrong")
	}
	d, e := NewText("a"), NewText("b")
	if !d.Equal(NewText("a")) || d.Equal(e) || d.Equal(Text{}) || d.IsZero() || !(Text{}).IsZero() || d.Reveal() != "a" || (Text{}).Reveal() != "" {
		t.Error("Equal of texts is wrong")
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
		if err == nil || strings.Contains(err.Error(), canary) || strings.Contains(err.Error(), "12345") {
			t.Errorf("%s: %v", bad, err)
		}
	}
}
