package redisstore

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/ratelimit-go/ratelimit/store"
)

// maxName is the most bytes of a label, and of a host in a name.
const maxName = 64

// WithLabel adds label to what Redis knows of who holds a slot of package inflight, which is the
// host and the process: "web-3:4711:exports". "ratelimit key" lists it. Label is 1 to 64 bytes of
// printable UTF-8, or else [store.ErrInvalidOption]. It does nothing for rates.
func WithLabel(label string) Option {
	return func(s *Store) error {
		if label == "" || len(label) > maxName || !utf8.ValidString(label) || strings.ContainsFunc(label, unprintable) {
			return fmt.Errorf("%w: the label %q is not 1 to %d bytes of printable UTF-8", store.ErrInvalidOption, label, maxName)
		}
		s.label = label
		return nil
	}
}

func unprintable(r rune) bool { return !unicode.IsPrint(r) }

// holder names this process.
func holder(label string) string {
	host, err := os.Hostname()
	if err != nil {
		host = "?"
	}
	name := hostName(host) + ":" + strconv.Itoa(os.Getpid())
	if label != "" {
		name += ":" + label
	}
	return name
}

// hostName is host, without what would not be read as one.
func hostName(host string) string {
	host = strings.Map(func(r rune) rune {
		if r == ':' || r == ' ' || r == utf8.RuneError || unprintable(r) {
			return '-'
		}
		return r
	}, host)
	return strings.ToValidUTF8(host[:min(len(host), maxName)], "")
}

// heldPeriod is the Period of l with who holds its slots, as inflight.lua has it.
func heldPeriod(l store.Limit, holder string) any {
	return strconv.FormatInt(l.Period, 10) + " " + holder
}
