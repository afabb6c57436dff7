package console

func (c *Console) sessionRoutes() {}
