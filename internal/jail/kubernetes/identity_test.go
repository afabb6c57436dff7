package kubernetes

import (
	"encoding/json"
	"encoding/pem"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/clawjail/clawjail/internal/problem"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// cluster is an API server that has some objects, by their paths, and knows some tokens. An empty object is one that something else answers for.
type cluster struct {
	objects map[string]string
	tokens  map[string]string // the status of their review
}

func (c *cluster) api(t *testing.T) *API {
	t.Helper()
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer of clawjail" {
			w.WriteHeader(http.StatusForbidden)
			_, _ = w.Write([]byte(`{"message":"you may not"}`))
			return
		}
		if r.URL.Path == "/apis/authentication.k8s.io/v1/tokenreviews" {
			var asked struct {
				Spec struct {
					Token     string
					Audiences []string
				}
			}
			if json.NewDecoder(r.Body).Decode(&asked) != nil || len(asked.Spec.Audiences) != 1 || asked.Spec.Audiences[0] != Audience {
				t.Errorf("asked for %+v", asked)
			}
			status := c.tokens[asked.Spec.Token]
			if status == "" {
				status = `{"authenticated":false}`
			}
			w.WriteHeader(http.StatusCreated)
			_, _ = w.Write([]byte(`{"kind":"TokenReview","status":` + status + `}`))
			return
		}
		if r.URL.Query().Get("watch") != "" {
			if text, ok := c.objects[r.URL.Path+"/"+strings.TrimPrefix(r.URL.Query().Get("fieldSelector"), "metadata.name=")]; ok {
				_, _ = w.Write([]byte(`{"type":"ADDED","object":` + text + `}`))
			}
			return // API servers end it now and then
		}
		text, ok := c.objects[r.URL.Path]
		if text == "" {
			w.WriteHeader(http.StatusNotFound)
			if !ok {
				_, _ = w.Write([]byte(`{"kind":"Status","reason":"NotFound"}`))
			}
			return
		}
		_, _ = w.Write([]byte(text))
	}))
	t.Cleanup(s.Close)
	return apiOf(t, s)
}

// apiOf asks a server.
func apiOf(t *testing.T, s *httptest.Server) *API {
	t.Helper()
	dir := t.TempDir()
	ca, token := filepath.Join(dir, "ca.pem"), filepath.Join(dir, "token")
	if err := errors.Join(os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}), 0o600), os.WriteFile(token, []byte("of clawjail\n"), 0o600)); err != nil {
		t.Fatal(err)
	}
	api, err := NewAPI(Access{Server: s.URL, Authority: ca, Token: token})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(api.Close)
	return api
}

const (
	podPath     = "/api/v1/namespaces/jails/pods/one"
	sandboxPath = "/apis/agents.x-k8s.io/v1beta1/namespaces/jails/sandboxes/warm-1"
	claimPath   = "/apis/extensions.agents.x-k8s.io/v1beta1/namespaces/jails/sandboxclaims/s-1"
)

func newCluster() *cluster {
	return &cluster{
		tokens: map[string]string{"good": `{"authenticated":true,"audiences":["clawjail-gateway"],"user":{"username":"system:serviceaccount:jails:jail",
			"extra":{"authentication.kubernetes.io/pod-name":["one"],"authentication.kubernetes.io/pod-uid":["u-pod"]}}}`},
		objects: map[string]string{
			podPath: `{"metadata":{"name":"one","namespace":"jails","uid":"u-pod","labels":{},"ownerReferences":[{"apiVersion":"agents.x-k8s.io/v1beta1","kind":"Sandbox","name":"warm-1","uid":"u-sandbox","controller":true}]},
				"spec":{},"status":{"phase":"Running","podIPs":[{"ip":"10.88.0.7"},{"ip":"fd00::7"}]}}`,
			sandboxPath: `{"metadata":{"name":"warm-1","namespace":"jails","uid":"u-sandbox","ownerReferences":[{"apiVersion":"extensions.agents.x-k8s.io/v1beta1","kind":"SandboxClaim","name":"s-1","uid":"u-claim","controller":true}]}}`,
			claimPath:   `{"metadata":{"name":"s-1","namespace":"jails","uid":"u-claim"},"status":{"sandbox":{"name":"warm-1","podIPs":["10.88.0.7"]}}}`,
		},
	}
}

func TestAPodIsWhoTheAPIServerSays(t *testing.T) {
	change := func(path, from, to string) func(*cluster) {
		return func(c *cluster) {
			if !strings.Contains(c.objects[path], from) {
				panic(from + " is not in " + path)
			}
			c.objects[path] = strings.ReplaceAll(c.objects[path], from, to)
		}
	}
	token := func(from, to string) func(*cluster) {
		return func(c *cluster) {
			if !strings.Contains(c.tokens["good"], from) {
				panic(from + " is not in the review")
			}
			c.tokens["good"] = strings.ReplaceAll(c.tokens["good"], from, to)
		}
	}
	without := func(path string) func(*cluster) { return func(c *cluster) { delete(c.objects, path) } }
	claimed, warm := Identity{Pod: "one", UID: "u-pod", Sandbox: "warm-1", Claim: "s-1"}, Identity{Pod: "one", UID: "u-pod", Sandbox: "warm-1", Pool: "s-1"}
	const deleted = `"deletionTimestamp":"2026-11-29T20:00:00Z","name"`
	for name, c := range map[string]struct {
		does  func(*cluster)
		from  string
		token string
		want  Identity // none for one that is refused
	}{
		"claimed":                       {want: claimed},
		"by its other address":          {from: "fd00::7", want: claimed},
		"by its address as IPv6 has it": {from: "::ffff:10.88.0.7", want: claimed},
		"the claim does not say it yet": {does: change(claimPath, `{"name":"warm-1","podIPs":["10.88.0.7"]}`, `{}`), want: claimed},
		"in a warm pool":                {does: change(sandboxPath, "SandboxClaim", "SandboxWarmPool"), want: warm},
		"pending":                       {does: change(podPath, "Running", "Pending"), want: claimed},

		"a token that is none":             {token: "made up"},
		"no token":                         {token: "-"},
		"a token that has expired":         {does: token("true", "false")},
		"a token for the API server":       {does: token(`["clawjail-gateway"]`, `["https://kubernetes.default.svc"]`)},
		"a token without an audience":      {does: token(`"audiences":["clawjail-gateway"],`, "")},
		"a token of another namespace":     {does: token("serviceaccount:jails:", "serviceaccount:jails2:")},
		"a token of a person":              {does: token("system:serviceaccount:jails:jail", "alice")},
		"a token of no pod":                {does: token("pod-uid", "node-uid")},
		"a token of two pods":              {does: token(`["u-pod"]`, `["u-pod","u-pod2"]`)},
		"an earlier pod of that name":      {does: token("u-pod", "u-old")},
		"another address":                  {from: "10.88.0.8"},
		"no address":                       {does: change(podPath, `[{"ip":"10.88.0.7"},{"ip":"fd00::7"}]`, `[]`)},
		"the pod is not there":             {does: without(podPath)},
		"the pod is deleted":               {does: change(podPath, `"name":"one"`, deleted+`:"one"`)},
		"the pod has ended":                {does: change(podPath, "Running", "Succeeded")},
		"the pod has failed":               {does: change(podPath, "Running", "Failed")},
		"the pod is of a Deployment":       {does: change(podPath, `"agents.x-k8s.io/v1beta1","kind":"Sandbox"`, `"apps/v1","kind":"ReplicaSet"`)},
		"the pod is of nobody":             {does: change(podPath, `"controller":true`, `"controller":false`)},
		"a Sandbox of another group":       {does: change(podPath, "agents.x-k8s.io", "agents.example.com")},
		"the Sandbox is not there":         {does: without(sandboxPath)},
		"another Sandbox of that name":     {does: change(sandboxPath, "u-sandbox", "u-sandbox2")},
		"the Sandbox is deleted":           {does: change(sandboxPath, `"name":"warm-1"`, deleted+`:"warm-1"`)},
		"the Sandbox is of somebody":       {does: change(sandboxPath, "SandboxClaim", "Deployment")},
		"the Sandbox is of nobody":         {does: change(sandboxPath, `"controller":true`, `"controller":false`)},
		"a claim of another group":         {does: change(sandboxPath, "extensions.agents.x-k8s.io", "extensions.example.com")},
		"the claim is not there":           {does: without(claimPath)},
		"another claim of that name":       {does: change(claimPath, "u-claim", "u-claim2")},
		"the claim is deleted":             {does: change(claimPath, `"name":"s-1"`, deleted+`:"s-1"`)},
		"the claim has another Sandbox":    {does: change(claimPath, `"name":"warm-1"`, `"name":"warm-2"`)},
		"a name that leads somewhere else": {does: token(`["one"]`, `["../pods/one"]`)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // some wait for what does not come
			k := newCluster()
			if c.does != nil {
				c.does(k)
			}
			from, shown := "10.88.0.7", "good"
			if c.from != "" {
				from = c.from
			}
			if c.token != "" {
				shown = strings.TrimPrefix(c.token, "-")
			}
			got, err := k.api(t).Identify(t.Context(), "jails", shown, netip.MustParseAddr(from))
			if got != c.want {
				t.Errorf("it is %+v, %v", got, err)
			}
			if refused := new(problem.Error); c.want == (Identity{}) && (!errors.As(err, &refused) || refused.Code != problem.Unauthorized) {
				t.Errorf("it is refused with %v", err)
			}
		})
	}
}

// What cannot be asked is no answer.
func TestNobodyIsLetInWhenTheAPIServerDoesNotAnswer(t *testing.T) {
	api := newCluster().api(t)
	from := netip.MustParseAddr("10.88.0.7")
	if _, err := api.Identify(t.Context(), "jails", "good", from); err != nil {
		t.Fatal(err)
	}
	server := api.access.Server
	code := func(err error) string {
		var p *problem.Error
		errors.As(err, &p)
		if p == nil {
			return ""
		}
		return p.Code
	}
	api.access.Server = "https://127.0.0.1:1"
	if got, err := api.Identify(t.Context(), "jails", "good", from); got != (Identity{}) || code(err) != problem.UpstreamUnreachable {
		t.Errorf("it is %+v, %v", got, err)
	}
	api.access.Server = server
	if err := os.WriteFile(api.access.Token, []byte("of somebody else"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := api.Identify(t.Context(), "jails", "good", from); got != (Identity{}) || code(err) != problem.Forbidden || !strings.Contains(err.Error(), "you may not") {
		t.Errorf("it is %+v, %v", got, err)
	}
}

func TestTheAccessIsWhatKubernetesGivesToAPod(t *testing.T) {
	has := map[string]string{"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443"}
	if a, err := InCluster(func(name string) string { return has[name] }); err != nil || a.Server != "https://[fd00::1]:443" {
		t.Errorf("%+v, %v", a, err)
	}
	if _, err := InCluster(func(string) string { return "" }); err == nil {
		t.Error("there is an access without a cluster")
	}
}
