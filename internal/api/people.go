package api

import "github.com/clawjail/clawjail/internal/op"

func (a *API) peopleRoutes() {
	provide(a, op.WhoAmI())
	provide(a, op.ListNodes())
	provide(a, op.DrainNode())
	provide(a, op.ResumeNode())
	provide(a, op.ListTenants())
	provide(a, op.CreateTenant())
	provide(a, op.ShowTenant())
	provide(a, op.SetTenant())
	provide(a, op.DisconnectTenant())
	provide(a, op.ListOperators())
	provide(a, op.CreateOperator())
	provide(a, op.RotateOperator())
	provide(a, op.RevokeOperator())
	provide(a, op.ListAgents())
	provide(a, op.CreateAgent())
	provide(a, op.RemoveAgent())
	provide(a, op.RevokeAgent())
	provide(a, op.RestoreAgent())
	provide(a, op.ListTokens())
	provide(a, op.RotateToken())
	provide(a, op.RevokeToken())
	provide(a, op.ListSessionTokens())
	provide(a, op.RevokeSessionToken())
}
