package kubernetes

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/clawjail/clawjail/internal/base/wake"
	"github.com/clawjail/clawjail/internal/jail"
	"github.com/clawjail/clawjail/internal/jail/kubernetes/shim"
)

// brokenFor is how long the connection of a pod may be broken before the API server is asked whether the pod has ended. It is asked again after
// twice as long each time, and after maxStuck at most.
const brokenFor = 500 * time.Millisecond

// reasonMemory is what a kubelet says of a container that its memory limit has ended. With version 2 of control groups all that is in it ends then,
// and nobody is left to say so.
const reasonMemory = "OOMKilled"

// broken looks whether a pod has ended whose connection is broken. One that has ended is not waited for, and neither is one that is not there.
func (d *Driver) broken(p *shim.Pod) {
	d.watchers.Go(func() {
		id := p.About().(Identity)
		for pause := brokenFor; wake.Sleep(d.background, pause) && p.Broken(); pause = min(2*pause, maxStuck) {
			reason, over, err := d.o.API.over(d.background, d.o.Namespace, id)
			if err != nil || !over {
				continue
			}
			d.o.Log.Warn("a pod has ended", "pod", id.Pod, "reason", reason)
			d.mu.Lock()
			if one := d.at[p.Address()]; one != nil && one.Pod == p {
				one.exit = d.exitFor(reason)
			}
			d.mu.Unlock()
			p.Forget()
			return
		}
	})
}

// exitOf is how the program of a pod has ended whose connection is over.
func (d *Driver) exitOf(p *pod) jail.Exit {
	d.mu.Lock()
	defer d.mu.Unlock()
	if p.exit != nil {
		return *p.exit
	}
	return jail.Exit{Code: -1, Cause: jail.CauseOwnerLost, At: d.o.Now()}
}

// exitFor is how the program of a pod has ended that ended for a reason of the cluster's.
func (d *Driver) exitFor(reason string) *jail.Exit {
	exit := &jail.Exit{Code: -1, Signal: "killed", Cause: jail.CauseExited, At: d.o.Now()}
	if reason == reasonMemory {
		exit.Cause, exit.Hit = jail.CauseMemory, []jail.LimitName{jail.LimitMemory}
	}
	return exit
}

// over says whether a pod has ended or is not there, and why.
func (a *API) over(ctx context.Context, namespace string, id Identity) (reason string, over bool, err error) {
	var pod podStatus
	switch err := a.ask(ctx, http.MethodGet, object("v1", namespace, "pods", id.Pod), nil, &pod); {
	case errors.Is(err, errNoObject), err == nil && pod.Meta.UID != id.UID:
		return "it is not there any more", true, nil
	case err != nil:
		return "", false, err
	}
	for _, c := range pod.Status.Containers {
		if c.State.Terminated != nil {
			return c.State.Terminated.Reason, true, nil
		}
	}
	return pod.Status.Reason, pod.Status.Phase == "Succeeded" || pod.Status.Phase == "Failed", nil
}
