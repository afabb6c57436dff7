package cdp

import "strings"

// noise are the events that can be left out when their reader is slow: each stands for itself, and nothing that is
// kept refers to it. Other events are kept, as replies are. A frame of a screencast is not noise:
// Chromium sends no third one before the first is acknowledged, and none at all when an acknowledgement is missing.
var noise = map[string]struct{}{
	"Audits.issueAdded":                      {},
	"Console.messageAdded":                   {},
	"HeapProfiler.heapStatsUpdate":           {},
	"HeapProfiler.lastSeenObjectId":          {},
	"Log.entryAdded":                         {},
	"Media.playerErrorsRaised":               {},
	"Media.playerEventsAdded":                {},
	"Media.playerMessagesLogged":             {},
	"Network.dataReceived":                   {},
	"Network.directTCPSocketChunkReceived":   {},
	"Network.directTCPSocketChunkSent":       {},
	"Network.directUDPSocketChunkReceived":   {},
	"Network.directUDPSocketChunkSent":       {},
	"Network.eventSourceMessageReceived":     {},
	"Network.resourceChangedPriority":        {},
	"Network.webSocketFrameError":            {},
	"Network.webSocketFrameReceived":         {},
	"Network.webSocketFrameSent":             {},
	"Performance.metrics":                    {},
	"PerformanceTimeline.timelineEventAdded": {},
	"Runtime.consoleAPICalled":               {},
	"Runtime.exceptionRevoked":               {},
	"Runtime.exceptionThrown":                {},
	"Tracing.bufferUsage":                    {},
}

// IsNoise says whether an event is one that a slow reader may miss.
func IsNoise(method string) bool {
	_, yes := noise[method]
	return yes
}

// Noise lists those events.
func Noise() []string {
	var out []string
	for method := range noise {
		out = append(out, method)
	}
	return out
}

// shapes says whether others can only be understood after this event: a client that misses it believes what is not so.
func shapes(method string) bool {
	for _, begins := range []string{"Browser.", "Fetch.", "Inspector.", "Page.", "Runtime.executionContext", "Target."} {
		if strings.HasPrefix(method, begins) {
			return true
		}
	}
	return false
}
