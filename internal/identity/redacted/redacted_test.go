package redacted

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"reflect"
	"strings"
	"testing"
)

const canary = "canary-7f3a"

// holder has the text where methods of its type are not called: in an unexported field.
type holder struct {
	Open   Text
	hidden Text
}

func TestTextIsPrintedNowhere(t *testing.T) {
	text := New(canary)
	h := holder{text, text}
	var printed bytes.Buffer
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%t", "%10.3s", "%p"} {
		for _, value := range []any{text, &text, h, &h, []Text{text}, map[string]Text{"key": text}, fmt.Errorf("with %v", text)} {
			fmt.Fprintf(&printed, verb+"\n", value)
		}
	}
	for _, handler := range []slog.Handler{slog.NewTextHandler(&printed, nil), slog.NewJSONHandler(&printed, nil)} {
		slog.New(handler).Info("log", "text", text, "pointer", &text, "holder", h, "list", []Text{text})
	}
	if err := json.NewEncoder(&printed).Encode(map[string]any{"text": text, "holder": h, "list": []Text{text}}); err != nil {
		t.Fatal(err)
	}
	for _, form := range []string{canary, fmt.Sprintf("%x", canary), fmt.Sprintf("%X", canary)} {
		if strings.Contains(printed.String(), form) {
			t.Errorf("the text is printed as %s:\n%s", form, printed.String())
		}
	}
	if strings.Count(printed.String(), Placeholder) < 20 {
		t.Errorf("hardly anything was printed, so the search says nothing:\n%s", printed.String())
	}

	// The same search finds a plain string in the same places.
	var plain bytes.Buffer
	fmt.Fprintf(&plain, "%+v", struct{ hidden string }{canary})
	if !strings.Contains(plain.String(), canary) {
		t.Error("the search does not find what is there")
	}
}

func TestTextCannotBeComparedByAccident(t *testing.T) {
	if reflect.TypeFor[Text]().Comparable() {
		t.Error("== compiles")
	}
	if !New(canary).Equal(New(canary)) || New(canary).Equal(New(canary+"x")) || New(canary).Equal(Text{}) {
		t.Error("Equal is wrong")
	}
}

func TestRevealIsTheText(t *testing.T) {
	if got := New(canary).Reveal(); got != canary {
		t.Errorf("got %q", got)
	}
	if !(Text{}).IsZero() || !New("").IsZero() || New(canary).IsZero() || (Text{}).Reveal() != "" {
		t.Error("zero is wrong")
	}
}
