package pgstore

import (
	"context"
	"encoding/binary"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"
)

// This file has the binary form of the few types that the statements use. The statements therefore need neither a type
// map, nor to be prepared so that the server reports their types.

var (
	arrays  = []uint32{pgtype.ByteaArrayOID}
	written = []uint32{pgtype.ByteaArrayOID, pgtype.ByteaArrayOID, pgtype.Int8ArrayOID}
	single  = []uint32{pgtype.ByteaOID, pgtype.ByteaOID, pgtype.Int8OID, pgtype.ByteaOID}
	swept   = []uint32{pgtype.Int8OID, pgtype.Int8OID, pgtype.Int8OID}

	binaryForm = []int16{1}
)

// pipeline holds statements that are sent to the server together. Outside a transaction, they form one.
type pipeline struct {
	batch pgconn.Batch
	last  string // the server's answer to the last statement, such as COMMIT
}

func (p *pipeline) add(sql string, types []uint32, args ...[]byte) {
	p.batch.ExecParams(sql, args, types, binaryForm, binaryForm)
}

// addOne adds a statement on one row, in its prepared form as, if that is not nil.
func (p *pipeline) addOne(as *pgconn.StatementDescription, sql string, args ...[]byte) {
	if as == nil {
		p.add(sql, single[:len(args)], args...)
		return
	}
	p.batch.ExecStatement(as, args, binaryForm, binaryForm)
}

// run runs the statements, and calls each with every row of their results. i is the number of the statement. each must
// not keep values.
func (p *pipeline) run(conn *pgconn.PgConn, each func(i int, values [][]byte)) error {
	results := conn.ExecBatch(context.Background(), &p.batch)
	for i := 0; results.NextResult(); i++ {
		r := results.ResultReader()
		for r.NextRow() {
			if each != nil {
				each(i, r.Values())
			}
		}
		tag, _ := r.Close()
		p.last = tag.String()
	}
	return results.Close()
}

// header returns the header of an array with one dimension and n elements, none of them NULL.
func header(oid uint32, n int) (b []byte) {
	for _, word := range [...]uint32{1, 0, oid, uint32(n), 1} { //nolint:gosec // a batch has some thousand rows at most
		b = binary.BigEndian.AppendUint32(b, word)
	}
	return b
}

// byteArrays returns an array of n elements.
func byteArrays(n int, element func(i int) []byte) []byte {
	b := header(pgtype.ByteaOID, n)
	for i := range n {
		e := element(i)
		b = append(binary.BigEndian.AppendUint32(b, uint32(len(e))), e...) //nolint:gosec // as above
	}
	return b
}

func int8array(list []int64) []byte {
	b := header(pgtype.Int8OID, len(list))
	for _, n := range list {
		b = binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint32(b, 8), uint64(n)) //nolint:gosec // the bits stay
	}
	return b
}

func int8of(n int64) []byte { return binary.BigEndian.AppendUint64(nil, uint64(n)) } //nolint:gosec // as above

// epoch is the origin of the times of Postgres, in Unix µs.
const epoch = 946_684_800 * 1e6

// timestamp returns a timestamptz in Unix µs.
func timestamp(b []byte) int64 {
	if len(b) != 8 {
		return 0
	}
	return int64(binary.BigEndian.Uint64(b)) + epoch //nolint:gosec // as above
}
