package serve

import (
	"bytes"
	"context"
	"slices"
	"time"
)

// Follow reads the files again at the interval every, and when a value is sent to now, and updates
// the service if they have changed. If every is not above 0, it reads them only when a value is
// sent to now. It returns when ctx ends. files are the files in force. If they were merged, so are
// the files that Follow reads. Follow also notices when a symbolic link changes, such as those of a
// Kubernetes ConfigMap. If one file is invalid, all old files stay in force.
//
// A change takes effect when two consecutive reads have seen the same content, because half of a
// file may also be valid. A value sent to now makes the current content take effect immediately.
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
			if !asked { // now is closed
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
		case asked || err.Error() != failed: // log each error once
			failed = err.Error()
			s.log.Error("the files have changed, but cannot be used: the old rules stay in force", "error", err)
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
