package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/clawjail/clawjail/internal/base/texts"
	"github.com/clawjail/clawjail/internal/base/wake"
	"github.com/clawjail/clawjail/internal/problem"
)

const (
	// stuckAfter is how long a pod may take before it is looked at why it is not there. It is looked at again after twice as long each time,
	// and after maxStuck at most.
	stuckAfter, maxStuck = 2 * time.Second, 8 * time.Second
	// maxReason bounds what a cluster says, in bytes.
	maxReason = 500
)

// state is why a pod, or its Sandbox, is not what it should be.
type state struct {
	Reason  string `json:"reason"`
	Message string `json:"message"`
}

type condition struct {
	Type   string `json:"type"`
	Status string `json:"status"`
	state
}

// stuck is why the pod of a Sandbox does not come. final says that waiting does not help: else the reason may go, as when a node is added.
func (a *API) stuck(ctx context.Context, namespace, sandbox string) (why error, final bool, err error) {
	var pod struct {
		Status struct {
			Conditions []condition       `json:"conditions"`
			Before     []containerStatus `json:"initContainerStatuses"`
			Containers []containerStatus `json:"containerStatuses"`
		} `json:"status"`
	}
	if err := a.ask(ctx, http.MethodGet, object("v1", namespace, "pods", sandbox), nil, &pod); errors.Is(err, ErrNotFound) {
		return a.podless(ctx, namespace, sandbox)
	} else if err != nil {
		return nil, false, err
	}
	say := func(code, hint, what, message string) error {
		return problem.New(code, hint, "%s: %s", what, texts.Clip(message, maxReason))
	}
	for _, c := range pod.Status.Conditions {
		switch {
		case c.Type != "PodScheduled" || c.Status != "False":
		case strings.Contains(c.Message, "PersistentVolumeClaim"):
			return say(problem.RuntimeMissing, "name a class in kubernetes.storage_class, and in kubernetes.shared_storage_class one that several nodes can mount (ReadWriteMany): kubectl describe pvc",
				"the cluster makes no volume for the pod", c.Message), false, nil
		default:
			return say(problem.PoolExhausted, "close sessions, or give the cluster more nodes", "no node has room for the pod", c.Message), false, nil
		}
	}
	for n, c := range append(pod.Status.Before, pod.Status.Containers...) {
		switch w, t := c.State.Waiting, c.State.Terminated; {
		case t != nil && n < len(pod.Status.Before) && t.ExitCode == 0: // it has done its part
		case t != nil:
			return say(problem.JailFailed, "look at its log: kubectl logs", "the pod has ended before it connected", fmt.Sprintf("%s (%d)", t.Reason, t.ExitCode)), true, nil
		case w == nil:
		case slices.Contains([]string{"ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName", "ErrImageInspect", "RegistryUnavailable"}, w.Reason):
			return say(problem.TemplateMissing, "push the image, correct its name (that of a template's is in kubernetes.images), and let the nodes pull it", "the image cannot be had", w.Message), w.Reason != "ErrImagePull", nil // which is tried again
		case slices.Contains([]string{"CreateContainerConfigError", "CreateContainerError", "RunContainerError", "CrashLoopBackOff"}, w.Reason):
			return say(problem.RuntimeMissing, "look at what the node lacks, such as the profile of kubernetes.seccomp: see docs/kubernetes.md", "the node cannot start the pod", w.Message), true, nil
		case w.Reason == "ContainerCreating", w.Reason == "PodInitializing":
			return problem.New(problem.Timeout, "wait until the node has the image, and try again: kubectl get events", "the node has not started the pod yet"), false, nil
		}
	}
	return nil, false, nil
}

// podless is why a Sandbox has no pod.
func (a *API) podless(ctx context.Context, namespace, name string) (why error, final bool, err error) {
	var sandbox struct {
		Status struct {
			Conditions []condition `json:"conditions"`
		} `json:"status"`
	}
	if err := a.ask(ctx, http.MethodGet, object(coreGroup, namespace, "sandboxes", name), nil, &sandbox); err != nil {
		return nil, false, err
	}
	for _, c := range sandbox.Status.Conditions {
		if c.Reason == "ReconcilerError" {
			return problem.New(problem.PoolExhausted, "close sessions, or look at the quota and the admission of the namespace", "the cluster makes no pod: %s", texts.Clip(c.Message, maxReason)), true, nil
		}
	}
	return nil, false, nil
}

// watchStuck looks again and again why the pod of a Sandbox does not come, and tells, until the context ends.
func (d *Driver) watchStuck(ctx context.Context, sandbox string, tell func(why error, final bool)) {
	for pause := stuckAfter; wake.Sleep(ctx, pause); pause = min(2*pause, maxStuck) {
		if why, final, err := d.o.API.stuck(ctx, d.o.Namespace, sandbox); err == nil && why != nil {
			tell(why, final)
		}
	}
}
