package redisstore

// The client of a URL.

import (
	"crypto/tls"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/ratelimit-go/ratelimit/store"
)

// NewClient returns the client of a URL, as this package needs it. It does no I/O.
//
//	redis://user:password@host:6379/0                     rediss:// for TLS
//	unix://user:password@/path/of/socket
//	redis://host1:26379?master_name=m&addr=host2:26379    Sentinels
//	redis+cluster://host1:6379?addr=host2:6379            rediss+cluster:// for TLS
//	host:6379                                             redis://host:6379
//
// The parameters are those of go-redis. With Sentinels, the user and password before the host are those of
// the Sentinels, and the parameters username and password are those of the servers.
//
// It returns [store.ErrInvalidOption] if the URL has no host, or has anything that would have no effect. No error
// contains any part of the URL except names of parameters, because a URL may have a password.
func NewClient(address string) (redis.UniversalClient, error) {
	client, err := newClient(address)
	if err != nil {
		return nil, fmt.Errorf("%w: Redis URL: %w", store.ErrInvalidOption, err)
	}
	return client, nil
}

func newClient(address string) (redis.UniversalClient, error) {
	if !strings.Contains(address, "://") {
		host, port, err := net.SplitHostPort(address)
		if _, notNumber := strconv.Atoi(port); err != nil || notNumber != nil || host == "" || strings.ContainsAny(host, "@/?#") {
			return nil, errScheme
		}
		address = "redis://" + address
	}
	u, err := url.Parse(address)
	if err != nil { // err contains the URL
		return nil, errors.New("it cannot be parsed: in a user name or password, write / ? # @ and % as %2F %3F %23 %40 and %25")
	}
	query, err := url.ParseQuery(u.RawQuery)
	switch {
	case strings.Contains(address, "#"):
		return nil, errors.New("it contains a #: write # as %23")
	case err != nil:
		return nil, errors.New("its parameters cannot be parsed: in a value, write & and % as %26 and %25")
	}
	kind, err := urlKindOf(u, query)
	if err != nil {
		return nil, err
	}
	for _, name := range slices.Sorted(maps.Keys(query)) {
		if err := kind.checkParameter(u, name, query); err != nil {
			return nil, err
		}
	}
	newClient, err := kind.parse(u)
	if err != nil {
		return nil, errors.New("its parameters cannot be combined")
	}
	return newClient(), nil
}

var errScheme = errors.New("it must begin with redis://, rediss://, redis+cluster://, rediss+cluster:// or unix://, or be host:port")

// urlKind is the kind of client that a URL is for.
type urlKind struct {
	parse  func(*url.URL) (func() redis.UniversalClient, error)
	needed string // a parameter without which the URL is of another kind
}

// urlKindOf returns the kind of a URL, or an error if anything before its parameters is wrong.
func urlKindOf(u *url.URL, query url.Values) (k urlKind, err error) {
	if u.Scheme == "unix" {
		if u.Host != "" || u.Path == "" {
			return k, errors.New("it has no socket path: want unix:///path/of/socket")
		}
		return urlKind{parse: single}, nil
	}
	path, isCluster := strings.TrimPrefix(u.Path, "/"), strings.HasSuffix(u.Scheme, "+cluster")
	_, notNumber := strconv.ParseUint(path, 10, 31)
	switch {
	case !slices.Contains([]string{"redis", "rediss", "redis+cluster", "rediss+cluster"}, u.Scheme):
		return k, errScheme
	case u.Hostname() == "":
		return k, errors.New("it has no host: in a user name or password, write / ? # and @ as %2F %3F %23 and %40")
	case u.Port() != "" && !validPort(u.Port()):
		return k, errors.New("its port is not a number from 1 to 65535: in a user name or password, write / and ? as %2F and %3F, and write @ behind the password")
	case isCluster && path != "":
		return k, errors.New("it must not have a path, because a cluster has only one database")
	case path != "" && notNumber != nil:
		return k, errors.New("its path is not the number of a database: in a user name or password, write / as %2F")
	case path != "" && query.Has("db"):
		return k, errors.New("it has a path and the parameter db, and each is the number of a database: remove one of them")
	case isCluster:
		return urlKind{parse: cluster}, nil
	case query.Has("master_name"):
		return urlKind{failover, "master_name"}, nil
	}
	return urlKind{parse: single}, nil
}

// checkParameter asks go-redis about one parameter. It does not return go-redis's error, which contains the value.
func (k urlKind) checkParameter(u *url.URL, name string, query url.Values) error {
	values := query[name]
	switch plain := strings.Trim(name, "_abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ") == ""; {
	case !plain || name == "":
		return errors.New("the name of a parameter must be letters and _: in a user name or password, write ? as %3F")
	case len(values) > 1 && name != "addr":
		return fmt.Errorf("the parameter %s is repeated", name)
	case name == "dialer_retries" || name == "context_timeout_enabled":
		return fmt.Errorf("the parameter %s has no effect, because NewClient sets it: remove it", name)
	case values[0] == "": // its name may then be a part of the password
		return errors.New("a parameter has no value")
	}
	alone, q := *u, url.Values{name: values}
	if k.needed != "" {
		q[k.needed] = query[k.needed]
	}
	alone.RawQuery = q.Encode()
	if _, err := k.parse(&alone); err != nil || isCount(name) && !validCount(values[0]) {
		return fmt.Errorf("the parameter %s is unknown, or its value is invalid", name)
	}
	if name == "addr" && slices.ContainsFunc(values, func(addr string) bool { _, port, _ := net.SplitHostPort(addr); return !validPort(port) }) {
		return errors.New("the port of the parameter addr is not a number from 1 to 65535")
	}
	return nil
}

func validPort(text string) bool {
	port, err := strconv.ParseUint(text, 10, 16)
	return err == nil && port > 0
}

// isCount reports whether the value of the parameter is the number of a database, or how many bytes, connections or
// dials there may be. A client panics if such a number is negative or very large, and a cluster's does so later.
func isCount(name string) bool {
	return name == "db" || strings.HasSuffix(name, "_size") || strings.HasSuffix(name, "_conns") || strings.HasSuffix(name, "_dials")
}

func validCount(text string) bool {
	_, err := strconv.ParseUint(text, 10, 24)
	return err == nil
}

func single(u *url.URL) (func() redis.UniversalClient, error) {
	o, err := redis.ParseURL(u.String())
	if err != nil {
		return nil, err
	}
	o.ContextTimeoutEnabled, o.DialerRetries = true, 1 // the store tries again
	return func() redis.UniversalClient { return redis.NewClient(o) }, nil
}

func failover(u *url.URL) (func() redis.UniversalClient, error) {
	o, err := redis.ParseFailoverURL(u.String())
	if err != nil {
		return nil, err
	}
	o.ContextTimeoutEnabled, o.DialerRetries = true, 1
	return func() redis.UniversalClient { return redis.NewFailoverClient(o) }, nil
}

func cluster(u *url.URL) (func() redis.UniversalClient, error) {
	of := *u
	of.Scheme = strings.TrimSuffix(u.Scheme, "+cluster")
	o, err := redis.ParseClusterURL(of.String())
	if err != nil {
		return nil, err
	}
	if o.ContextTimeoutEnabled, o.DialerRetries = true, 1; o.TLSConfig != nil {
		o.TLSConfig.MinVersion = tls.VersionTLS12 // as go-redis sets it for the other kinds
	}
	return func() redis.UniversalClient { return redis.NewClusterClient(o) }, nil
}
