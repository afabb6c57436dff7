package doctor

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/clawjail/clawjail/internal/problem"
)

// podCheck is the name of the check that starts a browser in a pod.
const podCheck = "pod"

// maxAhead is how far the clocks of this machine and of the cluster may be apart: tokens of pods are good for minutes.
const maxAhead = 30 * time.Second

// podsTable lists the checks where jails are pods of a cluster: of this machine only what the control plane needs.
func podsTable() []check {
	return []check{
		{"configuration", false, configuration},
		{"user", false, controlUser},
		{"disk_data", false, diskData},
		{"disk_run", false, diskRun},
		{"cluster", true, ofCluster(apiServer)},
		{"agent_sandbox", true, ofCluster(agentSandbox)},
		{"cluster_rights", true, ofCluster(clusterRights)},
		{podCheck, true, ofCluster(pod)},
		{"resolver", false, resolver},
		{"keys", true, keys},
		{"certificate", false, certificate},
		{"host_daemon", false, hostDaemon},
		{"api", false, apiHealth},
	}
}

// ofCluster is a check that asks a cluster. It is skipped where nothing could.
func ofCluster(run func(context.Context, *exam) Result) func(context.Context, *exam) Result {
	return func(ctx context.Context, e *exam) Result {
		if e.Cluster == nil {
			return notHere()
		}
		return run(ctx, e)
	}
}

func apiServer(ctx context.Context, e *exam) Result {
	s, err := e.Cluster(ctx)
	if err != nil {
		return failed(fmt.Errorf("ask the API server: %w", err))
	}
	facts := Facts{"version": s.Version, "ahead_seconds": s.Ahead.Seconds()}
	if s.Ahead.Abs() > maxAhead {
		return fails("the clock of the API server is %s from this machine's, and tokens of pods are good for minutes", s.Ahead.Abs()).facts(facts).
			hint("have both kept right over the network")
	}
	return fine("the API server answers, Kubernetes %s", s.Version).facts(facts)
}

func agentSandbox(ctx context.Context, e *exam) Result {
	missing, err := e.Missing(ctx)
	if err != nil {
		return failed(fmt.Errorf("ask what kinds of objects there are: %w", err))
	}
	if len(missing) > 0 {
		return fails("the cluster has no %s", strings.Join(missing, ", ")).fact("missing", missing).hint("install agent-sandbox 1.0 with its extensions")
	}
	return fine("the cluster has what jails are made of")
}

func clusterRights(ctx context.Context, e *exam) Result {
	lacking, err := e.Lacking(ctx)
	if err != nil {
		return failed(fmt.Errorf("ask what the service account may do: %w", err))
	}
	if len(lacking) == 0 {
		return fine("the service account may do what is done with jails in the namespace %s", e.Config.Kubernetes.Namespace)
	}
	var names []string
	for _, r := range lacking {
		names = append(names, r.String())
	}
	return fails("in the namespace %s the service account may not %s", e.Config.Kubernetes.Namespace, strings.Join(names, ", ")).fact("lacking", names).
		hint("install the chart, packaging/kubernetes/chart, or give it these rights: kubectl auth can-i --list")
}

func pod(ctx context.Context, e *exam) Result {
	facts, err := e.Pod(ctx)
	switch problem.CodeOf(err) {
	case "":
	case problem.HostdUnreachable:
		return skipped("the host daemon does not answer, which makes pods").hint("see the check host_daemon")
	case problem.TemplateMissing:
		if e.Config.Kubernetes.Images[browserTemplate] == "" {
			return skipped("kubernetes.images names no image with a browser")
		}
	}
	if err != nil {
		return failed(fmt.Errorf("start a browser in a pod: %w", err)).facts(facts)
	}
	return fine("%v answered in a pod that is confined as declared, and reaches nothing but the gateway", facts["product"]).facts(facts)
}
