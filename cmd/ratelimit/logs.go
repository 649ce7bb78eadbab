package main

import (
	"bufio"
	"bytes"
	"cmp"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"
)

const (
	maxLine = 64 << 10 // number of bytes of a line that are read
	reach   = 1 << 14  // number of lines by which an event may be out of order
	tick    = 1 << 19  // number of lines between two reports of progress
)

// logs are the files that a command reads, and the numbers about their lines.
type logs struct {
	form
	program  *program
	sources  []*source
	last     int64 // the time of the last event, Unix µs
	timeless int   // the Unreadable lines in the right form, but without a known form of time
	json     int   // the Unreadable lines that are JSON, although the form is another one

	Lines      int `json:"lines"`
	Unreadable int `json:"unreadable_lines"`
	WithoutKey int `json:"lines_without_key"`
	Late       int `json:"late_lines"`

	Requests int       `json:"requests"`
	From     time.Time `json:"from,omitzero"`
	To       time.Time `json:"to,omitzero"`
}

// each calls do with the events of all files, in the order of their times. The order of the files
// therefore does not matter, nor whether several servers wrote them.
func (l *logs) each(files []string, do func(event) error) error {
	defer l.close()
	if err := l.open(files); err != nil {
		return err
	}
	from, err := l.earliest()
	for from != nil && err == nil {
		if err = do(l.next(from)); err == nil {
			from, err = l.earliest()
		}
	}
	l.endProgress()
	if err == nil && l.Unreadable > 0 && l.Unreadable == l.Lines {
		err = l.nothing()
	}
	return err
}

// nothing returns the error if no line could be read. It describes the lines that came closest.
func (l *logs) nothing() error {
	switch {
	case l.json > 0:
		return fmt.Errorf("no line could be read: %d are JSON: use -format json", l.json)
	case l.timeless == 0:
		return errors.New("no line could be read: is -format or -line right?")
	case l.layout != "":
		return fmt.Errorf("no line could be read: %d have the right form, but their time does not match -layout", l.timeless)
	}
	return fmt.Errorf("no line could be read: %d have the right form, but their time is in an unknown form: set -layout", l.timeless)
}

func (l *logs) open(files []string) error {
	if len(files) == 0 {
		files = []string{"-"}
	}
	for _, name := range files {
		s := &source{logs: l, name: name}
		l.sources = append(l.sources, s)
		if err := s.open(l.program.stdin); err != nil {
			return err
		}
	}
	return nil
}

func (l *logs) close() {
	for _, s := range l.sources {
		if s.file != nil {
			_ = s.file.Close() // the file was only read
		}
	}
}

// earliest returns the source with the earliest event, or nil if all have ended.
func (l *logs) earliest() (*source, error) {
	var first *source
	for _, s := range l.sources {
		if err := s.fill(); err != nil {
			return nil, err
		}
		if s.ready > 0 && (first == nil || s.waiting[0].at < first.waiting[0].at) {
			first = s
		}
	}
	return first, nil
}

// next takes the next event of a source. An event that is out of order by more than reach lines
// gets the time of the event before it.
func (l *logs) next(s *source) event {
	e := s.waiting[0]
	s.waiting, s.ready = s.waiting[1:], s.ready-1
	if l.Requests == 0 {
		l.From, l.last = time.UnixMicro(e.at).UTC(), e.at
	}
	if e.at < l.last {
		e.at = l.last
		l.Late++
	}
	l.last, l.To = e.at, time.UnixMicro(e.at).UTC()
	l.Requests++
	return e
}

func (l *logs) showProgress() {
	if l.program.progress && l.Lines%tick == 0 {
		fmt.Fprintf(l.program.stderr, "\r%d lines, up to %s", l.Lines, l.To.Format(time.DateTime))
	}
}

func (l *logs) endProgress() {
	if l.program.progress && l.Lines >= tick {
		fmt.Fprintf(l.program.stderr, "\r\x1b[K") // clears the line
	}
}

// summary prints the part of a report about the lines that were read, with the number of keys.
func (l *logs) summary(w io.Writer, keys int, more bool) {
	about := ""
	if more {
		about = "more than "
	}
	requests := "requests"
	if l.Requests == 1 {
		requests = "request"
	}
	fmt.Fprintf(w, "%9d %s of %s%s", l.Requests, requests, about, l.several(keys))
	if l.Requests > 0 {
		fmt.Fprintf(w, ", %s to %s UTC", l.From.Format(time.DateTime), l.To.Format(time.DateTime))
	}
	fmt.Fprintln(w)
}

// remarks prints the part of a report about unusual lines.
func (l *logs) remarks(w io.Writer) {
	for _, remark := range []struct {
		n    int
		text string
	}{
		{l.Unreadable, "lines that could not be read"},
		{l.WithoutKey, "lines without a key, left out"},
		{l.Late, fmt.Sprintf("lines more than %d lines late, taken as a little later than they were", reach)},
	} {
		if remark.n > 0 {
			fmt.Fprintf(w, "%9d %s\n", remark.n, remark.text)
		}
	}
}

// source is a file, plain or gzip.
//
// Servers write a line after the response, and many log the time of the request, so lines are
// slightly out of order. Sorting twice as many events as are passed on puts events in order that
// are out of order by at most reach lines.
type source struct {
	logs    *logs
	name    string
	file    *os.File  // nil for standard input
	written time.Time // for times without a year
	in      *bufio.Reader
	lines   int
	buffer  []event
	waiting []event // the rest of buffer
	ready   int     // how many of waiting are in order
	err     error   // why reading ended; io.EOF at the end of the file
}

func (s *source) open(stdin io.Reader) (err error) {
	log := stdin
	s.written = time.Now()
	if s.name == "-" {
		s.name = "standard input"
	} else {
		if s.file, err = os.Open(s.name); err != nil {
			return err
		}
		info, err := s.file.Stat()
		if err != nil {
			return err
		}
		log, s.written = s.file, info.ModTime()
	}
	if s.in, err = unzip(log); err != nil {
		return s.failed(err)
	}
	return nil
}

// unzip returns the text of a log. The first two bytes show whether the log is gzip.
func unzip(log io.Reader) (*bufio.Reader, error) {
	in := bufio.NewReaderSize(log, maxLine)
	if magic, err := in.Peek(2); string(magic) != "\x1f\x8b" {
		if errors.Is(err, io.EOF) {
			err = nil // an empty file, or one of a single byte
		}
		return in, err
	}
	unzipped, err := gzip.NewReader(in)
	if err != nil {
		return nil, err
	}
	return bufio.NewReaderSize(unzipped, maxLine), nil
}

// fill reads until an event is ready, or the file has ended. Events before an error are passed on
// first.
func (s *source) fill() error {
	if s.ready > 0 {
		return nil
	}
	s.buffer = append(s.buffer[:0], s.waiting...)
	for s.err == nil && len(s.buffer) < 2*reach {
		s.err = s.read()
	}
	slices.SortStableFunc(s.buffer, func(a, b event) int { return cmp.Compare(a.at, b.at) })
	s.waiting, s.ready = s.buffer, reach
	if s.err != nil {
		s.ready = len(s.waiting)
	}
	if s.ready > 0 || errors.Is(s.err, io.EOF) {
		return nil
	}
	return s.failed(s.err)
}

func (s *source) failed(err error) error {
	if errors.Is(err, io.ErrUnexpectedEOF) { // only a gzip file can end like this
		return fmt.Errorf("%s: the gzip file is truncated after line %d", s.name, s.lines)
	}
	return fmt.Errorf("%s: after line %d: %w", s.name, s.lines, err)
}

// read reads a line and its event.
func (s *source) read() error {
	line, err := readLine(s.in)
	if err != nil {
		return err
	}
	if s.lines == 0 {
		line = strings.TrimPrefix(line, "\ufeff") // some editors write this mark at the beginning of UTF-8 files
	}
	s.lines++
	s.logs.Lines++
	s.logs.showProgress()
	e, err := s.logs.parse(line)
	e.at = s.dated(e.at)
	switch {
	case err != nil:
		s.complain(line, err)
	case e.key == "":
		s.logs.WithoutKey++
	default:
		s.buffer = append(s.buffer, e)
	}
	return nil
}

// dated returns at, and sets its year if it has none: the last year in which it is not later than
// the file. The log may have been written in a zone that is ahead.
func (s *source) dated(at int64) int64 {
	t := time.UnixMicro(at).UTC()
	if t.Year() > 1 {
		return at
	}
	in := func(year int) time.Time {
		return time.Date(year, t.Month(), t.Day(), t.Hour(), t.Minute(), t.Second(), t.Nanosecond(), time.UTC)
	}
	latest := s.written.UTC().Add(14 * time.Hour)
	if t = in(latest.Year()); t.After(latest) {
		t = in(latest.Year() - 1)
	}
	return t.UnixMicro()
}

// complain prints the first line that cannot be read, and the first line in the right form whose
// time is in an unknown form. The report counts both.
func (s *source) complain(line string, err error) {
	s.logs.Unreadable++
	if errors.Is(err, errJSON) {
		s.logs.json++
	}
	first := s.logs.Unreadable-s.logs.timeless == 1
	if errors.Is(err, errTime) {
		s.logs.timeless++
		first = s.logs.timeless == 1
	}
	if first {
		fmt.Fprintf(s.logs.program.stderr, "ratelimit: %s:%d: %v: %.80q\n", s.name, s.lines, err, line)
	}
}

// readLine returns the next line without its end, or the first maxLine bytes of a longer line. The
// last line may lack its end, unless an error cuts it off.
func readLine(in *bufio.Reader) (string, error) {
	line, err := in.ReadSlice('\n')
	text := string(bytes.TrimRight(line, "\r\n"))
	for errors.Is(err, bufio.ErrBufferFull) {
		_, err = in.ReadSlice('\n')
	}
	if errors.Is(err, io.EOF) && len(line) > 0 {
		err = nil // the next call returns it
	}
	return text, err
}
