// Package cdp speaks the Chrome DevTools Protocol with a browser over its pipe: NUL-delimited JSON, as Chromium speaks
// it with --remote-debugging-pipe. The pipe is the stdio of a jail, and what comes out of it is hostile input.
//
// A [Conn] owns the pipe. It gives ids to commands, brings replies back to their callers, and hands events to
// subscribers. A [Mux] lets many clients share one pipe: each [Client] has a browser session of its own and can neither
// see the ids of another client nor use its sessions.
//
// It promises:
//
//   - A browser that sends anything but well-formed protocol ends its Conn with a cause. It cannot make the reader
//     panic, block, or hold more than its bounds.
//   - A slow reader never stalls the pipe, nor another reader. An event that it can do without ([Noise]) is left out when too much
//     waits, and it is told how much. Replies and all other events are kept; a client for which too many of them wait
//     is ended.
//   - A message that is larger than one may be, or has no [Room], is answered with an error, in both directions. The
//     connection goes on.
//   - A client that sends anything but well-formed protocol ends itself only.
//   - A message is decoded, decided upon and encoded anew. No bytes of an envelope pass from one side to the other, so
//     that two parsers cannot disagree about which command it is.
//   - When a client ends, its browser session and everything attached below it are detached.
//   - When the browser goes, everyone who waits is told why.
package cdp

import "errors"

// Causes of an end. They are wrapped with what was being done, so compare with errors.Is.
var (
	// ErrClosed is the cause when this side closed the connection, the multiplexer or the client.
	ErrClosed = errors.New("closed")
	// ErrBrowserGone is the cause when the browser closed its end of the pipe: it exited, crashed or was killed.
	ErrBrowserGone = errors.New("the browser closed its pipe")
	// ErrProtocol is the cause when a peer sent something that is not the protocol.
	ErrProtocol = errors.New("not the DevTools protocol")
	// ErrFrameTooLarge is the cause when a peer sent more in one message than it may, and the message names no receiver for an error.
	ErrFrameTooLarge = errors.New("message too large")
	// ErrSlowClient is the cause when more waits for a client than may, and nothing of it can be left out.
	ErrSlowClient = errors.New("client reads too slowly")
	// ErrTooManySessions is the cause when a client attached to more than it may.
	ErrTooManySessions = errors.New("too many attached sessions")
	// ErrUnread is returned when a client's message could not be read to its end.
	ErrUnread = errors.New("the message broke off")
	// ErrSessionGone is returned for what waits on a session that was detached.
	ErrSessionGone = errors.New("session detached")
)

// LongestTitle is where Chromium cuts a title by itself, in UTF-16 (kMaxTitleChars).
const LongestTitle = 4096

// OwnWorld is the name of the isolated worlds in which clawjail's own scripts run in a page.
const OwnWorld = "clawjail"

const (
	// DefaultMaxBrowserFrame bounds one message of the browser: screenshots, PDFs and traces of tens of megabytes
	// are normal, in base64.
	DefaultMaxBrowserFrame = 256 << 20
	// MaxCommand bounds one message to the browser, with its delimiter: Chromium closes its pipe at a larger one
	// (kReceiveBufferSizeForDevTools). Uploads travel as base64 inside one message.
	MaxCommand = 100 << 20

	// maxSessions bounds the table of attached sessions, which the browser fills, and maxSessionsOfClient those of one client.
	maxSessions, maxSessionsOfClient = 16384, 4096
	// maxSessionID bounds one session id; Chromium's have 32 characters.
	maxSessionID = 128
)
