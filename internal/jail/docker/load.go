package docker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/moby/moby/client"

	"github.com/clawjail/clawjail/internal/problem"
)

// maxAnswer bounds what is read of an engine's answer.
const maxAnswer = 1 << 20

// LoadImage gives an engine the images of an archive, as `docker load` does, and returns what the engine says of them. It needs
// no Driver: it is for the command line of whoever may use the engine's socket.
func LoadImage(ctx context.Context, socket string, archive io.Reader) (string, error) {
	engine, err := client.New(client.WithHost("unix://" + socket))
	if err != nil {
		return "", fmt.Errorf("use the engine at %s: %w", socket, err)
	}
	defer engine.Close() // it has nothing that could be lost
	answer, err := engine.ImageLoad(ctx, archive, client.ImageLoadWithQuiet(true))
	if err != nil {
		if client.IsErrConnectionFailed(err) {
			return "", problem.Wrap(err, problem.RuntimeMissing, "start it, for example with `systemctl start docker`, correct docker.socket, or write a file: --output FILE",
				"the Docker engine at %s does not answer", socket)
		}
		return "", fmt.Errorf("load the image: %w", err)
	}
	said, err := readAnswer(answer)
	return said, errors.Join(err, answer.Close())
}

// readAnswer reads messages of an engine up to the end. One of them may be an error, although the answer had begun well.
func readAnswer(answer io.Reader) (string, error) {
	var said strings.Builder
	decoder := json.NewDecoder(io.LimitReader(answer, maxAnswer))
	for {
		var message struct {
			Stream string `json:"stream"`
			Error  string `json:"error"`
		}
		switch err := decoder.Decode(&message); {
		case errors.Is(err, io.EOF):
			return strings.TrimSpace(said.String()), nil
		case err != nil:
			return "", fmt.Errorf("read what the engine says: %w", err)
		case message.Error != "":
			return "", problem.New(problem.BadTemplate, "look at the engine's log", "the engine did not take the image: %.300s", message.Error)
		}
		said.WriteString(message.Stream)
	}
}
