package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/ratelimit-go/ratelimit/clientaddr"
	"github.com/ratelimit-go/ratelimit/httplimit"
)

// maxKey is how many bytes of a key are kept. Longer keys are distinguished only by these bytes.
const maxKey = 255

// kinds are the keys that come from a well-known field in every format.
var kinds = []string{"ip", "ip64", "user", "path"}

// event is a request in a log: its key and its time.
type event struct {
	key string // "" if the line has none, for example for an anonymous user
	at  int64  // Unix µs
}

// form describes how lines are parsed.
type form struct {
	key, format, line, layout string

	// field returns the text of a field of a line, and the text of its time.
	field func(line, name string) (value, at string, err error)
}

func (f *form) flags(flags *flag.FlagSet) {
	flags.StringVar(&f.key, "key", "", "`field` of the key: ip, ip64 (IPv6 by its first 64 bits, as httplimit.PeerIP), user, path, or any other (default ip, and key with -line)")
	flags.StringVar(&f.format, "format", "combined", "`form` of the lines: combined (also the common format), or json, an object a line")
	flags.StringVar(&f.line, "line", "", "a `regexp` for other lines, with groups (?P<key>…) and (?P<time>…)")
	flags.StringVar(&f.layout, "layout", "", "the time's `layout` as in Go's package time, if it is an unusual one")
}

// prepare checks the flags.
func (f *form) prepare() error {
	switch {
	case f.line != "" && f.format != "combined":
		return errors.New("-format cannot be combined with -line, which defines the form of the lines")
	case f.line != "":
		return f.prepareLine()
	case f.format == "combined":
		f.field = combinedField
	case f.format == "json":
		f.field = jsonField
	default:
		return fmt.Errorf("unknown format %q: want combined or json", f.format)
	}
	if f.key == "" {
		f.key = "ip"
	}
	if f.format == "combined" && !slices.Contains(kinds, f.key) {
		return fmt.Errorf("unknown field %q of the combined format: it has ip, ip64, user and path", f.key)
	}
	return nil
}

func (f *form) prepareLine() error {
	re, err := regexp.Compile(f.line)
	if err != nil {
		return err
	}
	at, key := re.SubexpIndex("time"), re.SubexpIndex(f.fieldName())
	if key < 0 && (f.key == "" || slices.Contains(kinds, f.key)) {
		key = re.SubexpIndex("key")
	}
	if at < 0 || key < 0 {
		return fmt.Errorf("-line has no group named time, or none named %s: %s", cmp.Or(f.key, "key"), f.line)
	}
	f.field = func(line, _ string) (value, stamp string, err error) {
		m := re.FindStringSubmatchIndex(line)
		if m == nil || m[2*at] < 0 {
			return "", "", errors.New("it does not match -line")
		}
		if m[2*key] >= 0 {
			value = line[m[2*key]:m[2*key+1]]
		}
		return value, line[m[2*at]:m[2*at+1]], nil
	}
	return nil
}

// parse parses a line.
func (f *form) parse(line string) (event, error) {
	value, stamp, err := f.field(line, f.fieldName())
	if err != nil {
		return event{}, err
	}
	at, err := f.time(stamp)
	if err != nil {
		return event{}, err
	}
	if value == "-" {
		value = ""
	}
	key := keyOf(f.key, value)
	return event{strings.Clone(key[:min(len(key), maxKey)]), at.UnixMicro()}, nil // the clone keeps nothing of the line
}

// fieldName returns the field that has the key.
func (f *form) fieldName() string {
	if f.key == "ip64" {
		return "ip"
	}
	return f.key
}

// noun returns what a report calls a key.
func (f *form) noun() string {
	switch f.key {
	case "ip", "ip64":
		return "client"
	case "user", "path":
		return f.key
	}
	return "key"
}

// several returns n followed by the noun, as in "2 clients".
func (f *form) several(n int) string {
	if n == 1 {
		return "1 " + f.noun()
	}
	return fmt.Sprintf("%d %ss", n, f.noun())
}

// keyOf returns the key for the value of a field.
func keyOf(kind, value string) string {
	switch kind {
	case "ip":
		addr, err := netip.ParseAddr(value)
		if err != nil {
			return value // a host name
		}
		return clientaddr.Unmap(addr).String()
	case "ip64":
		key, err := httplimit.PeerIP().Of(&http.Request{RemoteAddr: value})
		if err != nil {
			return value
		}
		return key
	case "path":
		if target, err := url.ParseRequestURI(value); err == nil {
			key, _ := httplimit.Path().Of(&http.Request{URL: target}) // there is a URL, so there is no error
			return strings.TrimPrefix(key, "path:")
		}
		value, _, _ = strings.Cut(value, "?")
	}
	return value
}

// errJSON is the error for a line of JSON if another form is expected.
var errJSON = errors.New("it is JSON: use -format json")

// combinedField parses a line in the common or the combined format:
//
//	192.0.2.1 - frank [17/May/2015:10:05:03 +0000] "GET /a HTTP/1.1" 200 2326 ...
//
// The request comes from the client, but whatever it contains, a request was made. Before the
// request, the client chooses only the user name. Servers escape quotation marks in it, so a client
// cannot put another time before the request.
func combinedField(line, name string) (value, at string, err error) {
	client, rest, _ := strings.Cut(line, " ")
	switch {
	case isClient(client):
	case json.Valid([]byte(line)):
		return "", "", errJSON
	default:
		return "", "", errors.New("it does not begin with a client's address")
	}
	before, request, found := strings.Cut(rest, `] "`)
	i := strings.LastIndex(before, "[")
	if !found || i < 0 {
		return "", "", errors.New("no time in brackets before a request")
	}
	switch name {
	case "user":
		_, value, _ = strings.Cut(before[:i], " ")
		value = strings.TrimSuffix(value, " ")
	case "path":
		request, _, _ = strings.Cut(request, `" `)
		_, value, _ = strings.Cut(request, " ")
		value, _, _ = strings.Cut(value, " ")
	default:
		value = client
	}
	return value, before[i+1:], nil
}

// isClient reports whether s can be an IP address or a host name.
func isClient(s string) bool {
	for _, c := range []byte(s) {
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9':
		case strings.IndexByte(".:-_%", c) >= 0:
		default:
			return false
		}
	}
	return 0 < len(s) && len(s) <= maxKey
}

// aliases are the names that servers use for a field of JSON. The first one in the object counts.
var aliases = map[string][]string{
	"ip":   {"ip", "client_ip", "remote_ip", "remote_addr", "clientip", "request.client_ip", "request.remote_ip"},
	"user": {"user", "remote_user", "user_id"},
	"path": {"path", "uri", "request_uri", "url", "request.uri"},
	"time": {"time", "timestamp", "ts", "@timestamp", "time_local", "time_iso8601"},
}

// jsonField parses an object. A field of an inner object has a name with dots.
func jsonField(line, name string) (value, at string, err error) {
	var object map[string]any
	d := json.NewDecoder(strings.NewReader(line))
	d.UseNumber()
	if err := d.Decode(&object); err != nil {
		return "", "", errors.New("it is not a JSON object")
	}
	if at = lookUp(object, "time"); at == "" {
		return "", "", fmt.Errorf("it has no field named %s", strings.Join(aliases["time"], ", "))
	}
	return lookUp(object, name), at, nil
}

func lookUp(object map[string]any, name string) string {
	names, found := aliases[name]
	if !found {
		names = []string{name}
	}
	for _, name := range names {
		if value := inner(object, name); value != nil {
			return fmt.Sprint(value)
		}
	}
	return ""
}

func inner(object map[string]any, name string) any {
	if value, found := object[name]; found {
		return value
	}
	name, rest, dotted := strings.Cut(name, ".")
	if object, ok := object[name].(map[string]any); ok && dotted {
		return inner(object, rest)
	}
	return nil
}

// layouts are the known forms of time, in addition to numbers: ISO 8601, nginx's error log, HTTP,
// Apache's error log, and syslog, which has no year. All may have fractions of a second.
var layouts = []string{
	time.RFC3339, "2006-01-02T15:04:05", "2006-01-02T15:04:05Z0700", time.DateTime, "2006-01-02 15:04:05Z07:00",
	"2006-01-02 15:04:05 Z0700", "2006/01/02 15:04:05", time.RFC1123, time.ANSIC, time.Stamp,
}

// errTime means that a line has the expected form, but no time that can be parsed.
var errTime = errors.New("time")

// timeError is an errTime with its own text.
type timeError string

func (e timeError) Error() string   { return string(e) }
func (e timeError) Is(t error) bool { return t == errTime }

// time parses a time in one of the known forms, or in the form of -layout. A time without a year is
// in the year 0.
func (f *form) time(text string) (time.Time, error) {
	if f.layout != "" {
		at, err := time.Parse(f.layout, text)
		if err != nil {
			err = timeError(fmt.Sprintf("the time is not as in -layout: %.40q", text))
		}
		return at, err
	}
	if at, ok := parseTime(text); ok {
		return at, nil
	}
	if f.field == nil || f.format == "combined" && f.line == "" {
		return time.Time{}, timeError("the time is not like 17/May/2015:10:05:03 +0000")
	}
	if at, ok := parseUnix(text); ok {
		return at, nil
	}
	for _, layout := range layouts {
		if at, err := time.Parse(layout, text); err == nil {
			return at, nil
		}
	}
	return time.Time{}, timeError(fmt.Sprintf("no known form of time: %.40q", text))
}

// parseUnix parses Unix seconds, with or without a fraction, ms, µs or ns. Their size determines
// the unit, from 1973 to 5138.
func parseUnix(text string) (time.Time, bool) {
	seconds, err := strconv.ParseFloat(text, 64)
	if err != nil || seconds < 0 || seconds >= 1e20 {
		return time.Time{}, false
	}
	if whole, err := strconv.ParseInt(text, 10, 64); err == nil {
		switch {
		case whole >= 1e17:
			return time.Unix(0, whole), true
		case whole >= 1e14:
			return time.UnixMicro(whole), true
		case whole >= 1e11:
			return time.UnixMilli(whole), true
		}
		return time.Unix(whole, 0), true
	}
	return time.UnixMicro(int64(seconds*1e6 + 0.5)), seconds < 1e11 // a float64 is exact to 1 µs until 2106
}

// parseTime parses a time in the form of the combined format, strictly. A leap second, 60, counts
// as the following second.
func parseTime(s string) (time.Time, bool) {
	if !looksLikeTime(s) {
		return time.Time{}, false
	}
	const months = "JanFebMarAprMayJunJulAugSepOctNovDec"
	month := strings.Index(months, s[3:6]) // "anF" is not a month
	if month%3 != 0 {                      // also refuses -1
		return time.Time{}, false
	}
	number := func(from, to int) int { n, _ := strconv.Atoi(s[from:to]); return n }
	day, hour, minute, second := number(0, 2), number(12, 14), number(15, 17), number(18, 20)
	zoneHour, zoneMinute := number(22, 24), number(24, 26)
	date := time.Date(number(7, 11), time.Month(1+month/3), day, 0, 0, 0, 0, time.UTC)
	if date.Day() != day || hour > 23 || minute > 59 || second > 60 || zoneHour > 23 || zoneMinute > 59 {
		return time.Time{}, false
	}
	sinceMidnight := time.Duration(hour*3600+minute*60+second) * time.Second
	zone := time.Duration(zoneHour*60+zoneMinute) * time.Minute
	if s[21] == '-' {
		zone = -zone
	}
	return date.Add(sinceMidnight - zone), true
}

// looksLikeTime reports whether s has digits and separators where a time has them.
func looksLikeTime(s string) bool {
	const form = "00/Mmm/0000:00:00:00 +0000"
	if len(s) != len(form) {
		return false
	}
	for i, c := range []byte(form) {
		switch c {
		case '0':
			if s[i] < '0' || s[i] > '9' {
				return false
			}
		case '/', ':', ' ':
			if s[i] != c {
				return false
			}
		case '+':
			if s[i] != '+' && s[i] != '-' {
				return false
			}
		}
	}
	return true
}
