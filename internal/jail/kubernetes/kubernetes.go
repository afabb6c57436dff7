// Package kubernetes is what clawjail asks of a Kubernetes cluster in which each jail is a pod. The pods are made by the controller of agent-sandbox: a
// Sandbox has one pod, is made ahead of time by a SandboxWarmPool, and is taken by a SandboxClaim.
//
// The API server is asked by HTTP, and its answers are believed. A pod is believed only what its token says, which the API server has signed.
package kubernetes

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/clawjail/clawjail/internal/problem"
)

const (
	// askLimit is how long the API server may take for one answer.
	askLimit = 15 * time.Second
	// pingEvery is how long nothing may be heard on a connection before the API server is asked for a sign, and how long that may take.
	pingEvery = 15 * time.Second
	// maxAnswer bounds one.
	maxAnswer = 16 << 20
	// accountDir is where a pod finds what it needs for the API server.
	accountDir = "/var/run/secrets/kubernetes.io/serviceaccount"
)

// Access is how the API server is reached.
type Access struct {
	Server    string // https://HOST:PORT
	Authority string // a file of PEM certificates
	Token     string // a file, which is read for each request: Kubernetes changes it
}

// InCluster is the access that Kubernetes gives to a pod.
func InCluster(getenv func(string) string) (Access, error) {
	host, port := getenv("KUBERNETES_SERVICE_HOST"), getenv("KUBERNETES_SERVICE_PORT")
	if host == "" || port == "" {
		return Access{}, problem.New(problem.BadConfig, "run it in a pod with a service account", "KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set")
	}
	return Access{Server: "https://" + net.JoinHostPort(host, port), Authority: filepath.Join(accountDir, "ca.crt"), Token: filepath.Join(accountDir, "token")}, nil
}

// API is the API server of a cluster.
type API struct {
	access   Access
	client   *http.Client
	streams  *http.Client // for answers that last
	requests atomic.Int64
}

// Requests counts those that were sent.
func (a *API) Requests() int64 { return a.requests.Load() }

// NewAPI makes one. Close closes its connections.
func NewAPI(a Access) (*API, error) {
	pem, err := os.ReadFile(a.Authority)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		return nil, problem.New(problem.BadConfig, "give the certificate of the API server's authority, in PEM", "there is no certificate in %s", a.Authority)
	}
	client := http.Client{Transport: &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}, ForceAttemptHTTP2: true, IdleConnTimeout: time.Minute,
		// A watch lasts long, and its connection may be cut without a packet: pings find that out.
		HTTP2: &http.HTTP2Config{SendPingTimeout: pingEvery, PingTimeout: pingEvery},
	}, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	asks := client
	asks.Timeout = askLimit
	return &API{access: a, client: &asks, streams: &client}, nil
}

// Close closes idle connections.
func (a *API) Close() { a.client.CloseIdleConnections() }

// ErrNotFound is an object that there is not.
var ErrNotFound = errors.New("the API server has no such object")

// errNoObject is of those an object whose kind there is, by the word of the API server itself.
var errNoObject = fmt.Errorf("by its name: %w", ErrNotFound)

// ask sends a request and reads the answer. Unknown fields of an answer are ignored.
func (a *API) ask(ctx context.Context, method, path string, in, out any) error {
	var body io.Reader
	if in != nil {
		text, err := json.Marshal(in)
		if err != nil {
			return err
		}
		body = bytes.NewReader(text)
	}
	answer, err := a.send(ctx, a.client, method, path, body)
	if err != nil {
		return err
	}
	defer func() { _ = answer.Body.Close() }() // it was read
	text, err := io.ReadAll(io.LimitReader(answer.Body, maxAnswer+1))
	switch {
	case err != nil:
		return fmt.Errorf("read an answer of the API server: %w", err)
	case len(text) > maxAnswer:
		return problem.New(problem.TooLarge, "", "an answer of the API server has more than %d bytes", maxAnswer)
	case answer.StatusCode/100 != 2:
		return refusalOf(answer.StatusCode, text)
	}
	return json.Unmarshal(text, out)
}

func unanswered(ctx context.Context, err error) error {
	return problem.Wrap(cmp.Or(ctx.Err(), err), problem.UpstreamUnreachable, "look whether the API server runs, and at the policies of the network", "the API server of Kubernetes does not answer")
}

// refusalOf is what the API server says instead of doing something.
func refusalOf(status int, text []byte) error {
	var said struct {
		Message string `json:"message"`
		Reason  string `json:"reason"`
	}
	if json.Unmarshal(text, &said) != nil || said.Message == "" {
		said.Message = http.StatusText(status)
	}
	switch {
	case status == http.StatusNotFound && said.Reason == "NotFound":
		return errNoObject
	case status == http.StatusNotFound:
		return ErrNotFound
	}
	code, hint := problem.JailFailed, ""
	switch status {
	case http.StatusUnauthorized, http.StatusForbidden:
		code, hint = problem.Forbidden, "give the service account of clawjail the role of the chart"
	case http.StatusConflict:
		code = problem.Conflict
	}
	return problem.New(code, hint, "the API server of Kubernetes says: %s", said.Message)
}

// Meta is what every object has.
type Meta struct {
	Name      string            `json:"name"`
	Namespace string            `json:"namespace,omitempty"`
	UID       string            `json:"uid,omitempty"`
	Labels    map[string]string `json:"labels,omitempty"`
	// Deleted is when it was asked to be deleted.
	Deleted *time.Time `json:"deletionTimestamp,omitempty"`
	Owners  []Owner    `json:"ownerReferences,omitempty"`
}

// Owner is an object that another one belongs to.
type Owner struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Name       string `json:"name"`
	UID        string `json:"uid"`
	Controller bool   `json:"controller"`
}

// controller is the one that has made an object and looks after it.
func (m Meta) controller() (Owner, bool) {
	for _, o := range m.Owners {
		if o.Controller {
			return o, true
		}
	}
	return Owner{}, false
}

// The kinds of agent-sandbox.
const (
	coreGroup       = "agents.x-k8s.io/v1beta1"
	extensionsGroup = "extensions.agents.x-k8s.io/v1beta1"
)

// resource is the path of all objects of a kind in a namespace.
func resource(group, namespace, kinds string) string {
	prefix := "/apis/" + group
	if group == "v1" {
		prefix = "/api/v1"
	}
	return prefix + "/namespaces/" + url.PathEscape(namespace) + "/" + kinds
}

// object is the path of one.
func object(group, namespace, kinds, name string) string {
	return resource(group, namespace, kinds) + "/" + url.PathEscape(name)
}
