package guard

import "sync"

// maxContexts bounds the browser contexts that one client may have. Each costs the browser memory.
const maxContexts = 64

// Registry knows whose each browser context is. All clients of one browser share one. A context that no client made,
// such as the default one, is everybody's.
type Registry struct {
	mu       sync.Mutex
	contexts map[string]*Guard
	pending  map[*Guard]int // contexts that were asked for and are not there yet
	books    map[Mode]*ruleBook
}

// NewRegistry makes the registry of one browser.
func NewRegistry() *Registry {
	return &Registry{contexts: make(map[string]*Guard), pending: make(map[*Guard]int), books: make(map[Mode]*ruleBook)}
}

// rules are the rules of one kind of session. They are made once for a browser, since a client must connect quickly.
func (r *Registry) rules(mode Mode) (*ruleBook, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if book := r.books[mode]; book != nil {
		return book, nil
	}
	book, err := rulesFor(mode)
	if err == nil {
		r.books[mode] = book
	}
	return book, err
}

// reserve makes room for one more context of a client, until it is added or given up.
func (r *Registry) reserve(g *Guard) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	count := r.pending[g]
	for _, owner := range r.contexts {
		if owner == g {
			count++
		}
	}
	if count >= maxContexts {
		return false
	}
	r.pending[g]++
	return true
}

// settle ends a reservation. An empty id is one that came to nothing.
func (r *Registry) settle(g *Guard, id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.pending[g]--; r.pending[g] <= 0 {
		delete(r.pending, g)
	}
	if id != "" {
		r.contexts[id] = g
	}
}

// remove forgets a context that was disposed of.
func (r *Registry) remove(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.contexts, id)
}

// forget removes all contexts of a client that has ended.
func (r *Registry) forget(g *Guard) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.pending, g)
	for id, owner := range r.contexts {
		if owner == g {
			delete(r.contexts, id)
		}
	}
}

// owns says whether a client made the context.
func (r *Registry) owns(g *Guard, id string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.contexts[id] == g
}

// foreign says whether the context is another client's.
func (r *Registry) foreign(g *Guard, id string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	owner, owned := r.contexts[id]
	return owned && owner != g
}
