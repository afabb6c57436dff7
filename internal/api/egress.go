package api

import "github.com/clawjail/clawjail/internal/op"

func (a *API) egressRoutes() {
	provide(a, op.ListRules())
	provide(a, op.AddRule())
	provide(a, op.RemoveRule())
	provide(a, op.ExplainRules())
	provide(a, op.ListServices())
	provide(a, op.PutService())
	provide(a, op.RemoveService())
	provide(a, op.ListProviders())
	provide(a, op.PutProvider())
	provide(a, op.RemoveProvider())
	provide(a, op.GetSettings())
	provide(a, op.PutSettings())
	provide(a, op.GetAgentSettings())
	provide(a, op.PutAgentSettings())
	provide(a, op.ListUsage())
	provide(a, op.AskForAccess())
	provide(a, op.ListAccess())
	provide(a, op.ShowAccess())
	provide(a, op.AnswerAccess())
}
