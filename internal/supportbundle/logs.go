package supportbundle

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

var (
	// logged is a line of the daemons, as text. A value is quoted when it has to be.
	logged  = regexp.MustCompile(`^time=(\S+) level=([A-Z]+[+-]?\d*) msg=("(?:[^"\\]|\\.)*"|\S+)((?: [A-Za-z0-9_.]+=(?:"(?:[^"\\]|\\.)*"|\S*))*)$`)
	daemon  = regexp.MustCompile(`^(hostd|control|serve|relay): `)
	logPart = regexp.MustCompile(` ([A-Za-z0-9_.]+)=("(?:[^"\\]|\\.)*"|\S*)`)
	// plainValue is a number, a duration or a boolean, whatever it is called.
	plainValue = regexp.MustCompile(`^(-?[0-9.]{1,12}|-?([0-9.]+(h|m|s|ms|µs|ns))+|true|false)$`)
	// stack is a line of what Go prints when a program ends by a fault of its own, without values.
	stack = regexp.MustCompile(`^(fatal error: [a-z ]+|goroutine \d+ \[[^\]]*\]:|created by \S+.*|\s+\S+\.go:\d+.*|[A-Za-z0-9_./()*\[\]-]+\([0-9a-fx, .?{}]*\))$`)
)

// attributes are those of a line whose texts are ours: all others may be texts of somebody.
func attributes() []string {
	return []string{"error", "code", "jail", "session", "agent", "reason", "domain", "address", "tenant", "by", "tool", "template", "server", "provider", "method", "cause", "state", "signal",
		"runtime", "kind", "version", "node", "subnet", "socket", "installation", "driver", "action", "result", "storage", "listen", "op", "table", "api", "gateway", "mode", "browser", "hit"}
}

// keepLog takes of a log what the daemons said, and counts what it leaves out.
func keepLog(text string) string {
	var out strings.Builder
	left := 0
	for line := range strings.Lines(text) {
		kept, ok := keepLine(strings.TrimRight(line, "\r\n"))
		if !ok {
			left++
			continue
		}
		out.WriteString(kept + "\n")
	}
	if left > 0 {
		fmt.Fprintf(&out, "# %d lines that are not in the daemons' own form were left out\n", left)
	}
	return out.String()
}

// keepLine takes the line of a daemon, before which `clawjail up` says whose it is.
func keepLine(line string) (string, bool) {
	who := daemon.FindString(line)
	kept, ok := keepRecord(line[len(who):])
	return who + kept, ok
}

func keepRecord(line string) (string, bool) {
	if strings.HasPrefix(line, "{") {
		return keepJSON(line)
	}
	parts := logged.FindStringSubmatch(line)
	if parts == nil {
		return line, stack.MatchString(line)
	}
	var out strings.Builder
	fmt.Fprintf(&out, "time=%s level=%s msg=%s", parts[1], parts[2], parts[3])
	for _, p := range logPart.FindAllStringSubmatch(parts[4], -1) {
		value := p[2]
		if !plainValue.MatchString(value) && !slices.Contains(attributes(), p[1]) {
			value = hidden
		}
		out.WriteString(" " + p[1] + "=" + value)
	}
	return out.String(), true
}

// keepJSON is the same of a line in JSON.
func keepJSON(line string) (string, bool) {
	var all map[string]any
	if err := json.Unmarshal([]byte(line), &all); err != nil || all["msg"] == nil || all["level"] == nil {
		return "", false
	}
	for name, v := range all {
		switch v := v.(type) {
		case bool, float64, nil:
		case string:
			if name != "time" && name != "level" && name != "msg" && !plainValue.MatchString(v) && !slices.Contains(attributes(), name) {
				all[name] = hidden
			}
		default:
			all[name] = hidden
		}
	}
	kept, err := encode(all)
	if err != nil {
		return "", false
	}
	return strings.Join(strings.Fields(string(kept)), " "), true
}

// keepUnit is a unit of systemd, without what it puts into the environment.
func keepUnit(text string) string {
	return unitValue.ReplaceAllStringFunc(text, func(found string) string {
		name, _, _ := strings.Cut(found, "=")
		return name + "=" + hidden
	})
}

var unitValue = regexp.MustCompile(`(?mi)^\s*(Environment|SetCredential\w*|LoadCredential\w*|PassEnvironment)\s*=(?:[^\\\n]|\\\n|\\.)*`)

// lastLines are the last lines of a text.
func lastLines(text string, limit int) string {
	lines := strings.SplitAfter(text, "\n")
	if len(lines) > limit {
		return "# of " + strconv.Itoa(len(lines)) + " lines, the last " + strconv.Itoa(limit) + "\n" + strings.Join(lines[len(lines)-limit:], "")
	}
	return text
}
