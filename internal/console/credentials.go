package console

func (c *Console) credentialRoutes() {}
