package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// slot is a slot that is held: since when, and how long until it is free if nobody renews it.
type slot struct {
	number      string
	holder      string // host, process and label; "" if it is not known
	member      string // number and holder, as they are stored
	since, left time.Duration
}

// mostSlots is the maximum number of slots that are printed per limiter.
const mostSlots = 20

// readSlots reads the slots that are held. inflight/inflight.lua describes how they are stored. The
// number of a slot is the time when it was taken, in Unix µs, or a little more.
func (h *held) readSlots(ctx context.Context, client *redis.Client) error {
	now, err := client.Time(ctx).Result()
	if err != nil {
		return err
	}
	ends, err := client.ZRangeByScoreWithScores(ctx, h.redisKey, &redis.ZRangeBy{Min: "(" + strconv.FormatInt(now.UnixMicro(), 10), Max: "+inf"}).Result()
	if err != nil {
		return err
	}
	for _, z := range ends {
		member := fmt.Sprint(z.Member)
		number, holder, _ := strings.Cut(member, " ")
		taken, err := strconv.ParseInt(number, 10, 64)
		if err != nil {
			return fmt.Errorf("the value is not a set of slots: %w", err)
		}
		one := slot{number, holder, member, max(0, now.Sub(time.UnixMicro(taken))), time.UnixMicro(int64(z.Score)).Sub(now)}
		h.slots, h.reset = append(h.slots, one), max(h.reset, one.left)
	}
	slices.SortFunc(h.slots, func(a, b slot) int { return cmp.Compare(b.since, a.since) })
	h.spent = len(h.slots)
	return nil
}

// freeSlot frees only the slot with this number. The limiters of an All have slots with the same
// number.
func freeSlot(ctx context.Context, out io.Writer, client *redis.Client, all []held, number string) error {
	free := false
	for _, h := range all {
		for _, one := range h.slots {
			if one.number != number {
				continue
			}
			n, err := client.ZRem(ctx, h.redisKey, one.member).Result()
			if err != nil {
				return err
			}
			if n > 0 { // otherwise it has just been released
				free = true
				fmt.Fprintf(out, "%s: slot %s is free\n", printable(h.title()), number)
			}
		}
	}
	if !free {
		return fmt.Errorf("no slot %s of the key is held", number)
	}
	return nil
}

// slotsText returns how many slots there are. Redis knows this only for limiters without a name.
func (h *held) slotsText() string {
	if h.limit.Rate == 0 {
		return "? at once"
	}
	return strconv.Itoa(h.limit.Rate) + " at once"
}

// printSlots lists the slots of a limiter, starting with those that are held longest.
func printSlots(out io.Writer, h held) {
	for i, one := range h.slots {
		if i == mostSlots {
			fmt.Fprintf(out, "%s: and %d more\n", printable(h.title()), len(h.slots)-i)
			return
		}
		fmt.Fprintf(out, "%s: slot %s has been held by %s for %v, and is free in %v unless it is renewed\n",
			printable(h.title()), one.number, printable(cmp.Or(one.holder, "?")), one.since.Round(time.Millisecond), one.left.Round(time.Millisecond))
	}
}
