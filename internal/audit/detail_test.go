package audit

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/clawjail/clawjail/internal/testenv/property"
)

type hidden string

func (hidden) LogValue() slog.Value { return slog.StringValue("[redacted]") }

func TestADetailRefusesWhatMayBeSecret(t *testing.T) {
	for _, name := range []string{
		"value", "cookie", "cookies", "cookie_value", "session_cookie", "token", "access_token", "accesstoken", "to_ken", "secret",
		"client_secrets", "password", "pass", "passwd", "db_password", "authorization", "proxy_authorization", "auth", "bearer", "api_key",
		"apikey", "private_key", "key", "otp", "jwt", "credential", "header", "body", "new_value", "id_token",
		// not names at all
		"", "Cookie", "setCookie", "a-b", "a b", "1a", "_a", "ключ", "cookie\u200b", strings.Repeat("a", 41),
	} {
		if d := NewDetail(Fields{name: "x", "fine": 1}); d.Err() == nil || d.String() != "{}" {
			t.Errorf("%q is recorded: %s", name, d)
		}
	}
	for _, name := range []string{"cookie_count", "token_id", "secret_name", "domains", "cookie_domains", "kid", "reason", "url_path", "key_id", "keyboard"} {
		if err := NewDetail(Fields{name: "x"}).Err(); err != nil {
			t.Error(err)
		}
	}
	for name, value := range map[string]any{
		"own type": hidden("x"), "bytes": []byte("x"), "map": map[string]any{"a": 1}, "any": []any{"x"}, "error": fmt.Errorf("x"), "nil": nil,
		"pointer": new(string), "struct": struct{ A int }{1}, "time": time.Now(), "duration": time.Second, "raw": json.RawMessage(`"x"`),
		"NaN": math.NaN(), "Inf": math.Inf(1), "not UTF-8": "\xff", "NUL": "a\x00", "in a list": []string{"a", "\xff"}, "own list": []hidden{"x"},
		"large": strings.Repeat("x", MaxDetail),
	} {
		if d := NewDetail(Fields{"a": value}); d.Err() == nil || d.String() != "{}" {
			t.Errorf("%s is recorded: %s", name, d)
		}
	}
}

func TestADetailIsCanonical(t *testing.T) {
	d := NewDetail(Fields{"z": 1, "a": "<&>é\n\u2028", "m": []string{"b", "a"}, "f": 1.5, "t": true, "u": uint64(math.MaxUint64)})
	if want := `{"a":"<&>é\n\u2028","f":1.5,"m":["b","a"],"t":true,"u":18446744073709551615,"z":1}`; d.Err() != nil || d.String() != want {
		t.Errorf("got %s %v, want %s", d, d.Err(), want)
	}
	if (Detail{}).String() != "{}" || NewDetail(nil).String() != "{}" {
		t.Error("nothing is not {}")
	}
}

func TestADetailKeepsItsBytesInAnExport(t *testing.T) {
	property.Check(t, func(t *rapid.T) {
		detail := rapid.SliceOf(rapid.Byte()).Draw(t, "bytes")
		if rapid.Bool().Draw(t, "json") {
			detail = NewDetail(Fields{"a": strings.ToValidUTF8(strings.ReplaceAll(rapid.String().Draw(t, "text"), "\x00", ""), "")}).bytes()
		}
		row := Row{Node: "n", Seq: 1, Time: day, Detail: detail, Hash: []byte{1}, PrevHash: []byte{2}}
		var out strings.Builder
		if err := WriteRow(&out, row); err != nil {
			t.Fatal(err)
		}
		got, err := ReadRow([]byte(strings.TrimSuffix(out.String(), "\n")))
		if err != nil || string(got.Detail) != string(detail) {
			t.Fatalf("%q came back as %q: %v", detail, got.Detail, err)
		}
	})
}

func TestAURLIsRecordedWithoutWhatMayBeSecret(t *testing.T) {
	for in, want := range map[string]string{
		"https://example.com/a/b":                     "https://example.com/a/b",
		"https://user:pw@example.com:1/a?token=1#x=2": "https://example.com:1/a",
		"https://example.com?x":                       "https://example.com",
		"https://u:p%zz@example.com/%zz?token=1":      "https://example.com/%zz",
		"https://u:p@example.com:port?t=1":            "https://example.com:port",
		"agent alice":                                 "agent alice",
	} {
		if got := bareTarget(in); strings.TrimSuffix(got, "/") != strings.TrimSuffix(want, "/") {
			t.Errorf("%s: got %s, want %s", in, got, want)
		}
	}
}

func TestADetailIsTheJSONThatItWouldBeOtherwise(t *testing.T) {
	property.Check(t, func(t *rapid.T) {
		fields := Fields{}
		for n := range rapid.IntRange(0, 8).Draw(t, "fields") {
			name := fmt.Sprintf("field%d", n)
			fields[name] = rapid.OneOf(
				rapid.String().AsAny(), rapid.Bool().AsAny(), rapid.Int().AsAny(), rapid.Int64().AsAny(), rapid.Uint16().AsAny(), rapid.Float32().AsAny(),
				rapid.SliceOfN(rapid.String(), 0, 3).AsAny(), rapid.SampledFrom([]string{`"`, `\\`, "<&>", "\u2028", "\x7f", "\n", ""}).AsAny(),
			).Draw(t, name)
		}
		d := NewDetail(fields)
		if d.Err() != nil || len(fields) == 0 {
			return
		}
		var want bytes.Buffer
		encoder := json.NewEncoder(&want)
		encoder.SetEscapeHTML(false)
		if err := encoder.Encode(fields); err != nil {
			t.Fatal(err)
		}
		if got := d.String() + "\n"; got != want.String() {
			t.Fatalf("%s, want %s", got, want.String())
		}
	})
}

func TestEveryDayNamesWouldPassAnyway(t *testing.T) {
	for _, name := range []string{"method", "scheme", "allowed", "path", "rule", "service", "code", "agent", "injected", "bytes_out", "bytes_in", "ms", "address", "status", "reused"} {
		if !everyDay(name) {
			t.Errorf("%s is looked at in full", name)
		}
		words := strings.Split(name, "_")
		if slices.ContainsFunc(words, secret) && !harmless(words[len(words)-1]) {
			t.Errorf("%s is that of something secret", name)
		}
	}
}

func TestADetailOfFieldsIsThatOfAMap(t *testing.T) {
	got := NewDetailOf(Text("agent", "a\"\u2028"), False("allowed"), Number("ms", -3), True("reused"))
	want := NewDetail(Fields{"agent": "a\"\u2028", "allowed": false, "ms": int64(-3), "reused": true})
	if got.Err() != nil || got.String() != want.String() {
		t.Errorf("%s %v, want %s", got, got.Err(), want)
	}
	for name, d := range map[string]Detail{
		"out of order": NewDetailOf(Text("b", ""), Text("a", "")), "twice": NewDetailOf(Text("a", ""), Text("a", "")),
		"secret": NewDetailOf(Text("api_key", "x")), "no UTF-8": NewDetailOf(Text("a", "\xff")), "too long": NewDetailOf(Text("a", strings.Repeat("x", MaxDetail))),
	} {
		if d.Err() == nil {
			t.Errorf("%s: %s", name, d)
		}
	}
	if d := NewDetailOf(); d.Err() != nil || d.String() != "{}" {
		t.Errorf("of nothing: %s", d)
	}
}
