package redischeck

import "time"

// Version is what is found about a server whose INFO is this.
func Version(info string) []string {
	n := &server{check: new(check), name: "server"}
	n.version(parseInfo(info))
	return n.found
}

// Distance is what is found about a round trip and a timeout.
func Distance(trip, timeout time.Duration) []string {
	n := &server{check: new(check), name: "server"}
	n.distance(trip, timeout)
	return n.found
}
