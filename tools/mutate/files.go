package main

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
)

// group is files that the same tests judge.
type group struct {
	name   string
	files  []string // patterns, relative to the module
	judges []judge  // in this order
}

// judge is the tests of a package that match a pattern.
type judge struct {
	pkg     string
	pattern string
	full    bool // what nothing else kills is tried by all of these once more, with RATELIMIT_FULL=1
}

var (
	inMemory = judge{pkg: "store/memstore", pattern: "Conformance", full: true}
	onRedis  = judge{pkg: "store/redisstore", pattern: "Conformance|TestABatch|TestBatchesAdmit|TestAValueThatIsNotOurs", full: true}
	twins    = judge{pkg: "internal/suite", pattern: "TestTheScript|TestThePlainCase|TestBatchesAndSeveral|TestAScriptOf|TestAGroup|TestAServerWithout|TestValuesThat|TestALog|TestEventsCutFromALog|TestARefund|TestACaller"}
	whole    = judge{pkg: "internal/suite", pattern: "."}
)

// groups are what is broken, and by which tests it is judged, the nearest first.
var groups = []group{
	{"root", []string{"*.go", "internal/bucket/*.go", "internal/exact/*.go", "internal/report/*.go"},
		[]judge{{".", ".", true}, inMemory, {pkg: "internal/bucket", pattern: "."}, {pkg: "internal/exact", pattern: "."}, {pkg: "internal/report", pattern: "."},
			{pkg: "inflight", pattern: "."}, {pkg: "fallback", pattern: "."}, {pkg: "httplimit", pattern: "."}, {pkg: "grpclimit", pattern: "."}, {pkg: "throttle", pattern: "."}, whole}},
	{"store", []string{"store/*.go"}, []judge{{pkg: "store", pattern: "."}, {pkg: "internal/suite/edges", pattern: "."}, inMemory, {pkg: ".", pattern: "."}, whole}},
	{"eventlog", []string{"internal/eventlog/*.go"}, []judge{{"internal/eventlog", ".", true}, inMemory}},
	{"memstore", []string{"store/memstore/*.go"}, []judge{{"store/memstore", ".", true}, whole}},
	{"lease", []string{"store/lease/take.go", "store/lease/holding.go", "store/lease/fetch.go", "store/lease/giveback.go",
		"store/lease/limits.go", "store/lease/claims.go", "internal/batch/*.go"},
		[]judge{{"store/lease", ".", true}, {pkg: "internal/batch", pattern: "."}, {pkg: "store/coalesce", pattern: "."}, whole}},
	{"flights", []string{"store/carrier/[^d]*.go", "store/redisstore/trip.go", "store/redisstore/server.go"},
		[]judge{{pkg: "store/carrier", pattern: "."}, {pkg: "store/redisstore", pattern: "."}, whole}},
	{"pgstore", []string{"store/pgstore/*.go"}, []judge{{pkg: "store/pgstore", pattern: "."}}},
	{"limittext", []string{"internal/limittext/*.go"}, []judge{{".", ".", true}, {pkg: "config", pattern: "."}, whole}},
	{"queue", []string{"internal/queue/*.go"}, []judge{{"internal/queue", ".", true}, {pkg: ".", pattern: "."}, {pkg: "throttle", pattern: "."}, whole}},
	{"inflight", []string{"inflight/[^d]*.go"}, []judge{{"inflight", ".", true}, {pkg: "httplimit", pattern: "."}, whole}},
	{"fallback", []string{"fallback/*.go"}, []judge{{"fallback", ".", true}, {pkg: "inflight", pattern: "."}, {pkg: "config", pattern: "."}, {pkg: ".", pattern: "."}, whole}},
	{"scripts", []string{"scripts/*.lua", "internal/script/*.go"}, []judge{twins, onRedis, {pkg: "internal/script", pattern: "."}, {pkg: ".", pattern: "Ban"}, whole}},
}

// filesOf returns the files of the group in the module in root.
func (g *group) filesOf(root string) ([]string, error) {
	var files []string
	for _, pattern := range g.files {
		paths, err := filepath.Glob(filepath.Join(root, filepath.FromSlash(pattern)))
		if err != nil {
			return nil, err
		}
		for _, path := range paths {
			file, err := filepath.Rel(root, path)
			if err != nil {
				return nil, err
			}
			if !strings.HasSuffix(path, "_test.go") {
				files = append(files, filepath.ToSlash(file))
			}
		}
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("no files of %s in %s: mutate runs in its own directory", g.name, root)
	}
	return files, nil
}

// packages are the directories of the Go files among these, relative to the module.
func packages(files []string) []string {
	var dirs []string
	for _, file := range files {
		if dir := filepath.ToSlash(filepath.Dir(file)); strings.HasSuffix(file, ".go") && !slices.Contains(dirs, dir) {
			dirs = append(dirs, dir)
		}
	}
	return dirs
}
