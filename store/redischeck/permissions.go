package redischeck

// What keeps the scripts of limiters from running, or from writing. A script that tries each of their commands finds it.

import (
	"context"
	"fmt"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/ratelimit-go/ratelimit/internal/redisview"
)

// tryAll runs each command of this library's scripts once, on two keys of its own. It removes the
// keys, which expire after a second if it may not remove them. ARGV[1] is 'time' if scripts read the
// server's clock. The reply has each command that failed, and why.
const tryAll = `
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

// permissions runs tryAll on the server.
func (n *server) permissions(ctx context.Context) error {
	if _, cluster := n.Client.(*redis.ClusterClient); cluster { // while a slot moves, its new owner is told ASKING before each call
		_, err := n.ask(ctx, "asking")
		if answer := redisview.Answer(err); forbidden(answer) {
			n.findf("this user may not run ASKING (%s), and calls fail while their slot moves here. Allow +asking.", answer)
		}
	}
	key, ok := n.key()
	if !ok {
		return nil // it has no keys
	}
	clock, known := "time", len(n.found)
	if n.Clock != nil {
		clock = "no time"
	}
	var failed []any
	for _, script := range [][2]string{{"eval", tryAll}, {"evalsha", redis.NewScript(tryAll).Hash()}} { // calls use both
		val, err := n.ask(ctx, script[0], script[1], 2, key, key+":list", clock)
		switch answer := redisview.Answer(err); {
		case err != nil && answer == "":
			return n.unreachable(err)
		case forbidden(answer) && strings.Contains(answer, "access"):
			n.findf("this user may not use the keys of the store (%s), and calls fail. Allow ~%s:*.", answer, n.Prefix)
			return nil
		case forbidden(answer):
			n.findf("this user may not run %s (%s), and calls fail. Allow +%s.", strings.ToUpper(script[0]), answer, script[0])
		case redis.HasErrorPrefix(err, "NOSCRIPT") && len(n.found) > known: // EVAL is forbidden
		case redis.HasErrorPrefix(err, "MOVED") || redis.HasErrorPrefix(err, "ASK"): // because of the client, or while the cluster changes
		case answer != "":
			n.findf("scripts do not run (%s). Until they do, calls fail. %s", answer, remedy(answer))
			return nil
		default:
			failed, _ = val.([]any)
		}
	}
	n.failed(failed)
	return nil
}

// key returns a key that belongs to the server, if there is one. The script's other key begins
// with it, and so has the same tag.
func (n *server) key() (string, bool) {
	const tries = 1 << 14 // as many as there are slots
	for i := range tries {
		key := fmt.Sprintf("%scheck:{=%d}", n.Keys, i)
		if n.Owner == nil {
			return key, true
		}
		if c, err := n.Owner(key); err == nil && c.Options().Addr == n.name {
			return key, true
		}
	}
	return "", false
}

// failed reports the commands that fail in a script: pairs of a command and its answer. If a command
// is forbidden, others fail because of it, and are not reported.
func (n *server) failed(pairs []any) {
	var names, allow, refusals []string
	why := ""
	for i := 0; i+1 < len(pairs); i += 2 {
		name, answer := fmt.Sprint(pairs[i]), fmt.Sprint(pairs[i+1])
		if forbidden(answer) {
			names, allow, why = append(names, name), append(allow, "+"+strings.ToLower(name)), answer
		} else {
			refusals = append(refusals, fmt.Sprintf("the server refuses %s (%s). While it does, admissions fail. %s", name, answer, remedy(answer)))
		}
	}
	switch {
	case len(names) > 0:
		n.findf("scripts of this user may not run %s (%s), and calls fail. Allow %s.", strings.Join(names, ", "), why, strings.Join(allow, " "))
	case len(refusals) > 0:
		n.findf("%s", refusals[0])
	}
}

// remedy returns what to do about a refusal.
func remedy(answer string) string {
	for _, r := range [...]struct{ code, remedy string }{
		{"NOREPLICAS", "Start the replicas that min-replicas-to-write asks for, or lower it."},
		{"OOM", "Give it more memory, or move its other data to another server."},
		{"MISCONF", "Find out why it cannot save, or set stop-writes-on-bgsave-error to no."},
		{"READONLY", "Connect to the master."},
	} {
		if strings.Contains(answer, r.code+" ") {
			return r.remedy
		}
	}
	answer = strings.ToLower(answer)
	for _, lacking := range [...]string{"unknown command", "unknown redis command", "unknown valkey command", "wrong number of arg"} {
		if strings.Contains(answer, lacking) {
			return "Use Redis 6.2, Valkey 7.2, or a later version, which has all commands under their own names."
		}
	}
	return "Make sure that it runs."
}

// forbidden reports whether an access list gave the answer. Redis 7.0 and 7.2 word it
// differently for a command within a script.
func forbidden(answer string) bool {
	return strings.Contains(answer, "NOPERM") || strings.Contains(answer, "ACL failure in script") ||
		strings.Contains(answer, "The user executing the script can't")
}
