package doctor

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/config"
	"github.com/clawjail/clawjail/internal/jail/kubernetes"
	"github.com/clawjail/clawjail/internal/problem"
)

// newClusterFake is a host whose jails are pods of a cluster in which all is well.
func newClusterFake(t *testing.T) *fake {
	f := newFake(t)
	f.Config.Kubernetes = config.Kubernetes{Namespace: "jails", Images: map[string]string{browserTemplate: "image"}}
	f.Cluster = func(context.Context) (kubernetes.Server, error) {
		return kubernetes.Server{Version: "v1.36.3", Ahead: -time.Second}, nil
	}
	f.Missing = func(context.Context) ([]string, error) { return nil, nil }
	f.Lacking = func(context.Context) ([]kubernetes.Right, error) { return nil, nil }
	f.Pod = func(context.Context) (Facts, error) { return Facts{"product": "Chrome/1"}, nil }
	return f
}

func TestAClusterIsLookedAtInPlaceOfThisMachine(t *testing.T) {
	f := newClusterFake(t)
	r := Run(t.Context(), f.Options, f.Host)
	if !r.OK {
		t.Errorf("the report is %+v", r.Checks)
	}
	var names []string
	for _, c := range r.Checks {
		names = append(names, c.Name)
		if c.Status != OK {
			t.Errorf("%s: %+v", c.Name, c)
		}
	}
	if got := strings.Join(names, " "); !strings.Contains(got, "cluster agent_sandbox cluster_rights pod") || strings.Contains(got, "storage") {
		t.Errorf("the checks are %s", got)
	}
	gone := problem.New(problem.UpstreamUnreachable, "look whether it runs", "it does not answer")
	for what, c := range map[string]struct {
		check         string
		away          func()
		want          Status
		says, advises string
	}{
		"the API server": {"cluster", func() {
			f.Cluster = func(context.Context) (kubernetes.Server, error) { return kubernetes.Server{}, gone }
		}, Fail, "does not answer", "whether it runs"},
		"a clock that is right": {"cluster", func() {
			f.Cluster = func(context.Context) (kubernetes.Server, error) {
				return kubernetes.Server{Ahead: -2 * time.Minute}, nil
			}
		}, Fail, "2m0s", "right over the network"},
		"agent-sandbox": {"agent_sandbox", func() { f.Missing = func(context.Context) ([]string, error) { return []string{"sandboxclaims"}, nil } }, Fail, "no sandboxclaims", "agent-sandbox 1.0"},
		"an answer":     {"agent_sandbox", func() { f.Missing = func(context.Context) ([]string, error) { return nil, gone } }, Fail, "does not answer", "whether it runs"},
		"a right": {"cluster_rights", func() {
			f.Lacking = func(context.Context) ([]kubernetes.Right, error) {
				return []kubernetes.Right{{Verb: "get", Group: "", Resource: "pods"}}, nil
			}
		}, Fail, "may not get pods", "can-i"},
		"an answer about rights":                {"cluster_rights", func() { f.Lacking = func(context.Context) ([]kubernetes.Right, error) { return nil, gone } }, Fail, "does not answer", "whether it runs"},
		"a network that enforces":               {"pod", func() { fail(&f.Pod, problem.New(problem.NetworkNotEnforced, "use another", "it reaches too much")) }, Fail, "reaches too much", "use another"},
		"the host daemon":                       {"pod", func() { fail(&f.Pod, problem.New(problem.HostdUnreachable, "", "gone")) }, Skip, "does not answer", "host_daemon"},
		"an image of a browser that can be had": {"pod", func() { fail(&f.Pod, problem.New(problem.TemplateMissing, "push it", "the image cannot be had")) }, Fail, "cannot be had", "push it"},
		"an image of a browser": {"pod", func() {
			f.Config.Kubernetes.Images = nil
			fail(&f.Pod, problem.New(problem.TemplateMissing, "", "none"))
		}, Skip, "no image", ""},
		"a system that can ask": {"cluster", func() { f.Cluster = nil }, Skip, "Linux", ""},
		"root":                  {"cluster_rights", func() { f.UID = 1001 }, Skip, "root", "sudo"},
	} {
		f = newClusterFake(t)
		c.away()
		if r := f.check(c.check); r.Status != c.want || !strings.Contains(r.Message, c.says) || !strings.Contains(r.Hint, c.advises) {
			t.Errorf("without %s: %+v", what, r)
		}
	}
}
