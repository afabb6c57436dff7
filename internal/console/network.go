package console

func (c *Console) networkRoutes() {}
