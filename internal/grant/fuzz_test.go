package grant

import (
	"testing"

	"github.com/clawjail/clawjail/internal/problem"
)

func FuzzToken(f *testing.F) {
	w := newFixture(f)
	token, _ := w.issue()
	f.Add(token.Reveal())
	f.Add("v4.public.AAAA.e30")
	f.Add("v4.public..")
	f.Add("v4.local.AAAA.AAAA")
	f.Add("")
	f.Fuzz(func(t *testing.T, text string) {
		_, err := w.Verify(t.Context(), ParseToken(text), want())
		switch code := problem.CodeOf(err); {
		case text == token.Reveal() && code == "":
		case text == "" && code == problem.GrantMissing:
		case code == problem.GrantInvalid:
		default:
			t.Errorf("%q gives %v", text, err)
		}
	})
}

func FuzzKeyFile(f *testing.F) {
	f.Add([]byte(`{"version":1,"keys":[{"kid":"k4.pid.S_XQmeEwHbbvRmiyfXfHYpLGjXGzjTRSDoT1YtTakWFE","created_at":"2031-05-06T12:00:00Z","seed":"00"}]}`))
	f.Add([]byte(`{}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		keys, wrong := parseKeys(data)
		if (wrong == "") != (len(keys) > 0) || wrong == "" && !keys[0].Signs() {
			t.Errorf("%d keys, %q", len(keys), wrong)
		}
	})
}

func FuzzDomain(f *testing.F) {
	w := newFixture(f)
	for _, seed := range []string{"example.com", "*.example.com", "com", "1.2.3.4", "[::1]", "bücher.example", "a..b", "example.com."} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		name, registrable, wrong, hint := w.domain(text)
		if wrong != "" {
			if hint == "" || name != "" || registrable != "" {
				t.Errorf("%q is refused without a hint, or with a name", text)
			}
			return
		}
		again, same, wrong, _ := w.domain(name)
		if wrong != "" || again != name || same != registrable {
			t.Errorf("%q becomes %q, and that %q", text, name, again)
		}
		if self, _, wrong, _ := w.domain(registrable); wrong != "" || self != registrable {
			t.Errorf("the registrable domain of %q, %q, is not its own", text, registrable)
		}
	})
}
