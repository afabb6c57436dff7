package console

// signInPath is where people sign in.
const signInPath = Prefix + "/sign-in"

func (c *Console) signInRoutes() {}
