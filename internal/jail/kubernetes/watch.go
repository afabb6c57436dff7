package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/clawjail/clawjail/internal/base/wake"
)

// watchAgain is how long is waited before an object is watched again, when the API server has ended it.
const watchAgain = 100 * time.Millisecond

// watch follows one object of a kind, by one request where the API server does not end it, until see says that it is enough, or the context ends.
// It is shown as it is first, if it is there. gone is one that is deleted now.
func (a *API) watch(ctx context.Context, path, name string, see func(object jsontext.Value, gone bool) (enough bool, err error)) error {
	query := url.Values{"watch": {"true"}, "fieldSelector": {"metadata.name=" + name}}
	for {
		enough, err := a.follow(ctx, path+"?"+query.Encode(), func() {}, see)
		if enough || err != nil && ctx.Err() == nil {
			return err
		}
		if !wake.Sleep(ctx, watchAgain) {
			return ctx.Err()
		}
	}
}

// follow is one request of watch. It calls began when the API server has agreed to it.
func (a *API) follow(ctx context.Context, path string, began func(), see func(jsontext.Value, bool) (bool, error)) (enough bool, err error) {
	answer, err := a.send(ctx, a.streams, http.MethodGet, path, nil)
	if err != nil {
		return false, err
	}
	defer func() { _ = answer.Body.Close() }() // it was read as far as it is needed
	if answer.StatusCode != http.StatusOK {
		text, err := io.ReadAll(io.LimitReader(answer.Body, maxAnswer))
		if err == nil {
			err = refusalOf(answer.StatusCode, text)
		}
		return false, err
	}
	began()
	events := &io.LimitedReader{R: answer.Body}
	for d := jsontext.NewDecoder(events); ; {
		events.N = maxAnswer // of each
		var event struct {
			Type   string         `json:"type"`
			Object jsontext.Value `json:"object"`
		}
		switch err := json.UnmarshalDecode(d, &event); {
		case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), err != nil && ctx.Err() != nil:
			return false, nil // the API server ends it now and then
		case err != nil:
			return false, fmt.Errorf("read what happens in the cluster: %w", err)
		}
		switch event.Type {
		case "ADDED", "MODIFIED", "DELETED":
			if enough, err := see(event.Object, event.Type == "DELETED"); enough || err != nil {
				return enough, err
			}
		case "ERROR":
			return false, nil // such as that it has fallen behind
		}
	}
}

// send sends a request.
func (a *API) send(ctx context.Context, client *http.Client, method, path string, body io.Reader) (*http.Response, error) {
	token, err := os.ReadFile(a.access.Token)
	if err != nil {
		return nil, err
	}
	r, err := http.NewRequestWithContext(ctx, method, a.access.Server+path, body)
	if err != nil {
		return nil, err
	}
	r.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	if body != nil {
		r.Header.Set("Content-Type", "application/json")
		if method == http.MethodPatch {
			r.Header.Set("Content-Type", "application/merge-patch+json")
		}
	}
	a.requests.Add(1)
	answer, err := client.Do(r)
	if err != nil {
		return nil, unanswered(ctx, err)
	}
	return answer, nil
}
