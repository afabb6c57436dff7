package kubernetes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/clawjail/clawjail/internal/problem"
)

// Right is something that an account may do with all objects of a kind.
type Right struct{ Verb, Group, Resource string }

// String is the right as kubectl auth can-i takes it.
func (r Right) String() string { return strings.TrimSuffix(r.Verb+" "+r.Resource+"."+r.Group, ".") }

// Rights are what a control plane does in the namespace of its jails, and in the whole cluster. The role of the chart has the same.
func Rights() (namespaced, clustered []Right) {
	for _, kind := range []struct{ verbs, group, resource string }{
		{"create get list watch deletecollection", extensionsGroup, "sandboxclaims"},
		{"create list delete", extensionsGroup, "sandboxtemplates"},
		{"create list delete", extensionsGroup, "sandboxwarmpools"},
		{"get", coreGroup, "sandboxes"},
		{"get watch", "", "pods"},
		{"create delete", "", "persistentvolumeclaims"},
		{"create list patch delete", leaseGroup, "leases"},
	} {
		group, _, _ := strings.Cut(kind.group, "/") // without its version
		for verb := range strings.FieldsSeq(kind.verbs) {
			namespaced = append(namespaced, Right{verb, group, kind.resource})
		}
	}
	return namespaced, []Right{{"create", "authentication.k8s.io", "tokenreviews"}}
}

// Server is what an API server says of itself.
type Server struct {
	Version string
	// Ahead is how far its clock is ahead of this one's, to about a second.
	Ahead time.Duration
}

// Look asks an API server who it is.
func (a *API) Look(ctx context.Context) (s Server, err error) {
	answer, err := a.send(ctx, a.client, http.MethodGet, "/version", nil)
	if err != nil {
		return s, err
	}
	defer func() { _ = answer.Body.Close() }() // it was read
	text, err := io.ReadAll(io.LimitReader(answer.Body, maxAnswer))
	if err != nil {
		return s, fmt.Errorf("read an answer of the API server: %w", err)
	}
	if answer.StatusCode != http.StatusOK {
		return s, refusalOf(answer.StatusCode, text)
	}
	var said struct {
		GitVersion string `json:"gitVersion"`
	}
	if err := json.Unmarshal(text, &said); err != nil {
		return s, problem.Wrap(err, problem.BadConfig, "correct kubernetes.server", "what answers at %s is no API server of Kubernetes", a.access.Server)
	}
	s.Version = said.GitVersion
	if at, err := http.ParseTime(answer.Header.Get("Date")); err == nil {
		s.Ahead = time.Until(at).Round(time.Second)
	}
	return s, nil
}

// Missing are the kinds of objects that jails are made of and that the cluster has not.
func (a *API) Missing(ctx context.Context) (out []string, err error) {
	for _, group := range []struct {
		name  string
		kinds []string
	}{{coreGroup, []string{"sandboxes"}}, {extensionsGroup, []string{"sandboxclaims", "sandboxtemplates", "sandboxwarmpools"}}} {
		var list struct {
			Resources []struct {
				Name string `json:"name"`
			} `json:"resources"`
		}
		if err := a.ask(ctx, http.MethodGet, "/apis/"+group.name, nil, &list); err != nil && !errors.Is(err, ErrNotFound) {
			return nil, err
		}
		there := map[string]bool{}
		for _, one := range list.Resources {
			there[one.Name] = true
		}
		for _, kind := range group.kinds {
			if !there[kind] {
				out = append(out, kind+" of "+group.name)
			}
		}
	}
	return out, nil
}

// Lacking are the rights that this account has not.
func (a *API) Lacking(ctx context.Context, namespace string) (out []Right, err error) {
	namespaced, clustered := Rights()
	for n, rights := range [][]Right{namespaced, clustered} {
		where := namespace
		if n == 1 {
			where = ""
		}
		for _, r := range rights {
			var review struct {
				Status struct {
					Allowed bool `json:"allowed"`
				} `json:"status"`
			}
			err := a.ask(ctx, http.MethodPost, "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", map[string]any{
				"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
				"spec": map[string]any{"resourceAttributes": map[string]string{"namespace": where, "verb": r.Verb, "group": r.Group, "resource": r.Resource}}}, &review)
			if err != nil {
				return nil, err
			}
			if !review.Status.Allowed {
				out = append(out, r)
			}
		}
	}
	return out, nil
}
