package gateway

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/clawjail/clawjail/internal/policy"
	"github.com/clawjail/clawjail/internal/problem"
)

func TestWhatASurfaceRefusesIsOnRecordOnce(t *testing.T) {
	w := newFixture(t)
	s := web(t, func(http.ResponseWriter, *http.Request) {})
	may, _ := leading(t, "api.corp", s.Listener.Addr())
	send := func(r *http.Request, permit *policy.Compiled) *problem.Error {
		resp, refusal := w.g.Send(r.Context(), OutboundRequest{Caller: CallerOf(r.Context()), Surface: SurfaceService, Permit: always(permit)},
			request(t, "GET", "http://api.corp:"+port(s.Listener.Addr())+"/", ""))
		if refusal == nil {
			finish(t, resp)
		}
		return refusal
	}
	unknown := problem.New(problem.ServiceUnknown, "ask", "there is no such service")
	for name, c := range map[string]struct {
		surface http.HandlerFunc
		codes   []string // of the records
	}{
		"refused by itself":      {func(w http.ResponseWriter, r *http.Request) { Refuse(w, r, unknown) }, []string{problem.ServiceUnknown}},
		"in a shape of its own":  {func(w http.ResponseWriter, r *http.Request) { NoteRefusal(r.Context(), unknown) }, []string{problem.ServiceUnknown}},
		"told twice":             {func(w http.ResponseWriter, r *http.Request) { NoteRefusal(r.Context(), unknown); Refuse(w, r, unknown) }, []string{problem.ServiceUnknown}},
		"refused by Send":        {func(w http.ResponseWriter, r *http.Request) { Refuse(w, r, send(r, nil)) }, []string{problem.HostDenied}},
		"sent, and then refused": {func(w http.ResponseWriter, r *http.Request) { send(r, may); Refuse(w, r, unknown) }, []string{""}},
		"too often": {func(w http.ResponseWriter, r *http.Request) {
			Refuse(w, r, problem.New(problem.RateLimited, "wait", "too often"))
		}, nil},
		"nothing was refused": {func(http.ResponseWriter, *http.Request) {}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			before := len(w.recorded())
			r := httptest.NewRequest("POST", "/svc/tracker/issues", nil)
			r = r.WithContext(WithCaller(r.Context(), Caller{Agent: "one", Tenant: "acme", Actor: "agent:one"}))
			w.g.Watched(SurfaceService, c.surface).ServeHTTP(httptest.NewRecorder(), r)
			var codes []string
			for _, d := range w.recorded()[before:] {
				codes = append(codes, d.Code)
				if d.Agent != "one" || d.Tenant != "acme" || d.Surface != SurfaceService || d.Code == problem.ServiceUnknown && (d.Path != "/svc/tracker/issues" || d.Method != "POST") {
					t.Errorf("%+v", d)
				}
			}
			if strings.Join(codes, ",") != strings.Join(c.codes, ",") {
				t.Errorf("records %q, want %q", codes, c.codes)
			}
		})
	}
}

func TestGitIsRefusedInWordsThatItShows(t *testing.T) {
	rec := httptest.NewRecorder()
	r := httptest.NewRequest("GET", "/svc/git/x", nil)
	r.Header.Set("User-Agent", "git/2.39.5")
	Refuse(rec, r, problem.New(problem.HostDenied, "Ask the operator.", "no rule allows it"))
	if ct := rec.Header().Get("Content-Type"); !strings.HasPrefix(ct, "text/plain") || rec.Body.String() != "clawjail: no rule allows it\nclawjail: Ask the operator.\n" {
		t.Errorf("%s: %q", ct, rec.Body)
	}
}
