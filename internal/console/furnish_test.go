package console

// furnish puts something of everything into a world.
func furnish(w *world) {}
