package console

func (c *Console) agentRoutes() {}
