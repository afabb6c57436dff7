package console

// furnish puts something of everything into a fixture.
func furnish(w *fixture) {
	furnishAgents(w)
	furnishSessions(w)
	furnishRefresh(w)
	furnishNetwork(w)
	furnishOverview(w)
}
