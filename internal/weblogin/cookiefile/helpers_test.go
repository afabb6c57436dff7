package cookiefile

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/clawjail/clawjail/internal/cookies"
	"github.com/clawjail/clawjail/internal/problem"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var epoch = time.Date(2027, 3, 1, 12, 0, 0, 0, time.UTC)

func options(domains ...string) Options {
	if len(domains) == 0 {
		domains = []string{"example.test"}
	}
	return Options{Domains: domains, Now: epoch}
}

// inTheClear writes what was kept, with values, in the form in which it is read most easily.
func inTheClear(r *Result) []string {
	var out []string
	for _, c := range r.Cookies {
		text := fmt.Sprintf("%s=%s; %s; %s; %s", c.Name, c.Value.Append(nil), c.Domain, c.Path, expiry(c))
		for _, flag := range []struct {
			on   bool
			name string
		}{{c.Secure, "Secure"}, {c.HTTPOnly, "HttpOnly"}, {c.SameSite != "", "SameSite=" + c.SameSite}} {
			if flag.on {
				text += "; " + flag.name
			}
		}
		if c.PartitionKey != nil {
			text += fmt.Sprintf("; in %s %v", c.PartitionKey.TopLevelSite, c.PartitionKey.HasCrossSiteAncestor)
		}
		if c.Session == c.Persistent() {
			text += "; session and expiry disagree"
		}
		out = append(out, text)
	}
	return out
}

func expiry(c cookies.Cookie) string {
	if !c.Persistent() {
		return "session"
	}
	return c.ExpiresAt().Format(time.RFC3339)
}

func write(t testing.TB, name, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// refused checks that an error is a problem of a file, has a hint, and shows nothing of the file.
func refused(t testing.TB, err error, want string) {
	t.Helper()
	e, ok := problem.As(err)
	if !ok || e.Code != problem.BadCookieFile || e.Hint == "" {
		t.Fatalf("got %v", err)
	}
	text := e.Error() + e.Hint
	if !strings.Contains(text, want) {
		t.Errorf("%q does not say %q", text, want)
	}
	if strings.Contains(text, "canary") {
		t.Errorf("it shows what is in the file: %s", text)
	}
}
