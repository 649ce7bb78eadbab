package redisstore

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/ratelimit-go/ratelimit/store"
)

// probeScript runs each command of this library's scripts once, on two keys of its own.
// It removes them, and they expire after a second if it may not. ARGV[1] is 'time' if
// scripts read the server's clock. It replies each command that failed, and why.
const probeScript = `
local text, list, failed = KEYS[1], KEYS[2], {}
local function try(...)
  local reply = redis.pcall(...)
  if type(reply) == 'table' and reply.err then
    failed[#failed + 1] = (...)
    failed[#failed + 1] = reply.err
  end
end
if ARGV[1] == 'time' then try('TIME') end
try('SET', text, '', 'PX', '1000')
try('GET', text)
try('RPUSH', list, '', '')
try('PEXPIRE', list, '1000')
try('LLEN', list)
try('LINDEX', list, '0')
try('LSET', list, '0', '')
try('LPOP', list, '1')
try('LTRIM', list, '0', '0')
try('DEL', text)
try('UNLINK', list)
redis.pcall('DEL', list)
redis.pcall('LPOP', list, '2')
return failed`

// probe runs probeScript on n, and reports what keeps scripts from running or writing.
func (s *Store) probe(ctx context.Context, n node) ([]string, error) {
	text, ok := s.probeKey(n)
	if !ok {
		return nil, nil // n has no keys
	}
	sc, clock := newScript(probeScript), "time"
	if s.clock != nil {
		clock = "no time"
	}
	var found []string
	var failed []any
	for _, args := range [][]any{{eval, sc.text}, {evalsha, sc.sha}} { // calls use both
		val, err := n.askKey(ctx, append(args, 2, text, text+":list", clock)...)
		switch answer := answerOfServer(err); {
		case err != nil && answer == "":
			return found, fmt.Errorf("%w: %s: %v", store.ErrUnavailable, n.name, err) //nolint:errorlint // no context error may show
		case answer != "" && forbidden(answer):
			found = append(found, s.forbiddenHere(args[0].(string), answer))
		case codeOf(answer) == "NOSCRIPT" && len(found) > 0: // EVAL is forbidden
		case codeOf(answer) == "MOVED" || codeOf(answer) == "ASK": // because of the client, or while the cluster changes
		case answer != "":
			found = append(found, fmt.Sprintf("scripts do not run (%s). Until they do, calls fail.", answer))
		default:
			failed, _ = val.([]any)
		}
	}
	return append(found, checkFailed(failed)...), nil
}

// probeKey returns a key that belongs to n, if there is one. The probe's other key begins
// with it, and so has the same tag.
func (s *Store) probeKey(n node) (string, bool) {
	const tries = 1 << 14 // as many as there are slots
	for i := range tries {
		key := fmt.Sprintf("%scheck:{=%d}", s.prefix, i)
		if s.link.pool == nil || n.single {
			return key, true
		}
		if c, err := s.link.pool(key); err == nil && c.Options().Addr == n.name {
			return key, true
		}
	}
	return "", false
}

// checkFailed reports the commands that fail in a script: pairs of a command and its
// answer.
func checkFailed(failed []any) []string {
	var refused, names, allow []string
	why := ""
	for i := 0; i+1 < len(failed); i += 2 {
		name, answer := fmt.Sprint(failed[i]), fmt.Sprint(failed[i+1])
		switch {
		case forbidden(answer):
			names, allow, why = append(names, name), append(allow, "+"+strings.ToLower(name)), answer
		case len(refused) == 0:
			refused = append(refused, fmt.Sprintf("the server refuses %s (%s). While it does, admissions fail. %s", name, answer, remedy(codeOf(answer))))
		}
	}
	if len(names) > 0 { // a forbidden command makes others fail
		return []string{fmt.Sprintf("scripts of this user may not run %s (%s), and calls fail. Allow %s.",
			strings.Join(names, ", "), why, strings.Join(allow, " "))}
	}
	return refused
}

// remedy says what to do about a refusal.
func remedy(code string) string {
	switch code {
	case "NOREPLICAS":
		return "Start the replicas that min-replicas-to-write asks for, or lower it."
	case "OOM":
		return "Give it more memory, or move its other data to another server."
	case "MISCONF":
		return "Find out why it cannot save, or set stop-writes-on-bgsave-error to no."
	case "READONLY":
		return "Connect to the master."
	}
	return "Make sure that it runs."
}

// forbiddenHere reports a command, eval or evalsha, that an access list forbids.
func (s *Store) forbiddenHere(command, answer string) string {
	if strings.Contains(answer, "access") {
		prefix := strings.TrimSuffix(s.prefix, layout+":")
		return fmt.Sprintf("this user may not use the keys of the store (%s), and calls fail. Allow ~%s*.", answer, prefix)
	}
	return fmt.Sprintf("this user may not run %s (%s), and calls fail. Allow +%s.", strings.ToUpper(command), answer, command)
}

// forbidden reports whether an access list gave the answer. Redis 7.0 and 7.2 word it
// differently for a command within a script.
func forbidden(answer string) bool {
	return codeOf(answer) == "NOPERM" || strings.Contains(answer, "ACL failure in script") ||
		strings.Contains(answer, "The user executing the script can't")
}

// unauthenticated reports whether err is the answer to a wrong or missing password.
func unauthenticated(err error) bool {
	answer := answerOfServer(err)
	return strings.Contains(answer, "WRONGPASS") || strings.Contains(answer, "NOAUTH") || strings.Contains(answer, "invalid password")
}

// answerOfServer is the text of err if it is a server's answer, and "" otherwise.
func answerOfServer(err error) string {
	var answer redis.Error
	if errors.As(err, &answer) && !errors.Is(err, redis.Nil) {
		return answer.Error()
	}
	return ""
}
