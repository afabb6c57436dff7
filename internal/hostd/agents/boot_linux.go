package agents

import "errors"

func bootTime() (string, error) { return "", errors.New("the kernel does not name its boot") }
