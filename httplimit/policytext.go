package httplimit

import (
	"strconv"
	"sync/atomic"
	"time"

	"github.com/ratelimit-go/ratelimit"
)

// policyText is what header fields say of a policy.
type policyText struct {
	policy  ratelimit.Policy
	quota   string // 1000
	name    string // as a string of RFC 9651, and of JSON: "daily"
	draft10 string // "daily";q=1000;w=86400
	draft6  string // 1000;w=86400
}

// policyTexts are those in use lately, so that a text is made once and not with each
// request. Policies with the same place drive each other out, which costs no more than
// to make the text again.
type policyTexts [64]atomic.Pointer[policyText]

func (t *policyTexts) of(p *ratelimit.Policy) *policyText {
	const prime = 0x9E3779B97F4A7C15
	place := (uint64(p.Quota)*prime ^ uint64(p.Window)) * prime >> 58
	if known := t[place].Load(); known != nil && known.policy == *p {
		return known
	}
	text := newPolicyText(*p)
	t[place].Store(text)
	return text
}

func newPolicyText(p ratelimit.Policy) *policyText {
	quota, window := strconv.FormatInt(count(p.Quota), 10), ""
	if p.Window > 0 {
		window = ";w=" + strconv.FormatInt(min(seconds(p.Window), maxInteger), 10)
	}
	name := quoted(p.Name)
	return &policyText{policy: p, quota: quota, name: name, draft10: name + ";q=" + quota + window, draft6: quota + window}
}

// maxInteger is the largest integer of RFC 9651, of 15 digits.
const maxInteger = 999_999_999_999_999

// count is n as header fields can say it.
func count(n int) int64 { return min(max(int64(n), 0), maxInteger) }

// seconds is d in seconds, rounded up.
func seconds(d time.Duration) int64 {
	s := int64(d / time.Second)
	if d%time.Second > 0 {
		s++
	}
	return s
}

// quoted is name as a string of RFC 9651, which is the same in JSON. What is not
// printable ASCII is as in a URL.
func quoted(name string) string {
	const hex = "0123456789ABCDEF"
	text := []byte{'"'}
	for _, c := range []byte(name) {
		switch {
		case c < ' ' || c > '~':
			text = append(text, '%', hex[c>>4], hex[c&15])
		case c == '"' || c == '\\':
			text = append(text, '\\', c)
		default:
			text = append(text, c)
		}
	}
	return string(append(text, '"'))
}
