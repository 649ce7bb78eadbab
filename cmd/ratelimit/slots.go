package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"time"
)

// slot is a slot that is held: since when, and how long until it is free if nobody renews it. Its
// number is the time when it was taken, in Unix µs, or a little more.
type slot struct {
	number      int64
	holder      string // host, process and label; "" if it is not known
	member      string // number and holder, as Redis stores them
	since, left time.Duration
}

// mostSlots is the maximum number of slots that are printed per limiter.
const mostSlots = 20

// addSlot adds a slot that is held until end.
func (h *held) addSlot(one slot, end, now time.Time) {
	one.since, one.left = max(0, now.Sub(time.UnixMicro(one.number))), end.Sub(now)
	h.slots, h.reset = append(h.slots, one), max(h.reset, one.left)
	h.spent = len(h.slots)
}

// freeSlot frees only the slot with this number. The limiters of an All have slots with the same
// number.
func freeSlot(ctx context.Context, out io.Writer, on server, all []held, number int64) error {
	free := false
	for _, h := range all {
		for _, one := range h.slots {
			if one.number != number {
				continue
			}
			released, err := on.free(ctx, h, one)
			if err != nil {
				return err
			}
			if released { // otherwise it has just been released
				free = true
				fmt.Fprintf(out, "%s: slot %d is free\n", printable(h.title()), number)
			}
		}
	}
	if !free {
		return fmt.Errorf("no slot %d of the key is held", number)
	}
	return nil
}

// slotsText returns how many slots there are. Stores know this only for limiters without a name.
func (h *held) slotsText() string {
	if h.limit.Rate == 0 {
		return "? at once"
	}
	return strconv.Itoa(h.limit.Rate) + " at once"
}

// printSlots lists the slots of a limiter, starting with those that are held longest.
func printSlots(out io.Writer, h held) {
	slices.SortFunc(h.slots, func(a, b slot) int { return cmp.Compare(a.number, b.number) })
	for i, one := range h.slots {
		if i == mostSlots {
			fmt.Fprintf(out, "%s: and %d more\n", printable(h.title()), len(h.slots)-i)
			return
		}
		fmt.Fprintf(out, "%s: slot %d has been held by %s for %v, and is free in %v unless it is renewed\n",
			printable(h.title()), one.number, printable(cmp.Or(one.holder, "?")), one.since.Round(time.Millisecond), one.left.Round(time.Millisecond))
	}
}
