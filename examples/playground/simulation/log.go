package simulation

import (
	"fmt"
	"strings"
	"time"
)

// line is one of a log.
type line struct {
	client string
	at     time.Time
}

// parseLog reads lines of the common or the combined format. Empty ones have no say.
// unreadable says how many lines are in another format, and shows the first; "" is none.
func parseLog(text string) (lines []line, unreadable string) {
	first, bad := "", 0
	for s := range strings.Lines(text) {
		s = strings.TrimSpace(s)
		if s == "" {
			continue
		}
		l, ok := parseLine(s)
		if ok {
			lines = append(lines, l)
			continue
		}
		if bad++; bad == 1 {
			first = s
		}
	}
	if bad > 0 {
		unreadable = fmt.Sprintf("%d not readable, first %.60q", bad, first)
	}
	return lines, unreadable
}

// parseLine reads a line such as
//
//	192.0.2.1 - - [17/May/2015:10:05:03 +0000] "GET / HTTP/1.1" 200 5
func parseLine(s string) (line, bool) {
	client, rest, _ := strings.Cut(s, " ")
	before, _, found := strings.Cut(rest, `] "`) // a user name cannot have a quotation mark
	i := strings.LastIndexByte(before, '[')
	if !found || i < 0 || client == "" {
		return line{}, false
	}
	at, err := time.Parse("02/Jan/2006:15:04:05 -0700", before[i+1:])
	return line{client, at}, err == nil
}
