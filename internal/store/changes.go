package store

import "context"

// Changed is a kind of rows of which some were changed.
type Changed string

const (
	// ChangedUnknown stands for every kind: notices may have been lost for a while.
	ChangedUnknown Changed = ""
	// ChangedEntries are those of Entries, and ChangedKeys operators, agents and tokens of which one may not be good any more.
	ChangedEntries Changed = "entries"
	ChangedKeys    Changed = "keys"
	ChangedSignIns Changed = "sign-ins"
	ChangedNodes   Changed = "nodes"
	ChangedGuesses Changed = "guesses"
)

// Follower is a Store that several processes share, which tells each of them what was changed, also what it has changed itself.
// Nothing must depend on it alone: what is between a process and the database may keep what it is told from it.
type Follower interface {
	// Follow calls changed until ctx ends, which is no error, or the connection to the database. It begins with ChangedUnknown. Changed
	// must not wait.
	Follow(ctx context.Context, changed func(Changed)) error
}
