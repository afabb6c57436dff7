package console

func (c *Console) auditRoutes() {}
