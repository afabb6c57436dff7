package kubernetes

import (
	"slices"
	"strings"
	"testing"

	"github.com/clawjail/clawjail/internal/problem"
)

func TestAClusterIsLookedAt(t *testing.T) {
	c := newCluster()
	api := c.api(t)
	if _, err := api.Look(t.Context()); err == nil {
		t.Error("something that has no version is taken for an API server")
	}
	c.objects["/version"] = "[]"
	if _, err := api.Look(t.Context()); problem.CodeOf(err) != problem.BadConfig {
		t.Errorf("something that is no API server: %v", err)
	}
	c.objects["/version"] = `{"gitVersion":"v1.36.3"}`
	if s, err := api.Look(t.Context()); err != nil || s.Version != "v1.36.3" || s.Ahead.Abs().Seconds() > 5 {
		t.Errorf("it is %+v, %v", s, err)
	}

	if missing, err := api.Missing(t.Context()); err != nil || len(missing) != 4 {
		t.Errorf("nothing is there, and missing is %q, %v", missing, err)
	}
	c.objects["/apis/"+coreGroup] = `{"resources":[{"name":"sandboxes"},{"name":"sandboxes/status"}]}`
	c.objects["/apis/"+extensionsGroup] = `{"resources":[{"name":"sandboxclaims"},{"name":"sandboxwarmpools"}]}`
	if missing, err := api.Missing(t.Context()); err != nil || !slices.Equal(missing, []string{"sandboxtemplates of " + extensionsGroup}) {
		t.Errorf("missing is %q, %v", missing, err)
	}

	const reviews = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
	c.objects[reviews] = `{"status":{"allowed":true}}`
	if lacking, err := api.Lacking(t.Context(), "jails"); err != nil || len(lacking) != 0 {
		t.Errorf("lacking is %v, %v", lacking, err)
	}
	c.objects[reviews] = `{"status":{}}`
	namespaced, clustered := Rights()
	lacking, err := api.Lacking(t.Context(), "jails")
	if err != nil || !slices.Equal(lacking, append(namespaced, clustered...)) {
		t.Errorf("lacking is %v, %v", lacking, err)
	}
	delete(c.objects, reviews)
	if _, err := api.Lacking(t.Context(), "jails"); err == nil {
		t.Error("an API server that answers no review")
	}
	for _, r := range lacking {
		if strings.HasSuffix(r.String(), ".") || !strings.Contains(r.String(), " ") {
			t.Errorf("a right is %q", r)
		}
	}
}
