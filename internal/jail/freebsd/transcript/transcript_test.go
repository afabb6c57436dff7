package transcript

import (
	"bytes"
	"reflect"
	"strings"
	"testing"
	"time"
)

func TestWhatIsWrittenIsReadAgain(t *testing.T) {
	var text bytes.Buffer
	w, err := NewWriter(&text, "FreeBSD 15.0-RELEASE amd64", time.Unix(0, 0))
	if err != nil {
		t.Fatal(err)
	}
	want := []Entry{
		{V: Version, Command: []string{"zfs", "list"}, Stdout: "a\tb <&>\n"},
		{V: Version, Command: []string{"jls", "-j", "x", "jid"}, Status: 1, Stderr: "jls: jail \"x\" not found\n", Note: "n", Unchecked: true},
	}
	for _, e := range want {
		if err := w.Write(e); err != nil {
			t.Fatal(err)
		}
	}
	r, err := NewReader(&text)
	if err != nil {
		t.Fatal(err)
	}
	got, err := r.All()
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%v: %v", err, got)
	}
	if r.Header.Recorded != "1970-01-01T00:00:00Z" || r.Header.System != "FreeBSD 15.0-RELEASE amd64" {
		t.Errorf("%+v", r.Header)
	}
	if w.Write(Entry{}) == nil {
		t.Error("an entry without a command is written")
	}
}

func TestWhatIsNotATranscriptIsRefused(t *testing.T) {
	head := `{"v":1,"system":"FreeBSD 15"}` + "\n"
	for name, text := range map[string]string{
		"empty": "", "no system": `{"v":1}`, "another version": `{"v":2,"system":"x"}`, "no JSON": "zfs list",
		"an unknown field":             head + `{"v":1,"command":["x"],"exit":1}`,
		"an entry without a version":   head + `{"command":["x"]}`,
		"an entry without a command":   head + `{"v":1,"status":1}`,
		"two values in a line":         head + `{"v":1,"command":["x"]}{"v":1,"command":["x"]}`,
		"a line longer than the bound": head + strings.Repeat("x", MaxLine+1),
	} {
		r, err := NewReader(strings.NewReader(text))
		if err == nil {
			_, err = r.All()
		}
		if err == nil {
			t.Errorf("%s is read", name)
		}
	}
}
