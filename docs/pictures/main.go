// Command pictures writes the pictures of the documents, as SVG, into the working directory.
//
//	cd docs/pictures && go run .
//
// The limiters of the library decide on each event, in memory and on a simulated clock. Every run
// therefore writes the same files, and a test compares them with those in the tree.
package main

import (
	"log"
	"os"
	"path/filepath"
)

var pictures = []picture{algorithms, worst, outage}

func main() {
	if err := write("."); err != nil {
		log.Fatal(err)
	}
}

// write writes all pictures into dir.
func write(dir string) error {
	for _, p := range pictures {
		svg, err := p.svg()
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, p.file), svg, 0o644); err != nil {
			return err
		}
	}
	return nil
}
