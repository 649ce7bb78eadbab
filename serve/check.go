package serve

import (
	"fmt"
	"maps"
	"net/http"
	"net/netip"
	"net/textproto"
	"net/url"
	"slices"
	"strings"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"go.yaml.in/yaml/v4"

	"github.com/ratelimit-go/ratelimit"
	"github.com/ratelimit-go/ratelimit/httplimit"
)

// check defines which descriptors a proxy's subrequest has.
type check struct {
	file        string
	domain      string
	descriptors [][]source
	described   bool // whether it has a method, a path or a host, which a proxy reports in header fields
}

// source defines the value of an entry.
type source struct {
	key  string
	what string // address, method, path, host or header
	name string // of the header field
}

const sources = "address, method, path, host or header NAME"

// checks reads the checks of a domain.
func (p *parser) checks(f field) {
	if f.Value == nil {
		return
	}
	for _, one := range p.pairs(f.Value, "checks") {
		name := one.Key.Value
		if other := p.to.checks[name]; other != nil {
			p.Fail(one.Key, "check %s is already defined in %s", quote(name), other.file)
		}
		if name == "" || name == "." || name == ".." || url.PathEscape(name) != name {
			p.Fail(one.Key, "check %s: want a name that can be part of a URL's path", quote(name))
		}
		c := &check{file: p.File, domain: p.domain.name}
		for _, item := range p.list(one, "check "+name) {
			all := p.sources(item)
			c.descriptors = append(c.descriptors, all)
			c.described = c.described || slices.ContainsFunc(all, func(src source) bool { return original[src.what] != "" })
		}
		if len(c.descriptors) == 0 || len(c.descriptors) > maxAsks {
			p.Fail(one.Value, "check %s: want a list of 1 to %d descriptors", quote(name), maxAsks)
		}
		p.to.checks[name] = c
	}
}

// sources reads one descriptor of a check, with its entries in their order.
func (p *parser) sources(item *yaml.Node) (all []source) {
	for _, f := range p.pairs(item, "check") {
		what, name, _ := strings.Cut(p.text(f, f.Key.Value), " ")
		known := slices.Contains([]string{"address", "method", "path", "host"}, what) && name == "" ||
			what == "header" && validField(name) && !strings.EqualFold(name, "host") // package http keeps Host elsewhere
		if !known {
			p.Fail(f.Value, "%s: %s: want %s", f.Key.Value, describe(f.Value), sources)
		}
		all = append(all, source{f.Key.Value, what, textproto.CanonicalMIMEHeaderKey(name)})
	}
	switch {
	case len(all) == 0:
		p.Fail(item, "check: the descriptor has no entries")
	case !p.domain.next.reaches(all):
		p.note(item, "check: no rule in the files has these keys, so nothing counts the descriptor")
	}
	return all
}

func validField(name string) bool {
	return name != "" && !strings.ContainsFunc(name, func(r rune) bool {
		return r != '-' && r != '_' && (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z')
	})
}

// family maps what a client requested to the names of the fields in which a proxy reports it.
type family map[string]string

var (
	original  = family{"method": "X-Original-Method", "path": "X-Original-Uri", "host": "X-Original-Host"}
	forwarded = family{"method": "X-Forwarded-Method", "path": "X-Forwarded-Uri", "host": "X-Forwarded-Host"}
)

const forwardedFor = "X-Forwarded-For" // for both families

// canRead returns an error if a check needs header fields of proxies and no family of fields is
// set.
func (s *Service) canRead(rules *Rules) error {
	for _, name := range slices.Sorted(maps.Keys(rules.checks)) {
		switch c := rules.checks[name]; {
		case !c.described || s.family != nil:
		case s.proxies.None():
			s.log.Warn("a check counts a method, a path or a host, but there are no -proxies to report it: the check answers 400", "check", name, "file", c.file)
		default:
			return fmt.Errorf("%w: %s: check %s counts a method, a path or a host: set -fields to the header fields in which your proxies report it, original or forwarded",
				ratelimit.ErrInvalidOption, c.file, quote(name))
		}
	}
	return nil
}

// tellOfGone logs the checks that are missing from the new rules, because a proxy may still ask for them.
func (s *Service) tellOfGone(before, now *plan) {
	if before == nil {
		return
	}
	for _, name := range slices.Sorted(maps.Keys(before.checks)) {
		if now.checks[name] == nil {
			s.log.Warn("a check was removed: a proxy that still asks for it gets 404, for which nginx answers 500", "check", name, "file", before.checks[name].file)
		}
	}
}

// request makes the request of a check. As in Envoy, a descriptor is left out if one of its header
// fields is missing.
func (s *Service) request(now *plan, c *check, r *http.Request) (*pb.RateLimitRequest, error) {
	req := &pb.RateLimitRequest{Domain: c.domain}
	_, _, isProxy := s.proxies.Peer(r)
	for _, descriptor := range c.descriptors {
		d := &common.RateLimitDescriptor{}
		for _, src := range descriptor {
			value, err := s.value(src, r, isProxy)
			if err != nil {
				s.metrics.decided(&question{domain: now.domains[c.domain]}, err)
				return nil, err
			}
			if value == "" {
				d = nil
				break
			}
			d.Entries = append(d.Entries, &common.RateLimitDescriptor_Entry{Key: src.key, Value: value})
		}
		if d != nil {
			req.Descriptors = append(req.Descriptors, d)
		}
	}
	return req, nil
}

// value returns the value of an entry for a request, or "" for a missing header field.
func (s *Service) value(src source, r *http.Request, isProxy bool) (string, error) {
	switch src.what {
	case "address":
		return s.address(r, isProxy)
	case "header":
		values := r.Header.Values(src.name)
		if len(values) > 1 {
			return "", invalid("%d header fields %s, want at most one", len(values), src.name)
		}
		return r.Header.Get(src.name), nil
	}
	name := s.family[src.what]
	if !isProxy || name == "" {
		return "", invalid("the %s is not known, because the peer is not one of the proxies", src.what)
	}
	values := r.Header.Values(name)
	if len(values) != 1 {
		return "", invalid("%d header fields %s, want exactly one", len(values), name)
	}
	value, ok := read[src.what](values[0])
	if !ok {
		return "", invalid("%s: %s is not a %s", name, quote(values[0]), src.what)
	}
	return value, nil
}

// address returns the address of the client. A proxy must report one, because its own address is
// not a client's.
func (s *Service) address(r *http.Request, isProxy bool) (string, error) {
	if isProxy && !s.proxies.Client(netip.Addr{}, r.Header[forwardedFor]).IsValid() {
		return "", invalid("%s does not end with an address", forwardedFor)
	}
	key, err := s.client.Of(r)
	if err != nil {
		return "", fmt.Errorf("%w: %w", errInvalid, err)
	}
	return key, nil
}

// read converts a field's value into the value that is counted, in one form for all spellings.
var read = map[string]func(text string) (value string, ok bool){
	"method": readMethod, "path": readPath, "host": readHost,
}

func readMethod(text string) (string, bool) {
	key, _ := httplimit.Method().Of(&http.Request{Method: text}) // always has one
	return strings.TrimPrefix(key, "method:"), text != ""
}

func readPath(text string) (string, bool) {
	text, _, _ = strings.Cut(text, "#") // like nginx
	u, err := url.ParseRequestURI(text)
	if err != nil || u.Opaque != "" || strings.IndexByte(u.Path, 0) >= 0 {
		return "", false
	}
	key, _ := httplimit.Path().Of(&http.Request{URL: u}) // always has one
	return strings.TrimPrefix(key, "path:"), true
}

// readHost reads a host in lower case, without its port and without a dot at the end.
func readHost(text string) (string, bool) {
	u, err := url.Parse("//" + text)
	if err != nil || u.Host != text || strings.Contains(text, ",") { // a list of several hosts, from a chain of proxies
		return "", false
	}
	host := strings.TrimSuffix(strings.ToLower(u.Hostname()), ".")
	return host, host != ""
}
