package op

import (
	"context"
	"net/http"

	"github.com/clawjail/clawjail/internal/identity"
	"github.com/clawjail/clawjail/internal/peer"
)

// NodeList is the answer to a listing.
type NodeList struct {
	Nodes []peer.Node `json:"nodes" nullable:"false"`
}

// NodeNamed names a control plane.
type NodeNamed struct {
	Name string `path:"node" maxLength:"40" doc:"the name of the control plane" arg:"1" complete:"nodes"`
}

// ListNodes lists the control planes that use one database.
func ListNodes() Op[None, NodeList] {
	return Op[None, NodeList]{Method: http.MethodGet, Path: "/v1/nodes", ID: "list-nodes", Summary: "List the control planes that use the database", Right: identity.NodeList,
		Command: Command{Use: "ls", Aliases: []string{"list"}, Long: "Lists the control planes that use the same database, with those of the last 30 days that have stopped or are lost. " +
			"One is lost when it was not heard of for 7.5 seconds and had not stopped. One that drains opens no new sessions."},
		Call: func(ctx context.Context, s Backend, by identity.Principal, _ None) (NodeList, error) {
			all, err := s.Nodes.List(ctx, by)
			return NodeList{all}, err
		},
		View: func(all NodeList) []Block {
			return []Block{table(all.Nodes, []any{"NODE", "STATE", "SESSIONS", "VERSION", "API", "SINCE", "SEEN"}, func(n peer.Node) []any {
				name, sessions := n.Name, any("")
				if n.Self {
					name += " (this one)"
				}
				if n.Sessions != nil {
					sessions = *n.Sessions
				}
				return []any{name, n.State, sessions, n.Version, n.API, n.Since, n.SeenAt}
			})}
		}}
}

// DrainNode has a control plane open no new sessions.
func DrainNode() Op[NodeNamed, peer.Node] {
	return Op[NodeNamed, peer.Node]{Method: http.MethodPost, Path: "/v1/nodes/{node}/drain", ID: "drain-node", Summary: "Have a control plane open no new sessions", Right: identity.NodeDrain,
		Command: Command{Use: "drain NODE", Example: "  clawjail node drain second --wait 1h && ssh second sudo systemctl restart clawjail",
			Long: "Has a control plane open no new sessions: whoever asks it for one is told to ask another (node_draining). Those that are open go on. " +
				"Agents on Kubernetes go to other control planes. With --wait the command ends when nothing is left, so that the control plane can be stopped and ends no session by force.\n\n" +
				"It opens sessions again after clawjail node resume, and when it is started again."},
		Call: func(ctx context.Context, s Backend, by identity.Principal, in NodeNamed) (peer.Node, error) {
			return s.Nodes.Drain(ctx, by, in.Name, true)
		},
		View: func(n peer.Node) []Block {
			if n.Sessions == nil {
				return []Block{line("%s opens no new sessions; how many it has is not known", n.Name)}
			}
			return []Block{line("%s opens no new sessions, and has %s", n.Name, Count{*n.Sessions, "session"})}
		}}
}

// ResumeNode has a control plane open sessions again.
func ResumeNode() Op[NodeNamed, peer.Node] {
	return Op[NodeNamed, peer.Node]{Method: http.MethodPost, Path: "/v1/nodes/{node}/resume", ID: "resume-node", Summary: "Have a control plane open sessions again", Right: identity.NodeResume,
		Command: Command{Use: "resume NODE"},
		Call: func(ctx context.Context, s Backend, by identity.Principal, in NodeNamed) (peer.Node, error) {
			return s.Nodes.Drain(ctx, by, in.Name, false)
		},
		View: func(n peer.Node) []Block { return []Block{line("%s opens sessions", n.Name)} }}
}
