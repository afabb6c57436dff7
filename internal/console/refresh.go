package console

func (c *Console) refreshRoutes() {}
