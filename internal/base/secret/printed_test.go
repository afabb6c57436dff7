package secret_test

import (
	"bytes"
	"crypto/ed25519"
	"crypto/sha256"
	"crypto/x509"
	"encoding/gob"
	"encoding/json"
	"encoding/pem"
	"encoding/xml"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	jsonv2 "github.com/go-json-experiment/json"

	"github.com/clawjail/clawjail/internal/audit/checkpoint"
	"github.com/clawjail/clawjail/internal/base/secret"
	"github.com/clawjail/clawjail/internal/browser/host"
	"github.com/clawjail/clawjail/internal/grant"
	"github.com/clawjail/clawjail/internal/identity"
)

const canary = "s3cr3t-canary"

// holder has a value in each place in which a structure can have one.
type holder[T any] struct {
	Exported   T
	Pointer    *T
	List       []T
	Map        map[string]T
	Any        any
	unexported T
	list       []T
	hidden     *T
}

// held are the ways in which a value is handed to what prints it.
func held[T any](v T) []any {
	h := holder[T]{v, &v, []T{v}, map[string]T{"k": v}, v, v, []T{v}, &v}
	return []any{v, &v, h, &h, []any{v}, struct{ v T }{v}, fmt.Errorf("x %v", v)}
}

// finds says whether a text has a value, also as the list of numbers that %v makes of bytes, and in hexadecimal.
func finds(text, value string) bool {
	start := value[:min(len(value), 13)]
	for _, form := range []string{start, strings.Trim(fmt.Sprint([]byte(start)), "[]"), fmt.Sprintf("%x", start), fmt.Sprintf("%X", start), fmt.Sprintf("%#x, %#x", start[0], start[1])} {
		if strings.Contains(text, form) {
			return true
		}
	}
	return false
}

// printed is what everything that prints makes of a value.
func printed(x any) string {
	var out bytes.Buffer
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%b", "%t", "% x", "%10.3s", "%p", "%w"} {
		fmt.Fprintf(&out, verb+"\n", x)
	}
	slog.New(slog.NewTextHandler(&out, nil)).Info("m", "x", x)
	slog.New(slog.NewJSONHandler(&out, nil)).Info("m", "x", x)
	one, _ := json.Marshal(x)
	two, _ := jsonv2.Marshal(x)
	three, _ := xml.Marshal(x)
	out.Write(bytes.Join([][]byte{one, two, three}, []byte("\n")))
	_ = gob.NewEncoder(&out).Encode(x)
	return out.String()
}

func TestNothingThatIsSecretIsPrinted(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	admin, err := identity.LoadAdminKey(at("admin"))
	must(t, err)
	key, err := identity.ReadAdminKey(at("admin"))
	must(t, err)
	hash := sha256.Sum256([]byte(key.Reveal()))
	signs, err := checkpoint.LoadKey(at("audit"))
	must(t, err)
	text, err := os.ReadFile(at("audit"))
	must(t, err)
	block, _ := pem.Decode(text)
	private, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	must(t, err)
	token, err := host.EnsureToken(at("token"))
	must(t, err)
	for name, one := range map[string]struct {
		held  []any
		value string
	}{
		"a value":             {held(secret.New([]byte(canary))), canary},
		"a text":              {held(secret.NewText(canary)), canary},
		"a key":               {held(key), key.Reveal()},
		"the admin key":       {held(admin), string(hash[:])},
		"a grant":             {held(grant.ParseToken(canary)), canary},
		"the audit key":       {held(signs), string(private.(ed25519.PrivateKey).Seed())},
		"the browser's token": {held(token), token.Reveal()},
	} {
		for _, x := range one.held {
			if text := printed(x); finds(text, one.value) {
				t.Errorf("%s shows in a %T: %s", name, x, text)
			}
		}
		first := one.held[0]
		if got := fmt.Sprintf("%v %s %#v %x", first, first, first, first); got != strings.TrimSpace(strings.Repeat(secret.Redacted+" ", 4)) {
			t.Errorf("%s prints as %q", name, got)
		}
		if got, err := json.Marshal(first); err != nil || string(got) != `"[redacted]"` {
			t.Errorf("%s is the JSON %s, %v", name, got, err)
		}
		kind := reflect.TypeOf(first)
		if kind.Kind() == reflect.Pointer {
			kind = kind.Elem()
		}
		if kind.Comparable() {
			t.Errorf("%s can be compared with ==", name)
		}
	}
	// The search finds what is there.
	for _, plain := range []any{canary, []byte(canary), struct{ b []byte }{[]byte(canary)}} {
		if !finds(fmt.Sprintf("%v", plain), canary) || !finds(fmt.Sprintf("%x", plain), canary) || !finds(printed(plain), canary) {
			t.Errorf("the search does not find a %T", plain)
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
