package console

// furnish puts something of everything into a world.
func furnish(w *world) {
	furnishAgents(w)
	furnishSessions(w)
	furnishRefresh(w)
	furnishNetwork(w)
	furnishOverview(w)
}
