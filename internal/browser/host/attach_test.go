package host

import (
	"context"
	"encoding/json"
	"path/filepath"
	"testing"
	"time"

	"github.com/clawjail/clawjail/internal/browser"
	"github.com/clawjail/clawjail/internal/browser/host/hosttest"
)

// DevTools clients of the host browser were told of the contexts in which its files are read and written, and could open
// pages there.
func TestTheHostsOwnContextsAreHiddenFromDevtoolsClients(t *testing.T) {
	home, ok := hosttest.AsUser(t)
	if !ok {
		return
	}
	k := started(t, options(filepath.Join(home, "data")))
	client, err := k.Attach(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	put := make(chan error, 1)
	go func() {
		_, err := k.Drive(ctx, browser.PutFile{Name: "a.bin", Data: make([]byte, 8<<20)})
		put <- err
	}()
	for {
		select {
		case err := <-put:
			if err != nil {
				t.Fatal(err)
			}
			return
		default:
		}
		if err := client.Send(ctx, []byte(`{"id":1,"method":"Target.getBrowserContexts"}`)); err != nil {
			t.Fatal(err)
		}
		frame, err := client.Receive(ctx)
		if err != nil {
			t.Fatal(err)
		}
		var m struct {
			Result struct {
				IDs []string `json:"browserContextIds"`
			} `json:"result"`
		}
		if err := json.Unmarshal(frame, &m); err != nil {
			t.Fatal(err)
		}
		if len(m.Result.IDs) > 0 {
			t.Errorf("a client was told of a context of the browser's own: %s", frame)
			<-put
			return
		}
	}
}
