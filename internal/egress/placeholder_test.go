package egress

import (
	"testing"

	"github.com/clawjail/clawjail/internal/problem"
)

func TestAPlaceholderStandsWhereACredentialMayBe(t *testing.T) {
	w := newFixture(t)
	const host = "https://api.example.com"
	for _, tt := range []struct {
		url  string
		how  Injection
		code string
	}{
		{host + "/bot{secret}", Injection{Type: InjectPath}, ""},
		{host + "/{secret}/x", Injection{Type: InjectPath}, ""},
		{host + "/x/{secret}.json", Injection{Type: InjectPath}, ""},
		{host + "/bot%7bsecret%7d", Injection{Type: InjectPath}, ""},
		{host + "/bot", Injection{Type: InjectPath}, problem.BadURL},
		{host, Injection{Type: InjectPath}, problem.BadURL},
		{host + "/bot{token}", Injection{Type: InjectPath}, problem.BadURL},
		{host + "/{secret}/{secret}", Injection{Type: InjectPath}, problem.BadURL},
		{host + "/{secret}{secret}", Injection{Type: InjectPath}, problem.BadURL},
		{host + "/bot{secret}x", Injection{Type: InjectPath}, problem.BadURL},
		{"https://{secret}.example.com/{secret}", Injection{Type: InjectPath}, problem.BadURL},
		{host + "/?k={secret}", Injection{Type: InjectPath}, problem.BadURL},
		{host + "/bot{secret}", Injection{Type: InjectPath, Name: "x"}, problem.BadRequest},
		{host + "/bot{secret}", Injection{Type: InjectPath, User: "x"}, problem.BadRequest},
		{host + "/bot{secret}", Injection{Type: InjectBearer}, problem.BadURL},
		{host + "/bot", Injection{Type: InjectBearer}, ""},
	} {
		s := service("telegram")
		s.BaseURL, s.Inject = tt.url, tt.how
		w.wantCode(tt.url, second2(w.PutService(w.ctx, w.admin, s)), tt.code)
	}
	p := provider("models", WireOpenAI, "*")
	w.must(second2(w.PutProvider(w.ctx, w.admin, p)))
	p.Inject = Injection{Type: InjectPath}
	w.wantCode("a provider", second2(w.PutProvider(w.ctx, w.admin, p)), problem.BadRequest)
}

func TestAPlaceholderStaysInTheBaseURL(t *testing.T) {
	w := newFixture(t)
	s := service("telegram")
	s.BaseURL, s.Inject, s.Allow = "https://API.example.com/bot%7bsecret%7d/", Injection{Type: InjectPath}, []Allowance{{Methods: []string{"GET"}, Path: "/*"}}
	made, err := w.PutService(w.ctx, w.admin, s)
	w.must(err)
	kept, permit, found := w.another().View(agent(w.bot)).Service("telegram")
	if !found || kept.BaseURL != "https://api.example.com/bot{secret}" || made.BaseURL != kept.BaseURL {
		t.Fatalf("made %s, kept %s", made.BaseURL, kept.BaseURL)
	}
	for path, want := range map[string]bool{
		"/bot%7Bsecret%7D/getMe": true, "/bot{secret}/getMe": true, "/bot%7Bsecret%7D/a/b": false, "/bot1/getMe": false, "/getMe": false,
	} {
		if d := permit.Decide(get("api.example.com", path)); d.Allowed != want {
			t.Errorf("%s: %+v", path, d)
		}
	}
}
