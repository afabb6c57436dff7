package mcpserver

import (
	"context"
	"strings"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/problem"
)

// Bounds of what is told of resources.
const (
	maxResources = 512
	maxTemplates = 128
	maxURI       = 2 << 10 // bytes
	// uriMark is what an offered URI begins with.
	uriMark = "mcp+"
)

// offeredURI is how a resource is called by those who are offered it: mcp+server+ before the server's own URI, which makes a scheme of
// its own: two servers may have the same URI. The rest is as the server wrote it, so that a template makes the same of its
// variables.
func offeredURI(server, uri string) string { return uriMark + server + "+" + uri }

// ownURI takes an offered URI apart. The server is empty when it is none. The name of a server has no +.
func ownURI(offered string) (server, uri string) {
	rest, found := strings.CutPrefix(offered, uriMark)
	server, uri, whole := strings.Cut(rest, "+")
	if !found || !whole || !properURI(uri) {
		return "", ""
	}
	return server, uri
}

func properURI(s string) bool {
	return s != "" && len(s) <= maxURI && !strings.ContainsFunc(s, func(r rune) bool { return invisible(r) || r == '\uFFFD' })
}

// smallResource is a resource in bounded, visible text, nil when it has no URI that could be offered.
func smallResource(r *sdk.Resource) *sdk.Resource {
	if !properURI(r.URI) {
		return nil
	}
	return &sdk.Resource{URI: r.URI, Name: visible(r.Name, maxTitle), Title: visible(r.Title, maxTitle), Description: visible(r.Description, maxDescription),
		MIMEType: visible(r.MIMEType, maxTitle), Size: max(0, r.Size), Annotations: annotations(r.Annotations)}
}

// smallTemplate is a template of resources in bounded, visible text, nil when it has none that could be offered.
func smallTemplate(t *sdk.ResourceTemplate) *sdk.ResourceTemplate {
	if !properURI(t.URITemplate) {
		return nil
	}
	return &sdk.ResourceTemplate{URITemplate: t.URITemplate, Name: visible(t.Name, maxTitle), Title: visible(t.Title, maxTitle),
		Description: visible(t.Description, maxDescription), MIMEType: visible(t.MIMEType, maxTitle), Annotations: annotations(t.Annotations)}
}

// annotations are those that the protocol knows.
func annotations(a *sdk.Annotations) *sdk.Annotations {
	if a == nil {
		return nil
	}
	out := &sdk.Annotations{LastModified: visible(a.LastModified, 64), Priority: min(max(a.Priority, 0), 1)}
	for _, role := range a.Audience[:min(len(a.Audience), 2)] {
		if role == "user" || role == "assistant" {
			out.Audience = append(out.Audience, role)
		}
	}
	return out
}

// link is the URI of a resource in an answer: one that can be read here, where the server has resources.
func (c *catalog) link(uri string) string {
	if c.reads && properURI(uri) {
		return offeredURI(c.server, uri)
	}
	return visible(uri, maxURI)
}

// contents are those of a resource as they are passed on.
func (c *catalog) contents(r *sdk.ResourceContents) *sdk.ResourceContents {
	out := &sdk.ResourceContents{URI: c.link(r.URI), MIMEType: visible(r.MIMEType, maxTitle), Text: r.Text, Blob: r.Blob}
	if out.Text == "" && out.Blob == nil {
		out.Blob = []byte{} // or it would be written as neither a text nor bytes
	}
	return out
}

// Read reads a resource by the URI under which it is offered: one that is listed, one that a template makes, or one that an answer
// links to. tell may be nil.
func (s *Service) Read(ctx context.Context, by identity.Principal, uri string, tell Progress) (*sdk.ReadResourceResult, error) {
	server, own := ownURI(uri)
	return use(ctx, s, by, question[*sdk.ReadResourceResult]{
		server: server, action: "mcp_server.read", name: uri, own: ofResources(own), none: noResource(), tell: tell,
		target: func(string) string { return recordedURI(uri) },
		ask: func(ctx context.Context, r *run, own, token string) (*sdk.ReadResourceResult, error) {
			params := &sdk.ReadResourceParams{URI: own}
			params.SetProgressToken(token)
			return r.session.ReadResource(ctx, params)
		},
		pass: func(c *catalog, answer *sdk.ReadResourceResult) *sdk.ReadResourceResult {
			// A resource that one caller reads is no matter of another one, and is read anew each time.
			out := &sdk.ReadResourceResult{Contents: []*sdk.ResourceContents{}, Cacheable: sdk.Cacheable{CacheScope: "private"}}
			for _, one := range answer.Contents[:min(len(answer.Contents), maxParted)] {
				if one != nil {
					out.Contents = append(out.Contents, c.contents(one))
				}
			}
			return out
		},
	})
}

// ofResources is what a server that offers resources calls one of them: it has what it reads, whether it lists that or not.
func ofResources(own string) func(*catalog) string {
	return func(c *catalog) string {
		if !c.reads {
			return ""
		}
		return own
	}
}

// recordedURI is an offered URI for the record, without its query and fragment, in which there may be anything.
func recordedURI(uri string) string {
	uri, _, _ = strings.Cut(uri, "?")
	uri, _, _ = strings.Cut(uri, "#")
	return cut(uri, maxRecorded, "…")
}

// maxRecorded is what of a name or a URI is recorded.
const maxRecorded = 512

func noResource() error {
	return problem.New(problem.NotFound, "list them with resources/list", "there is no such resource, or you may not read it")
}
