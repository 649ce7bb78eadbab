package serve

import (
	"cmp"
	"fmt"
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
	"github.com/ratelimit-go/ratelimit/clientaddr"
)

// check says which descriptors a proxy's subrequest has.
type check struct {
	file        string
	domain      string
	descriptors [][]source
}

// source says what an entry's value is.
type source struct {
	key  string
	what string // address, method, path, host or header
	name string // of the header field
}

const sources = "address, method, path, host or header NAME"

// checks reads the checks of a domain.
func (p *parser) checks(f field) {
	if f.value == nil {
		return
	}
	for _, one := range p.pairs(f.value, "checks", 0) {
		name := one.key.Value
		if other := p.to.checks[name]; other != nil {
			p.fail(one.key, "check %s is already in %s", quote(name), other.file)
		}
		if name == "" || url.PathEscape(name) != name {
			p.fail(one.key, "check %s: want a name for a path", quote(name))
		}
		c := &check{file: p.file, domain: p.domain.name}
		for _, item := range p.list(one, "check "+name) {
			c.descriptors = append(c.descriptors, p.sources(item))
		}
		if len(c.descriptors) == 0 || len(c.descriptors) > maxAsks {
			p.fail(one.value, "check %s: want a list of 1 to %d descriptors", quote(name), maxAsks)
		}
		p.to.checks[name] = c
	}
}

// sources reads one descriptor of a check: its entries, in their order.
func (p *parser) sources(item *yaml.Node) (all []source) {
	for _, f := range p.pairs(item, "check", 0) {
		what, name, _ := strings.Cut(p.text(f, f.key.Value), " ")
		known := slices.Contains([]string{"address", "method", "path", "host"}, what) && name == "" ||
			what == "header" && validField(name) && !strings.EqualFold(name, "host") // which package http keeps elsewhere
		if !known {
			p.fail(f.value, "%s: %s: want %s", f.key.Value, describe(f.value), sources)
		}
		all = append(all, source{f.key.Value, what, textproto.CanonicalMIMEHeaderKey(name)})
	}
	switch {
	case len(all) == 0:
		p.fail(item, "check: the descriptor has no entry")
	case !p.domain.next.reaches(all):
		p.note(item, "check: no rule of the file has these keys, so that nothing counts the descriptor")
	}
	return all
}

func validField(name string) bool {
	return name != "" && !strings.ContainsFunc(name, func(r rune) bool {
		return r != '-' && r != '_' && (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z')
	})
}

// trust are the proxies whose fields are believed.
type trust struct {
	networks []netip.Prefix
	unix     bool
}

func parseTrust(texts []string) (t trust, err error) {
	for _, text := range texts {
		if text == "unix" {
			t.unix = true
			continue
		}
		network, err := netip.ParsePrefix(text)
		if addr, err2 := netip.ParseAddr(text); err2 == nil {
			network, err = netip.PrefixFrom(addr, addr.BitLen()), nil
		}
		if addr := clientaddr.Unmap(network.Addr()); addr.Is4() && !network.Addr().Is4() { // peers are compared as IPv4
			network = netip.PrefixFrom(addr, max(network.Bits()-96, 0))
		}
		if err != nil || network.Bits() == 0 {
			return t, fmt.Errorf("%w: proxy %s: want a network such as 10.0.0.0/8, an address, or unix", ratelimit.ErrInvalidOption, quote(text))
		}
		t.networks = append(t.networks, network)
	}
	if len(texts) == 0 {
		return t, fmt.Errorf("%w: no proxies", ratelimit.ErrInvalidOption)
	}
	return t, nil
}

// has is whether the request comes from one of them.
func (t *trust) has(r *http.Request) bool {
	at, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return t.unix && (r.RemoteAddr == "" || r.RemoteAddr == "@")
	}
	addr := clientaddr.Unmap(at.Addr())
	return slices.ContainsFunc(t.networks, func(n netip.Prefix) bool { return n.Contains(addr) })
}

// request makes the request of a check. A descriptor is left out if a header field of it is, as
// Envoy does.
func (s *Service) request(c *check, r *http.Request) (*pb.RateLimitRequest, error) {
	req := &pb.RateLimitRequest{Domain: c.domain}
	seen := s.original(r)
	for _, descriptor := range c.descriptors {
		d := &common.RateLimitDescriptor{}
		for _, src := range descriptor {
			value, err := s.value(src, seen)
			if err != nil {
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

// original is the request that a trusted proxy asks about, which it describes in header fields.
func (s *Service) original(r *http.Request) *http.Request {
	if !s.trusted.has(r) {
		return r
	}
	seen := *r
	target := *r.URL
	seen.URL = &target
	seen.Method = first(r.Header, r.Method, "X-Original-Method", "X-Forwarded-Method")
	seen.Host = first(r.Header, r.Host, "X-Original-Host", "X-Forwarded-Host")
	if u, err := url.ParseRequestURI(first(r.Header, "", "X-Original-Uri", "X-Original-Url", "X-Forwarded-Uri")); err == nil {
		seen.URL = u
	}
	return &seen
}

// first is the value of the first of those fields that there is.
func first(h http.Header, otherwise string, names ...string) string {
	for _, name := range names {
		if v := h.Get(name); v != "" {
			return v
		}
	}
	return otherwise
}

// value is what an entry says about a request, "" if there is none.
func (s *Service) value(src source, r *http.Request) (string, error) {
	switch src.what {
	case "method":
		return r.Method, nil
	case "path":
		return cmp.Or(r.URL.Path, "/"), nil
	case "host":
		return strings.ToLower(r.Host), nil
	case "header":
		values := r.Header.Values(src.name)
		if len(values) > 1 {
			return "", invalid("%d fields %s", len(values), src.name)
		}
		return r.Header.Get(src.name), nil
	}
	key, err := s.client.Of(r)
	if err != nil {
		return "", fmt.Errorf("%w: %w", errInvalid, err)
	}
	return key, nil
}
