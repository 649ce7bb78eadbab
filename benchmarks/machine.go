package main

import (
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"time"
)

// describe writes where and when this was measured, and the contestants.
func describe(w io.Writer, all []contestant) {
	fmt.Fprintf(w, "Measured on %s: %s, %d cores, %s/%s, %s.\n",
		time.Now().UTC().Format(time.DateOnly), processor(), runtime.GOMAXPROCS(0),
		runtime.GOOS, runtime.GOARCH, runtime.Version())
	fmt.Fprintf(w, "\n| in memory | version | algorithm |\n|---|---|---|\n")
	for _, c := range all {
		v := version(c.module)
		switch {
		case c.ours:
			v = "this library"
		case c.module == "":
			v = "of no module"
		}
		fmt.Fprintf(w, "| %s | %s | %s |\n", c.name, v, strings.ReplaceAll(c.algorithm, "_", " "))
	}
}

// processor is the model's name, if the system provides it (Linux).
func processor() string {
	text, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return "an unnamed processor"
	}
	for line := range strings.Lines(string(text)) {
		if name, model, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(model)
		}
	}
	return "an unnamed processor"
}

func joined(numbers []int) string {
	var list []string
	for _, n := range numbers {
		list = append(list, grouped(n))
	}
	return strings.Join(list, ", ")
}
