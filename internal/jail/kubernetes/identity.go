package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/clawjail/clawjail/internal/problem"
)

// Audience is the audience of the tokens that pods show. A token for the API server is refused here, and this one is refused there.
const Audience = "clawjail-gateway"

// Identity is the pod that has connected, and the Sandbox and claim that it belongs to.
type Identity struct {
	Pod     string
	UID     string // of the pod: another one of the same name has another one
	Sandbox string
	// Claim is the claim that has taken the Sandbox. A Sandbox that is not taken waits in a Pool.
	Claim, Pool string
}

// Identify finds the pod that has connected from an address and shows a token. It goes from the token to the pod, to its Sandbox, and to
// the claim, and each has to say the same as the one before. The code of a refusal is unauthorized.
func (a *API) Identify(ctx context.Context, namespace, token string, from netip.Addr) (Identity, error) {
	return a.identify(ctx, namespace, token, from, func(string) string { return "" })
}

// identify is Identify. made is the UID of a claim that the caller has made itself and not deleted, or empty: of such a one nobody is asked.
func (a *API) identify(ctx context.Context, namespace, token string, from netip.Addr, made func(claim string) (uid string)) (Identity, error) {
	var id Identity
	refuse := func(format string, args ...any) (Identity, error) {
		return Identity{}, problem.New(problem.Unauthorized, "only pods that clawjail has made are let in, with the token that they are given", format, args...)
	}
	missing := func(what string, err error) (Identity, error) {
		if errors.Is(err, ErrNotFound) {
			return refuse("%s is not there", what)
		}
		return Identity{}, fmt.Errorf("identify a pod: %w", err)
	}
	review, err := a.review(ctx, token)
	if err != nil {
		return missing("the review of tokens", err)
	}
	user := review.Status.User
	if !review.Status.Authenticated || !slices.Contains(review.Status.Audiences, Audience) {
		return refuse("the token is none of a pod, is too old, or is for somebody else")
	}
	if !strings.HasPrefix(user.Username, "system:serviceaccount:"+namespace+":") {
		return refuse("the token is of another namespace than %s", namespace)
	}
	names, uids := user.Extra["authentication.kubernetes.io/pod-name"], user.Extra["authentication.kubernetes.io/pod-uid"]
	if len(names) != 1 || len(uids) != 1 {
		return refuse("the token is bound to no pod")
	}
	id.Pod, id.UID = names[0], uids[0]
	pod, err := a.addressed(ctx, namespace, id.Pod)
	if err != nil {
		return missing("the pod "+id.Pod, err)
	}
	switch {
	case pod.Meta.UID != id.UID:
		return refuse("the token is of an earlier pod %s", id.Pod)
	case pod.Meta.Deleted != nil || pod.Status.Phase == "Succeeded" || pod.Status.Phase == "Failed":
		return refuse("the pod %s has ended, or is deleted", id.Pod)
	}
	if !slices.ContainsFunc(pod.Status.IPs, func(one podIP) bool { return one.IP.Unmap() == from.Unmap() }) {
		return refuse("the token is of the pod %s, which has not the address %s", id.Pod, from)
	}
	owner, ok := pod.Meta.controller()
	if !ok || owner.APIVersion != coreGroup || owner.Kind != "Sandbox" {
		return refuse("the pod %s is of no Sandbox", id.Pod)
	}
	var sandbox struct {
		Meta Meta `json:"metadata"`
	}
	if err := a.ask(ctx, http.MethodGet, object(coreGroup, namespace, "sandboxes", owner.Name), nil, &sandbox); err != nil {
		return missing("the Sandbox "+owner.Name, err)
	}
	if sandbox.Meta.UID != owner.UID || sandbox.Meta.Deleted != nil {
		return refuse("the Sandbox %s of the pod is deleted", owner.Name)
	}
	id.Sandbox = sandbox.Meta.Name
	owner, ok = sandbox.Meta.controller()
	switch {
	case !ok || owner.APIVersion != extensionsGroup:
		return refuse("the Sandbox %s is of no warm pool and of no claim", id.Sandbox)
	case owner.Kind == "SandboxWarmPool":
		id.Pool = owner.Name
		return id, nil
	case owner.Kind != "SandboxClaim":
		return refuse("the Sandbox %s is of no warm pool and of no claim", id.Sandbox)
	}
	if uid := made(owner.Name); uid != "" {
		if uid != owner.UID {
			return refuse("the Sandbox %s is of an earlier claim %s", id.Sandbox, owner.Name)
		}
		id.Claim = owner.Name
		return id, nil
	}
	var claim claimObject
	if err := a.ask(ctx, http.MethodGet, object(extensionsGroup, namespace, "sandboxclaims", owner.Name), nil, &claim); err != nil {
		return missing("the claim "+owner.Name, err)
	}
	// The claim says which Sandbox it has a moment after the Sandbox says whose it is.
	if claim.Meta.UID != owner.UID || claim.Meta.Deleted != nil || claim.Status.Sandbox.Name != "" && claim.Status.Sandbox.Name != id.Sandbox {
		return refuse("the claim %s has another Sandbox than %s, or is deleted", owner.Name, id.Sandbox)
	}
	id.Claim = claim.Meta.Name
	return id, nil
}

type podStatus struct {
	Meta   Meta `json:"metadata"`
	Status struct {
		Phase      string            `json:"phase"`
		Reason     string            `json:"reason"`
		IPs        []podIP           `json:"podIPs"`
		Containers []containerStatus `json:"containerStatuses"`
	} `json:"status"`
}

type containerStatus struct {
	State struct {
		Waiting    *state `json:"waiting"`
		Terminated *struct {
			state
			ExitCode int `json:"exitCode"`
		} `json:"terminated"`
	} `json:"state"`
}

type podIP struct {
	IP netip.Addr `json:"ip"`
}

// addressLimit is how long a kubelet may take to tell the API server the address of a pod that runs already. One that starts many takes
// seconds. It is less than a pod has to be known in.
const addressLimit = 8 * time.Second

// addressed is a pod, when its address is known.
func (a *API) addressed(ctx context.Context, namespace, name string) (pod podStatus, err error) {
	within, cancel := context.WithTimeout(ctx, addressLimit)
	defer cancel()
	seen := false
	err = a.watch(within, resource("v1", namespace, "pods"), name, func(object jsontext.Value, gone bool) (bool, error) {
		if gone {
			return false, ErrNotFound
		}
		seen, pod = true, podStatus{}
		err := json.Unmarshal(object, &pod)
		return len(pod.Status.IPs) > 0, err
	})
	switch {
	case err == nil || ctx.Err() != nil || within.Err() == nil:
		return pod, err
	case seen:
		return pod, nil // it has no address
	}
	return pod, ErrNotFound
}

type tokenReview struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Spec       struct {
		Token     string   `json:"token"`
		Audiences []string `json:"audiences"`
	} `json:"spec"`
	Status struct {
		Authenticated bool     `json:"authenticated"`
		Audiences     []string `json:"audiences"`
		User          struct {
			Username string              `json:"username"`
			Extra    map[string][]string `json:"extra"`
		} `json:"user"`
	} `json:"status,omitzero"`
}

// review asks the API server whose a token is.
func (a *API) review(ctx context.Context, token string) (tokenReview, error) {
	r := tokenReview{APIVersion: "authentication.k8s.io/v1", Kind: "TokenReview"}
	r.Spec.Token, r.Spec.Audiences = token, []string{Audience}
	var answer tokenReview
	err := a.ask(ctx, http.MethodPost, "/apis/authentication.k8s.io/v1/tokenreviews", r, &answer)
	return answer, err
}
