package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"sync"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/clawjail/clawjail/internal/base/wake"
	"github.com/clawjail/clawjail/internal/problem"
)

// claims knows the SandboxClaims of a control plane by one watch of all of them, instead of a request for each that is waited for.
type claims struct {
	api       *API
	namespace string
	labels    map[string]string
	log       *slog.Logger

	mu       sync.Mutex       // guards what follows
	changed  chan struct{}    // closed with the next change
	all      map[string]claim // by name: claims that exist, or are about to be made
	listings int              // how many lists were begun
	failed   error            // why the watch does not work; nil while it does
	failures int              // how often it failed in a row
}

// claim is what is known of one SandboxClaim.
type claim struct {
	sandbox string // the name of its Sandbox, once it has one
	seen    bool   // whether the API server has shown it
	after   int    // only a later list than this one can say that it is gone
}

func followClaims(a *API, namespace string, labels map[string]string, log *slog.Logger) *claims {
	return &claims{api: a, namespace: namespace, labels: labels, log: log, changed: make(chan struct{}), all: map[string]claim{}}
}

// path is the address of the list of claims.
func (c *claims) path() string { return selected(c.namespace, "sandboxclaims", c.labels, "") }

// claimObject is a claim as the API server shows it.
type claimObject struct {
	Meta   Meta `json:"metadata"`
	Status struct {
		Sandbox struct {
			Name string `json:"name"`
		} `json:"sandbox"`
	} `json:"status"`
}

const (
	// listAgain is the pause between the end of a watch and the next list.
	listAgain = time.Second
	// maxFollow is how long a watch lasts until the claims are listed again, and followLate how late the API server may end it.
	maxFollow, followLate = 10 * time.Minute, 30 * time.Second
)

// run watches the claims until the context ends.
func (c *claims) run(ctx context.Context) {
	for {
		err := c.follow(ctx)
		if ctx.Err() != nil {
			return
		}
		first := false
		c.change(func() {
			if c.failures++; err == nil {
				c.failures = 0
			}
			c.failed, first = err, c.failures == 1
		})
		if first {
			c.log.Warn("follow the claims of this control plane", "error", err)
		}
		wake.Sleep(ctx, listAgain)
	}
}

// follow lists the claims, and then reads their changes until the API server ends the watch.
func (c *claims) follow(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, maxFollow+followLate)
	defer cancel()
	_, version, err := c.list(ctx, true)
	if err != nil {
		return err
	}
	path := fmt.Sprintf("%s&watch=true&resourceVersion=%s&timeoutSeconds=%d", c.path(), url.QueryEscape(version), int(maxFollow.Seconds()))
	began := func() { c.change(func() { c.failed, c.failures = nil, 0 }) }
	_, err = c.api.follow(ctx, path, began, func(object jsontext.Value, gone bool) (bool, error) {
		return false, c.see(object, gone)
	})
	return err
}

// names lists the claims, and forgets those whose end the watch has missed.
func (c *claims) names(ctx context.Context) ([]string, error) {
	names, _, err := c.list(ctx, false)
	return names, err
}

// list lists the claims, and forgets those that are gone. Only with learn does it remember claims that were not known: without a watch
// their end would be missed.
func (c *claims) list(ctx context.Context, learn bool) (names []string, version string, err error) {
	c.mu.Lock()
	c.listings++
	listing := c.listings
	c.mu.Unlock()
	there := map[string]bool{}
	version, err = c.api.list(ctx, c.path(), func(object jsontext.Value) error {
		seen, err := claimOf(object)
		names, there[seen.Meta.Name] = append(names, seen.Meta.Name), true
		if err == nil {
			c.change(func() { c.put(seen, learn) })
		}
		return err
	})
	if err != nil {
		return nil, "", err
	}
	c.change(func() {
		for name, one := range c.all {
			if !there[name] && one.after < listing {
				delete(c.all, name)
			}
		}
	})
	return names, version, nil
}

func claimOf(object jsontext.Value) (seen claimObject, err error) {
	if err := json.Unmarshal(object, &seen); err != nil {
		return claimObject{}, fmt.Errorf("read a claim: %w", err)
	}
	return seen, nil
}

func (c *claims) see(object jsontext.Value, gone bool) error {
	seen, err := claimOf(object)
	if err != nil {
		return err
	}
	c.change(func() {
		if gone {
			delete(c.all, seen.Meta.Name)
			return
		}
		c.put(seen, true)
	})
	return nil
}

// put remembers the state of a claim; with learn also of one that was not known. The caller holds c.mu.
func (c *claims) put(seen claimObject, learn bool) {
	one, is := c.all[seen.Meta.Name]
	if !is && !learn {
		return
	}
	if !is {
		one.after = c.listings
	}
	one.sandbox, one.seen = seen.Status.Sandbox.Name, true
	c.all[seen.Meta.Name] = one
}

// change changes what is known, and wakes the callers that wait.
func (c *claims) change(do func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	do()
	close(c.changed)
	c.changed = make(chan struct{})
}

// expect remembers that a claim is about to be made, or exists.
func (c *claims) expect(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, is := c.all[name]; !is {
		c.all[name] = claim{after: c.listings}
	}
}

// await waits until enough is true of what is known of a claim, or returns an error.
func (c *claims) await(ctx context.Context, name string, enough func(one claim, is bool) (bool, error)) error {
	for {
		c.mu.Lock()
		one, is := c.all[name]
		changed, failed := c.changed, c.failed
		is, err := enough(one, is)
		c.mu.Unlock()
		if is || err != nil {
			return err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.DeadlineExceeded) && failed != nil {
				return failed
			}
			return ctx.Err()
		}
	}
}

// sandbox waits until a claim that was made has its Sandbox, and returns its name.
func (c *claims) sandbox(ctx context.Context, name string) (sandbox string, err error) {
	seen := false
	err = c.await(ctx, name, func(one claim, is bool) (bool, error) {
		switch {
		case seen && !is:
			return false, ErrNotFound
		case problem.CodeOf(c.failed) == problem.Forbidden && c.failures > 1:
			return false, c.failed // permissions do not come by waiting
		}
		seen, sandbox = one.seen, one.sandbox
		return sandbox != "", nil
	})
	if err != nil {
		return "", fmt.Errorf("wait for the Sandbox of the claim %s: %w", name, err)
	}
	return sandbox, nil
}

// goneLimit is how long a claim and its pod may take to go: a node ends a few pods in a second.
const goneLimit = 50 * time.Second

// remove deletes a claim, its Sandbox and its pod, and returns when they are gone. One that is not of this control plane stays.
func (c *claims) remove(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(ctx, goneLimit)
	defer cancel()
	c.expect(name)
	var deleted struct {
		Items []struct{} `json:"items"`
	}
	err := c.api.ask(ctx, http.MethodDelete, selected(c.namespace, "sandboxclaims", c.labels, name), map[string]any{"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Foreground"}, &deleted)
	switch {
	case errors.Is(err, ErrNotFound), err == nil && len(deleted.Items) == 0: // there is none
		c.change(func() { delete(c.all, name) })
		return nil
	case err == nil:
		err = c.await(ctx, name, func(_ claim, is bool) (bool, error) { return !is, nil })
	}
	if err != nil {
		return fmt.Errorf("delete the claim %s: %w", name, err)
	}
	return nil
}
