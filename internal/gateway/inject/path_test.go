package inject

import (
	"net/http"
	"strings"
	"testing"

	"github.com/clawjail/clawjail/internal/base/secret"
	"github.com/clawjail/clawjail/internal/egress"
	"github.com/clawjail/clawjail/internal/problem"
)

// bot is a credential that may stand in a path.
const bot = "123456789:AAF-bot_tok.en"

var inPath = egress.Injection{Type: egress.InjectPath}

func TestACredentialGoesIntoThePathOnce(t *testing.T) {
	for path, want := range map[string]string{
		"/bot%7Bsecret%7D/getMe":              "/bot" + bot + "/getMe",
		"/bot%7Bsecret%7D":                    "/bot" + bot,
		"/%7Bsecret%7D.json/a%20b":            "/" + bot + ".json/a%20b",
		"/a/%7Bsecret%7D/":                    "/a/" + bot + "/",
		"/bot%7Bsecret%7D/%7Bsecret%7D":       "/bot" + bot + "/%7Bsecret%7D",
		"/bot%7Bsecret%7D/a%2Fb/%7Bsecret%7D": "/bot" + bot + "/a%2Fb/%7Bsecret%7D",
	} {
		r := request(path+"?x=%7Bsecret%7D", "Authorization", "mine")
		shared := r.URL
		scrub, err := Into(r, inPath, secret.New([]byte(bot)))
		if err != nil || r.URL.EscapedPath() != want || r.URL.RawQuery != "x=%7Bsecret%7D" || len(r.Header) != 0 {
			t.Errorf("%s: %s %q %v, want %s", path, r.URL, r.Header, err, want)
		}
		if len(scrub) != 1 || string(scrub[0]) != bot || strings.Contains(shared.String(), bot) {
			t.Errorf("%s: to scrub %q; what others share is %s", path, scrub, shared)
		}
	}
}

func TestACredentialCannotLeaveItsSegment(t *testing.T) {
	into := func(value string) (*http.Request, error) {
		r := request("/bot%7Bsecret%7D/getMe")
		_, err := Into(r, inPath, secret.New([]byte(value)))
		return r, err
	}
	for _, letter := range []string{"-", ".", "_", "~", ":", "@", "!", "$", "&", "'", "(", ")", "*", "+", ",", "="} {
		value := "1234" + letter + "5678"
		if r, err := into(value); err != nil || r.URL.RequestURI() != "/bot"+value+"/getMe" {
			t.Errorf("%q: %s %v", value, r.URL, err)
		}
	}
	for _, value := range []string{
		"1234/5678", "1234?5678", "1234#5678", "1234%5678", "1234%2f5678", `1234\5678`, "1234;5678", "1234 5678", "1234\n5678", "1234\x005678", "1234{secret}",
		"1234ü5678", "1234\u20285678", "1234\xff5678", "........", "short", "",
	} {
		r, err := into(value)
		if problem.CodeOf(err) != problem.BadSecret || r.URL.EscapedPath() != "/bot%7Bsecret%7D/getMe" {
			t.Errorf("%q: %s %v", value, r.URL, err)
		}
		if err != nil && strings.Contains(err.Error(), "5678") {
			t.Errorf("the error has the value: %v", err)
		}
	}
	if _, err := Into(request("/bot/getMe"), inPath, secret.New([]byte(bot))); problem.CodeOf(err) != problem.BadRequest {
		t.Errorf("a path without a place: %v", err)
	}
}
