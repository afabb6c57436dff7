package execute

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/egress"
	"github.com/clawjail/clawjail/internal/gateway"
	"github.com/clawjail/clawjail/internal/gateway/access/accesstest"
	"github.com/clawjail/clawjail/internal/problem"
)

// realFixture is execute behind the real gateway.
func realFixture(t *testing.T) (*accesstest.Real, *Handler) {
	t.Helper()
	w := accesstest.NewReal(t)
	h, err := New(w.Options())
	if err != nil {
		t.Fatal(err)
	}
	h.views = w.View
	w.Handle(h)
	w.Secret("svc", token)
	return w, h
}

func serviceAt(url string) egress.Service {
	return egress.Service{Name: "svc", Upstream: egress.Upstream{BaseURL: url}, Inject: egress.Injection{Type: egress.InjectBearer}}
}

func ask(w *accesstest.Real, url, more string) (*http.Response, string) {
	return w.Do("POST", "/v1/execute", fmt.Sprintf(`{"service":"svc","url":%q%s}`, url, more), "Content-Type", "application/json")
}

func TestThroughTheGatewayEveryHopIsRecordedAndTheCredentialStays(t *testing.T) {
	w, _ := realFixture(t)
	seen, elsewhere := &accesstest.Seen{}, &accesstest.Seen{}
	other, otherTool := w.Lead("http", "other.example", elsewhere.Handler(text("done, "+token)))
	api, apiTool := w.Lead("https", "example.com", seen.Handler(func(rw http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/away" {
			http.Redirect(rw, r, other+"/", http.StatusTemporaryRedirect)
			return
		}
		_, _ = io.WriteString(rw, "you sent "+r.Header.Get("Authorization"))
	}))
	w.Tools["svc"] = w.Allow(apiTool, otherTool)
	w.Services["svc"] = serviceAt(api)
	for i := range 3 {
		resp, body := ask(w, api+"/x?q=1", "")
		if resp.StatusCode != 200 || !strings.Contains(body, `"you sent Bearer [redacted]"`) || seen.Last(t).Header.Get("Authorization") != "Bearer "+token {
			t.Fatalf("%d: %s %s", i, resp.Status, body)
		}
	}
	resp, body := ask(w, api+"/away", `,"method":"PUT","body":{"a":1}`)
	if resp.StatusCode != 200 || !strings.Contains(body, "done, [redacted]") || !strings.Contains(body, `"redirects":1`) {
		t.Errorf("%s %s", resp.Status, body)
	}
	if got := elsewhere.Last(t); got.Header.Get("Authorization") != "" || got.Body != `{"a":1}` || got.Method != "PUT" {
		t.Errorf("%+v", got)
	}
	begun := w.Begun()
	if len(begun) != 5 || len(seen.All())+len(elsewhere.All()) != 5 {
		t.Errorf("%d records", len(begun))
	}
	for i, d := range begun {
		if d.Surface != gateway.SurfaceExecute || d.Service != "svc" || d.Agent != "agent-1" || d.Credential != (i < 4) || strings.Contains(fmt.Sprintf("%+v", d), "q=1") {
			t.Errorf("%d: %+v", i, d)
		}
	}
	for _, o := range w.Ended(5) {
		if o.Code != "" {
			t.Errorf("%+v", o)
		}
	}
}

func TestThroughTheGatewayRefusalsAreRecordedAndNothingLeaves(t *testing.T) {
	w, h := realFixture(t)
	seen := &accesstest.Seen{}
	api, tool := w.Lead("http", "api.example", seen.Handler(nil))
	_, port, err := net.SplitHostPort(strings.TrimPrefix(api, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	inside := w.Tool("http://127.0.0.1:" + port)
	anywhere := w.Tool("http://*.example")
	tool.Path = inside.Path
	tool.Methods = []string{"GET"}
	w.Tools["svc"] = w.Allow(tool, inside, anywhere)
	w.Services["svc"] = serviceAt(api)
	for _, test := range []struct{ url, more, code string }{
		{api + "/x", `,"method":"DELETE"`, problem.ToolDenied}, {"http://elsewhere.test/", "", problem.ToolDenied}, {"http://127.0.0.1:" + port + "/", "", problem.AddressDenied},
		{"http://nobody.example/", "", problem.DNSFailed},
	} {
		resp, body := ask(w, test.url, test.more)
		if resp.Header.Get("Clawjail-Refusal") != test.code || !strings.Contains(body, `"`+test.code+`"`) {
			t.Errorf("%s: %s %s", test.url, resp.Status, body)
		}
	}
	if n := len(w.Denied()); n != 4 {
		t.Errorf("%d refusals are recorded", n)
	}
	clear(w.Secrets)
	if resp, body := ask(w, api+"/x", ""); resp.Header.Get("Clawjail-Refusal") != problem.CredentialMissing {
		t.Errorf("%s %s", resp.Status, body)
	}
	if o := w.Ended(1); o[0].Code != problem.CredentialMissing {
		t.Errorf("%+v", o)
	}
	if n := len(seen.All()); n != 0 {
		t.Errorf("%d requests left", n)
	}
	w.Secret("svc", token)
	h.limit = 50 * time.Millisecond
	slow, slowTool := w.Lead("http", "slow.example", http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(rw, "begins")
		_ = http.NewResponseController(rw).Flush()
		<-r.Context().Done()
	}))
	w.Tools["svc"] = w.Allow(slowTool)
	if resp, body := ask(w, slow, ""); resp.Header.Get("Clawjail-Refusal") != problem.Timeout {
		t.Errorf("%s %s", resp.Status, body)
	}
}
