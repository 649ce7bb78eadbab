package pgstore

import (
	"bytes"
	"slices"

	"github.com/ratelimit-go/ratelimit/store"
)

// batch holds calls that are decided on together, and their rows, sorted by key.
type batch struct {
	calls []*call
	rows  []*row
	byKey map[string]*row // nil if there is one row
	now   int64           // when the calls were decided on
}

func newBatch(calls []*call) *batch {
	b := &batch{calls: calls}
	if len(calls) == 1 && len(calls[0].requests) == 1 {
		b.add(calls[0], 0)
		return b
	}
	b.byKey = make(map[string]*row, len(calls))
	for _, c := range calls {
		for i := range c.requests {
			b.add(c, i)
		}
	}
	slices.SortFunc(b.rows, func(r, other *row) int { return bytes.Compare(r.key, other.key) })
	return b
}

// add gives request i of c its row.
func (b *batch) add(c *call, i int) {
	q := &c.requests[i]
	key := address(q.Namespace, q.Key)
	r := b.byKey[string(key)]
	if r == nil {
		r = &row{key: key, rule: q.Namespace.Rule}
		if b.rows = append(b.rows, r); b.byKey != nil {
			b.byKey[string(key)] = r
		}
	}
	c.rows[i] = r
}

// onlyLooks reports whether the calls change nothing, however they are decided.
func (b *batch) onlyLooks() bool {
	return !slices.ContainsFunc(b.calls, func(c *call) bool {
		return c.op != decide || slices.ContainsFunc(c.requests, func(q store.Request) bool { return q.Op != store.OpLook })
	})
}

// row returns the row of key, or nil if b has none.
func (b *batch) row(key []byte) *row {
	if b.byKey != nil {
		return b.byKey[string(key)]
	}
	if bytes.Equal(b.rows[0].key, key) {
		return b.rows[0]
	}
	return nil
}

// found records that the table has a row.
func (b *batch) found(key, value []byte) {
	if r := b.row(key); r != nil {
		r.there, r.old = true, bytes.Clone(value)
	}
}

// forget resets all rows to unread.
func (b *batch) forget() {
	for _, r := range b.rows {
		r.there, r.old, r.lost = false, nil, false
	}
}

// keys returns the keys of rows as an array.
func keys(rows []*row) []byte {
	return byteArrays(len(rows), func(i int) []byte { return rows[i].key })
}

// decideAll decides on all calls at now, or at the time of WithClock, except on calls whose rows are lost. It returns
// the rows to update and the rows to insert.
func (s *Store) decideAll(b *batch, now int64) (update, insert []*row) {
	if s.clock != nil {
		now = s.clock().UnixMicro()
	}
	b.now = now
	for _, r := range b.rows {
		r.read(now)
	}
	for _, c := range b.calls {
		if c.err = errHeld; !slices.ContainsFunc(c.rows, func(r *row) bool { return r.lost }) {
			c.err = c.decide(now, s.setBack)
		}
	}
	for _, r := range b.rows {
		switch {
		case !r.changed:
		case r.there:
			update = append(update, r)
		case r.end() > now:
			insert = append(insert, r)
		}
	}
	return update, insert
}

// values returns rows as the arguments of a statement that writes them.
func values(rows []*row) ([][]byte, error) {
	list, ends := make([][]byte, len(rows)), make([]int64, len(rows))
	for i, r := range rows {
		var err error
		if list[i], ends[i], err = r.value(); err != nil {
			return nil, err
		}
	}
	return [][]byte{
		keys(rows),
		byteArrays(len(rows), func(i int) []byte { return list[i] }),
		int8array(ends),
	}, nil
}
