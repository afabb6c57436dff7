// Package docker makes the jails of agents as containers of a Docker engine.
package docker

import (
	_ "github.com/moby/moby/api/types/container" // pinned here until the driver uses them
	_ "github.com/moby/moby/client"
)
