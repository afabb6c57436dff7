// Package docker makes the jails of agents as containers of a Docker engine on this host's kernel.
//
// The engine owns the steps that the parts of other drivers have, so that this one implements jail.Maker itself. It
// promises the same: every side effect is journalled before it happens; nothing is left that has no record, because
// everything in the engine carries the installation's label and the name of its jail; and a container that is not
// confined as its jail.Profile declares is ended before it gets its token. The declaration is compared with what the
// kernel says of the container's first process, not with what the engine says that it did.
//
// Differences from other drivers, and their reasons:
//
//   - An engine has no gate. It starts a shell of the image, which becomes the program when the container was seen to
//     be confined and its owner has it. The program of an image without /bin/sh begins at once, and waits for its token:
//     until Admit it has no network, and until Token nothing that it could lose.
//   - The volume of an agent's state has no size limit: the engine's volumes have none. The limit is in the declaration.
//   - The engine keeps what a kept container prints; it is followed from there. Output of a time without a follower is
//     read later, as far as the engine's own bounded log reaches back.
//   - The stdio of an owner's container passes through this process, and ends with it.
package docker
