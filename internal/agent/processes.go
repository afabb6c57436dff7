package agent

// processes are the programs that run for agents.
type processes struct{}
