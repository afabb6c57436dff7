package mcpserver

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/clawjail/clawjail/internal/config"
)

// Kind is a kind of what servers offer, by the name that the protocol has for it.
type Kind string

// The kinds. Templates of resources belong to the resources.
const (
	Tools     Kind = "tools"
	Resources Kind = "resources"
	Prompts   Kind = "prompts"
)

// Kinds are all of them.
func Kinds() []Kind { return []Kind{Tools, Resources, Prompts} }

// Offers is what servers offer, or what of it somebody has asked for.
type Offers struct {
	Tools     []*sdk.Tool
	Resources []*sdk.Resource
	Templates []*sdk.ResourceTemplate
	Prompts   []*sdk.Prompt
}

// add puts what is of a kind of others behind what there is.
func (o *Offers) add(kind Kind, more Offers) {
	switch kind {
	case Tools:
		o.Tools = append(o.Tools, more.Tools...)
	case Resources:
		o.Resources = append(o.Resources, more.Resources...)
		o.Templates = append(o.Templates, more.Templates...)
	case Prompts:
		o.Prompts = append(o.Prompts, more.Prompts...)
	}
}

// Count is how much there is of a kind.
func (o Offers) Count(kind Kind) int {
	switch kind {
	case Tools:
		return len(o.Tools)
	case Resources:
		return len(o.Resources) + len(o.Templates)
	case Prompts:
		return len(o.Prompts)
	}
	return 0
}

// Sorted are the same, by name or URI.
func (o Offers) Sorted() Offers {
	return Offers{
		Tools:     sorted(o.Tools, func(t *sdk.Tool) string { return t.Name }),
		Resources: sorted(o.Resources, func(r *sdk.Resource) string { return r.URI }),
		Templates: sorted(o.Templates, func(t *sdk.ResourceTemplate) string { return t.URITemplate }),
		Prompts:   sorted(o.Prompts, func(p *sdk.Prompt) string { return p.Name }),
	}
}

func sorted[T any](all []T, by func(T) string) []T {
	all = slices.Clone(all)
	slices.SortFunc(all, func(a, b T) int { return cmp.Compare(by(a), by(b)) })
	return all
}

// Sum tells what is offered of a kind from something else, in whatever order it stands.
func (o Offers) Sum(kind Kind) string {
	var some Offers
	some.add(kind, o)
	text, err := json.Marshal(some.Sorted())
	if err != nil {
		return rand.Text() // like no other; what is offered always has a form
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:])
}

// Views are of each kind a text that is another one when what is offered is.
type Views map[Kind]string

// Views tell what is offered from something else.
func (o Offers) Views() Views {
	out := Views{}
	for _, kind := range Kinds() {
		out[kind] = o.Sum(kind)
	}
	return out
}

// catalog is what a server offers, as it is offered. It is not changed once it was made.
type catalog struct {
	Offers
	server string
	// tools and prompts are what the server calls them, by the name under which they are offered.
	tools, prompts map[string]string
	// reads says that it has resources, and that they are offered.
	reads bool
	// left counts tools that were left out: by the declaration, because their name is none, or because there are too many.
	left  int
	views Views
}

// newCatalog makes one of a server's own lists, as [pages] has them.
func newCatalog(server config.MCPServer, listed Offers) *catalog {
	c := &catalog{server: server.Name}
	c.Tools, c.tools = gathered(listed.Tools, maxTools, func(t *sdk.Tool) (_ *sdk.Tool, name, own string, ok bool) {
		if t == nil || !properName(t.Name) || !server.Offers(t.Name) {
			return nil, "", "", false
		}
		name = offeredName(server.Name, t.Name)
		return offered(name, t), name, t.Name, true
	})
	c.Resources, _ = gathered(listed.Resources, maxResources, func(r *sdk.Resource) (_ *sdk.Resource, uri, own string, ok bool) {
		uri = offeredURI(server.Name, r.URI)
		out := *r
		out.URI = uri
		return &out, uri, r.URI, true
	})
	c.Templates, _ = gathered(listed.Templates, maxTemplates, func(t *sdk.ResourceTemplate) (_ *sdk.ResourceTemplate, uri, own string, ok bool) {
		uri = offeredURI(server.Name, t.URITemplate)
		out := *t
		out.URITemplate = uri
		return &out, uri, t.URITemplate, true
	})
	c.Prompts, c.prompts = gathered(listed.Prompts, maxPrompts, func(p *sdk.Prompt) (_ *sdk.Prompt, name, own string, ok bool) {
		out := *p
		out.Name = offeredName(server.Name, p.Name)
		return &out, out.Name, p.Name, true
	})
	c.left = len(listed.Tools) - len(c.Tools)
	c.views = c.Offers.Views()
	return c
}

// withTools is the same with the tools of another one.
func (c *catalog) withTools(of *catalog) *catalog {
	out := *c
	out.Tools, out.tools, out.left = of.Tools, of.tools, of.left
	out.views = out.Offers.Views()
	return &out
}

// gathered keeps of a list what can be offered: each once, and at most so many. own is what the server calls it, by the name under
// which it is offered.
func gathered[T any](listed []T, limit int, offer func(T) (made T, name, own string, ok bool)) (out []T, own map[string]string) {
	own = map[string]string{}
	for _, one := range listed {
		if len(out) == limit {
			break
		}
		made, name, its, ok := offer(one)
		if _, taken := own[name]; taken || !ok {
			continue
		}
		own[name] = its
		out = append(out, made)
	}
	return out, own
}

// maxPages bounds the pages of a list. A server may say that there are more for ever.
const maxPages = 16

// pages follows the pages of a list, until the last one, or until there is far more than is offered of it. small makes of an entry what
// is kept of it, nil for nothing, before the next page is asked for: pages may be large. A server that does not know the question has
// nothing of it.
func pages[T any](what string, limit int, small func(*T) *T, page func(cursor string) (some []*T, next string, err error)) (out []*T, err error) {
	cursor := ""
	for range maxPages {
		some, next, err := page(cursor)
		var said *jsonrpc.Error
		switch {
		case errors.As(err, &said) && said.Code == jsonrpc.CodeMethodNotFound:
			return out, nil
		case err != nil:
			return nil, fmt.Errorf("list its %s: %w", what, err)
		}
		for _, one := range some {
			if one != nil {
				one = small(one)
			}
			if one != nil {
				out = append(out, one)
			}
		}
		if next == "" || next == cursor || len(out) > 8*limit {
			break
		}
		cursor = next
	}
	return out, nil
}

// list asks for all that the server offers. When its tools cannot be listed, that is err. When something else cannot, what was known
// of it stays, and missing says why; that is waited for no longer than patience.
func (r *run) list(ctx context.Context, known *catalog, patience time.Duration) (_ *catalog, missing, err error) {
	ctx, cancel := context.WithTimeout(ctx, r.pace.list)
	defer cancel()
	soon, stop := context.WithTimeout(ctx, patience)
	defer stop()
	var listed Offers
	var work sync.WaitGroup
	var noResources, noTemplates, noPrompts error
	reads := r.can().Resources != nil && r.server.OffersResources()
	if reads {
		work.Go(func() {
			listed.Resources, noResources = pages("resources", maxResources, smallResource, func(cursor string) ([]*sdk.Resource, string, error) {
				page, err := r.session.ListResources(soon, &sdk.ListResourcesParams{Cursor: cursor})
				if err != nil {
					return nil, "", err
				}
				return page.Resources, page.NextCursor, nil
			})
		})
		work.Go(func() {
			listed.Templates, noTemplates = pages("templates of resources", maxTemplates, smallTemplate, func(cursor string) ([]*sdk.ResourceTemplate, string, error) {
				page, err := r.session.ListResourceTemplates(soon, &sdk.ListResourceTemplatesParams{Cursor: cursor})
				if err != nil {
					return nil, "", err
				}
				return page.ResourceTemplates, page.NextCursor, nil
			})
		})
	}
	if r.can().Prompts != nil && r.server.OffersPrompts() {
		work.Go(func() {
			listed.Prompts, noPrompts = pages("prompts", maxPrompts, smallPrompt, func(cursor string) ([]*sdk.Prompt, string, error) {
				page, err := r.session.ListPrompts(soon, &sdk.ListPromptsParams{Cursor: cursor})
				if err != nil {
					return nil, "", err
				}
				return page.Prompts, page.NextCursor, nil
			})
		})
	}
	listed.Tools, err = pages("tools", maxTools, func(t *sdk.Tool) *sdk.Tool { return t }, func(cursor string) ([]*sdk.Tool, string, error) {
		page, err := r.session.ListTools(ctx, &sdk.ListToolsParams{Cursor: cursor})
		if err != nil {
			return nil, "", err
		}
		return page.Tools, page.NextCursor, nil
	})
	if err != nil {
		stop()
		work.Wait()
		return nil, nil, err
	}
	work.Wait()
	c := newCatalog(r.server, listed)
	c.reads = reads
	missing = errors.Join(noResources, noTemplates, noPrompts)
	if missing == nil || known == nil {
		return c, missing, nil
	}
	if noResources != nil || noTemplates != nil {
		c.Resources, c.Templates = known.Resources, known.Templates
	}
	if noPrompts != nil {
		c.Prompts, c.prompts = known.Prompts, known.prompts
	}
	c.views = c.Offers.Views()
	return c, missing, nil
}

// can is what the server says that it can.
func (r *run) can() *sdk.ServerCapabilities {
	if hello := r.session.InitializeResult(); hello != nil && hello.Capabilities != nil {
		return hello.Capabilities
	}
	return &sdk.ServerCapabilities{}
}
