package main

import (
	"fmt"
	"hash/fnv"
	"math"
	"strconv"
)

// A model of a cluster: keys that are asked for by Zipf's law, in slots, and masters with equal ranges of
// slots. The busiest master reaches its limit first, so as many masters are needed as leave it that
// much of its time.
const (
	modelKeys  = 1_000_000
	modelSlots = 16384
	modelBusy  = 0.7 // the part of its time that a master may be busy
	mostModel  = 1000
)

// slotShares is which part of the decisions each slot has. With tags, keys are in as many slots as there are tags.
func slotShares(tags int) []float64 {
	shares, sum := make([]float64, modelSlots), 0.0
	for i := range modelKeys {
		h := fnv.New64a()
		_, _ = h.Write([]byte("user:" + strconv.Itoa(i)))
		slot := int(h.Sum64() >> 32 % modelSlots)
		if tags > 0 {
			slot = (2*(slot%tags) + 1) * modelSlots / (2 * tags)
		}
		weight := 1 / float64(i+1)
		shares[slot] += weight
		sum += weight
	}
	for i := range shares {
		shares[i] /= sum
	}
	return shares
}

// busiest is the part of the busiest of n masters.
func busiest(shares []float64, n int) (most float64) {
	of := make([]float64, n)
	for slot, share := range shares {
		of[slot*n/modelSlots] += share
	}
	for _, share := range of {
		most = math.Max(most, share)
	}
	return most
}

// mastersFor returns how many masters a rate of decisions needs, if each decision keeps a server busy for us µs. It
// returns 0 if no number of masters is enough, because too many calls ask for one key.
func mastersFor(shares []float64, rate, us float64) int {
	for n := 1; n <= mostModel; n++ {
		if n != 2 && busiest(shares, n)*rate*us/1e6 <= modelBusy { // a cluster has three masters at least
			return n
		}
	}
	return 0
}

// modelRow is a way to decide, and what a decision costs a server.
type modelRow struct {
	name string
	tags int
	us   float64
}

// reportModel writes how many masters rates of decisions need.
func (b *bench) reportModel(rows []modelRow) {
	rates := []float64{1e6, 5e6, 20e6}
	fmt.Fprintf(b.out, "A model of a cluster with %d keys by Zipf's law, by the times above: the masters that are needed if the busiest may be busy for "+
		"%.0f %% of the time. With leases one decision in 400 asks a server. A dash: the most popular key alone is too much for a master.\n\n"+
		"| | server, µs | 1 million/s | 5 million/s | 20 million/s |\n|---|--:|--:|--:|--:|\n", modelKeys, 100*modelBusy)
	shares := map[int][]float64{}
	for _, row := range rows {
		if shares[row.tags] == nil {
			shares[row.tags] = slotShares(row.tags)
		}
		fmt.Fprintf(b.out, "| %s | %.2f |", row.name, row.us)
		for _, rate := range rates {
			if n := mastersFor(shares[row.tags], rate, row.us); n > 0 {
				fmt.Fprintf(b.out, " %d |", n)
			} else {
				fmt.Fprintf(b.out, " – |")
			}
		}
		fmt.Fprintln(b.out)
	}
	fmt.Fprintln(b.out)
}
