package console

func (c *Console) overviewRoutes() {}

// overview is the first page.
func (c *Console) overview(q *request) error { return q.show("overview", "Overview", nil) }
