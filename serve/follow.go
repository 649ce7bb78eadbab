package serve

import (
	"bytes"
	"context"
	"slices"
	"time"
)

// Follow reads the files again every so often, and when now is sent to, and makes the service
// follow what has changed. It also sees where links lead, such as those of a ConfigMap in
// Kubernetes. One bad file keeps all old ones. It returns when ctx ends. files are those in force.
// If they are merged, so are those that it reads. If every is not above 0, they are read only when now
// is sent to.
//
// A change is taken once two reads in a row have seen the same, since half of a file may be a file too. When
// now is sent to, it is taken immediately.
func (s *Service) Follow(ctx context.Context, files []File, every time.Duration, now <-chan struct{}, paths ...string) {
	var ticks <-chan time.Time
	if every > 0 {
		ticks = time.Tick(every)
	}
	failed, seen := "", files
	for {
		asked := false
		select {
		case <-ctx.Done():
			return
		case <-ticks:
		case _, asked = <-now:
			if !asked { // it is closed
				now = nil
				continue
			}
		}
		next, err := ReadFiles(paths...)
		stays := err == nil && slices.EqualFunc(seen, next, sameFile)
		seen = next
		switch {
		case asked || err != nil:
		case slices.EqualFunc(files, next, sameFile):
			failed = ""
			s.metrics.inForce(nil)
			continue
		case !stays:
			continue
		}
		if err == nil {
			err = s.load(next)
		}
		s.metrics.inForce(err)
		switch {
		case err == nil:
			files, failed = next, ""
			s.log.Info("the files have changed: new rules are in force", "rules", len(s.now.Load().rules))
		case asked || err.Error() != failed: // once
			failed = err.Error()
			s.log.Error("the files have changed, and cannot be used: the rules stay as they were", "error", err)
		default:
			continue
		}
		s.metrics.loaded(err)
	}
}

func sameFile(a, b File) bool { return a.Name == b.Name && bytes.Equal(a.Text, b.Text) }

func (s *Service) load(files []File) error {
	rules, err := parse(files, s.now.Load().merged)
	if err != nil {
		return err
	}
	if err := s.Update(rules); err != nil {
		return err
	}
	for _, note := range rules.Notes() {
		s.log.Warn(note)
	}
	return nil
}
