package console

func (c *Console) settingsRoutes() {}
