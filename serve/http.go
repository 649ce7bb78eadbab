package serve

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf16"
	"unicode/utf8"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/ratelimit-go/ratelimit"
)

// MaxBody is the maximum size of a request in bytes, over HTTP and, with the server of
// ratelimit-serve, over gRPC.
const MaxBody = 256 << 10

// Handler returns a handler for requests of proxies and scripts over HTTP. Requests are not
// authenticated.
//
//	POST /json          a RateLimitRequest as JSON, and its answer: 200 or 429
//	/check/{name}       for subrequests of proxies: 204, or 429 with Retry-After; ?denied=403
//	POST /v1/decide     {"domain": "api", "asks": [{"entries": {"user": "ann"}, "hits": 1}]}: 200 or 429
//	POST /v1/refund     the same, to refund the events
//	POST /v1/settle     the same with "used" in place of "hits", and the "reservation" of a decision with "reserve": true
//
// With ?timeout=200ms, on_failure decides within four fifths of that time. No header field can set
// the time, because a proxy would pass on the client's.
//
// The status is 400 for an invalid request, 503 if there is no decision, and 409 if a reservation
// is already settled. A POST from a page of another origin in a browser gets 403, except for
// /check, which gets the header fields of clients.
func (s *Service) Handler() http.Handler {
	mux, origins := http.NewServeMux(), http.NewCrossOriginProtection()
	for pattern, serve := range map[string]func(http.ResponseWriter, *http.Request) error{
		"POST /json":      s.serveJSON,
		"/check/{name}":   s.serveCheck,
		"POST /v1/decide": s.serveDecide,
		"POST /v1/refund": s.serveRefund,
		"POST /v1/settle": s.serveSettle,
	} {
		answer := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			r, cancel, err := inTime(r)
			defer cancel()
			if err == nil {
				err = serve(w, r)
			}
			if errors.Is(err, errUnread) {
				s.metrics.decided(nil, err)
			}
			if err != nil {
				failed(w, err)
			}
		})
		if strings.HasPrefix(pattern, "POST ") {
			mux.Handle(pattern, origins.Handler(answer))
		} else {
			mux.Handle(pattern, answer)
		}
	}
	return mux
}

// inTime returns r with the deadline in its URL.
func inTime(r *http.Request) (*http.Request, context.CancelFunc, error) {
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil { // Query would leave out the rest
		return r, func() {}, unread("the query of the URL: %v", err)
	}
	texts, found := query["timeout"]
	if !found {
		return r, func() {}, nil
	}
	d, err := time.ParseDuration(texts[0])
	if err != nil || d <= 0 || len(texts) > 1 {
		return r, func() {}, unread("timeout=%s: want one time above 0, such as 200ms", quote(strings.Join(texts, ", ")))
	}
	ctx, cancel := context.WithTimeout(r.Context(), d)
	return r.WithContext(ctx), cancel, nil
}

func (s *Service) serveJSON(w http.ResponseWriter, r *http.Request) error {
	body, err := readBody(w, r)
	if err != nil {
		return err
	}
	req := new(pb.RateLimitRequest)
	if err := protojson.Unmarshal(body, req); err != nil {
		return unread("%v", err)
	}
	q, err := s.answer(r.Context(), req, manner{})
	if err != nil {
		return err
	}
	text, err := protojson.Marshal(s.response(req, q))
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(s.code(q))
	_, _ = w.Write(text)
	return nil
}

// code returns 200, or 429 if the whole is over a limit.
func (s *Service) code(q *question) int {
	if s.denies(q) {
		return http.StatusTooManyRequests
	}
	return http.StatusOK
}

// failed answers a request for which there is no decision.
func failed(w http.ResponseWriter, err error) {
	st := status.Convert(statusOf(err))
	code, text := http.StatusServiceUnavailable, st.Message()
	switch large := new(http.MaxBytesError); {
	case errors.As(err, &large):
		code, text = http.StatusRequestEntityTooLarge, fmt.Sprintf("the body has more than %d bytes", MaxBody)
	case errors.Is(err, ratelimit.ErrSettled):
		code = http.StatusConflict
	case st.Code() == codes.InvalidArgument:
		code = http.StatusBadRequest
	case st.Code() == codes.Internal:
		code, text = http.StatusInternalServerError, "no decision"
	}
	http.Error(w, text, code)
}

func (s *Service) serveCheck(w http.ResponseWriter, r *http.Request) error {
	denied := http.StatusTooManyRequests
	switch text := r.URL.Query().Get("denied"); text {
	case "", "429":
	case "403":
		denied = http.StatusForbidden
	default:
		return unread("denied=%s: want 403 or 429", quote(text))
	}
	now := s.now.Load()
	c := now.checks[r.PathValue("name")]
	if c == nil {
		http.Error(w, "no such check", http.StatusNotFound)
		return nil
	}
	req, err := s.request(now, c, r)
	if err != nil {
		return err
	}
	if len(req.Descriptors) == 0 {
		w.WriteHeader(http.StatusNoContent)
		return nil
	}
	q, err := s.answer(r.Context(), req, manner{by: now, anyOrder: true})
	if err != nil {
		return err
	}
	s.fields(w.Header(), q)
	if s.denies(q) {
		http.Error(w, "too many requests", denied)
		return nil
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// fields sets the header fields of a response.
func (s *Service) fields(h http.Header, q *question) {
	for _, f := range usualHeaders.of(q.worst()) {
		h.Set(f.GetKey(), f.GetValue())
	}
	if wait := q.retryAfter(); s.denies(q) && wait != ratelimit.Never {
		h.Set("Retry-After", strconv.FormatInt(seconds(wait), 10))
	}
}

// retryAfter returns how long the part that denies longest does so, or 0 if the whole is admitted.
func (q *question) retryAfter() (longest time.Duration) {
	for i := range q.parts {
		if p := &q.parts[i]; q.over && p.denies() {
			longest = max(longest, p.result.RetryAfter)
		}
	}
	return longest
}

// asked is the body of /v1/decide and /v1/refund.
type asked struct {
	Domain  string `json:"domain"`
	Reserve bool   `json:"reserve"` // only for /v1/decide
	Asks    []struct {
		Entries entries `json:"entries"`
		Hits    *uint64 `json:"hits"`
	} `json:"asks"`
}

// entries are the members of an object of texts, sorted by key, because their order in an object
// has no meaning.
type entries []*common.RateLimitDescriptor_Entry

func (e *entries) UnmarshalJSON(text []byte) error {
	d := json.NewDecoder(bytes.NewReader(text))
	if open, err := d.Token(); err != nil || open != json.Delim('{') {
		return errors.New("entries: want an object of strings")
	}
	var all entries
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return err
		}
		value, err := d.Token()
		text, isText := value.(string)
		if err != nil || !isText {
			return fmt.Errorf("entries: %v: want a string", key)
		}
		all = append(all, &common.RateLimitDescriptor_Entry{Key: key.(string), Value: text})
	}
	slices.SortFunc(all, func(a, b *common.RateLimitDescriptor_Entry) int { return strings.Compare(a.Key, b.Key) })
	*e = all
	return nil
}

// check rejects empty entries, which no rule can count.
func (e entries) check(i int) error {
	if len(e) == 0 {
		return unread("ask %d: entries: want an object with at least one member", i)
	}
	return nil
}

// request returns the request for what is asked, or is to be refunded if back is true.
func (a *asked) request(back bool) (*pb.RateLimitRequest, error) {
	req := &pb.RateLimitRequest{Domain: a.Domain}
	for i, one := range a.Asks {
		if err := one.Entries.check(i); err != nil {
			return nil, err
		}
		d := &common.RateLimitDescriptor{Entries: one.Entries, IsNegativeHits: back}
		if one.Hits != nil {
			d.HitsAddend = wrapperspb.UInt64(*one.Hits)
		}
		req.Descriptors = append(req.Descriptors, d)
	}
	return req, nil
}

// readBody reads a body of at most MaxBody bytes.
func readBody(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, MaxBody))
	if err != nil {
		err = fmt.Errorf("%w: %w", errUnread, err)
	}
	return body, err
}

// readJSON reads a body into v.
func readJSON(w http.ResponseWriter, r *http.Request, v any) error {
	body, err := readBody(w, r)
	if err != nil {
		return err
	}
	if !isUnicode(body) {
		return unread("a string is not valid UTF-8, or has half of a surrogate pair")
	}
	d := json.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return unread("%v", err)
	}
	if _, err := d.Token(); err != io.EOF {
		return unread("there is data after the object")
	}
	return checkNames(json.NewDecoder(bytes.NewReader(body)), false)
}

// checkNames rejects what package json takes in the next value of d: the last of two members of
// one name, and a field whose name is written in capitals. The members of entries have any names.
func checkNames(d *json.Decoder, anyName bool) error {
	open, err := d.Token()
	if open != json.Delim('{') && open != json.Delim('[') {
		return err
	}
	seen := map[string]bool{}
	for d.More() {
		name := ""
		if open == json.Delim('{') {
			token, err := d.Token()
			if err != nil {
				return err
			}
			name = token.(string)
			if seen[name] {
				return unread("%s is repeated", quote(name))
			}
			if seen[name] = true; !anyName && strings.Trim(name, "abcdefghijklmnopqrstuvwxyz") != "" {
				return unread("unknown field %s: write it in lower case", quote(name))
			}
		}
		if err := checkNames(d, name == "entries"); err != nil {
			return err
		}
	}
	_, err = d.Token()
	return err
}

// isUnicode reports whether all texts in a JSON body are valid. Package json replaces invalid parts
// by U+FFFD, so that different values would share a count.
func isUnicode(body []byte) bool {
	if !utf8.Valid(body) {
		return false
	}
	for {
		_, escape, found := bytes.Cut(body, []byte{'\\'})
		if !found || len(escape) == 0 {
			return true
		}
		body = escape[1:]
		first := codeUnit(escape)
		if !utf16.IsSurrogate(first) {
			continue
		}
		second, paired := bytes.CutPrefix(escape[5:], []byte{'\\'})
		if !paired || utf16.DecodeRune(first, codeUnit(second)) == utf8.RuneError {
			return false
		}
		body = second[5:]
	}
}

// codeUnit returns the code unit of an escape such as u00e9, or 0 if it is not one.
func codeUnit(escape []byte) rune {
	if len(escape) < 5 || escape[0] != 'u' {
		return 0
	}
	n, _ := strconv.ParseUint(string(escape[1:5]), 16, 16)
	return rune(n)
}

// decided is the response of /v1/decide. Times are in seconds.
type decided struct {
	Allowed     bool      `json:"allowed"`
	RetryAfter  *float64  `json:"retry_after,omitempty"` // absent if waiting will not help
	Asks        []verdict `json:"asks"`
	Reservation string    `json:"reservation,omitempty"` // absent if the store charged nothing
}

type verdict struct {
	Allowed    bool    `json:"allowed"`
	NoRule     bool    `json:"no_rule,omitempty"` // the domain or the entries may be misspelled
	Limit      *int    `json:"limit,omitempty"`   // absent if no limit counts it
	Remaining  *int    `json:"remaining,omitempty"`
	ResetAfter float64 `json:"reset_after,omitempty"`
}

func (s *Service) serveDecide(w http.ResponseWriter, r *http.Request) error {
	var a asked
	if err := readJSON(w, r, &a); err != nil {
		return err
	}
	req, err := a.request(false)
	if err != nil {
		return err
	}
	at := time.Now()
	q, err := s.answer(r.Context(), req, manner{anyOrder: true, reserve: a.Reserve})
	if err != nil {
		return err
	}
	answer := decided{Allowed: !s.denies(q)}
	if a.Reserve && (answer.Allowed || q.domain.each) {
		answer.Reservation = q.reserved(at, req)
	}
	if wait := q.retryAfter(); !answer.Allowed && wait != ratelimit.Never {
		answer.RetryAfter = new(wait.Seconds())
	}
	for i := range q.parts {
		p := &q.parts[i]
		st := verdict{Allowed: !p.denies(), NoRule: p.rule == nil}
		if p.decided() && p.shown != nil {
			st.Limit, st.Remaining, st.ResetAfter = new(p.result.Limit), new(p.result.Remaining), p.result.ResetAfter.Seconds()
		}
		answer.Asks = append(answer.Asks, st)
	}
	s.fields(w.Header(), q)
	writeJSON(w, s.code(q), answer)
	return nil
}

func (s *Service) serveRefund(w http.ResponseWriter, r *http.Request) error {
	var a asked
	if err := readJSON(w, r, &a); err != nil {
		return err
	}
	if a.Reserve {
		return unread("reserve: only /v1/decide can reserve")
	}
	req, err := a.request(true)
	if err != nil {
		return err
	}
	q, err := s.answer(r.Context(), req, manner{anyOrder: true})
	if err != nil {
		return err
	}
	given := struct {
		Given []int `json:"given"`
	}{}
	for i := range q.parts {
		n := 0
		if p := &q.parts[i]; p.decided() && p.shown != nil {
			n = p.n
		}
		given.Given = append(given.Given, n)
	}
	writeJSON(w, http.StatusOK, given)
	return nil
}

func writeJSON(w http.ResponseWriter, code int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(v)
}
