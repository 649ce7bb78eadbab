package main

import (
	"encoding/xml"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

func TestThePicturesAreWhatTheProgramWrites(t *testing.T) {
	dir := t.TempDir()
	if err := write(dir); err != nil {
		t.Fatal(err)
	}
	for _, p := range pictures {
		if read(t, filepath.Join(dir, p.file)) != read(t, p.file) {
			t.Errorf("%s is another one: go run .", p.file)
		}
	}
}

func TestThePicturesAreSmallAndSayWhatTheyShow(t *testing.T) {
	for _, p := range pictures {
		text := read(t, p.file)
		if len(text) > 120_000 {
			t.Errorf("%s has %d bytes", p.file, len(text))
		}
		if strings.Count(text, "<text") != strings.Count(text, ",sans-serif") {
			t.Errorf("%s: a text has no generic font", p.file)
		}
		var svg struct {
			Title string `xml:"title"`
			Desc  string `xml:"desc"`
		}
		if err := xml.Unmarshal([]byte(text), &svg); err != nil || svg.Title != p.title || svg.Desc != p.description {
			t.Errorf("%s: %v, %+v", p.file, err, svg)
		}
	}
}

// The contrast is that of the Web Content Accessibility Guidelines, which want 3:1.
func TestColoursStandOutFromTheGroundAndTheShade(t *testing.T) {
	for _, p := range pictures {
		for _, colour := range regexp.MustCompile(`#[0-9A-F]{6}`).FindAllString(read(t, p.file), -1) {
			const ground, shade = "#FFFFFF", "#F2F2F2"
			if colour == ground || colour == shade {
				continue
			}
			if contrast := (luminance(t, shade) + 0.05) / (luminance(t, colour) + 0.05); contrast < 3 {
				t.Errorf("%s: %s has a contrast of %.2f", p.file, colour, contrast)
			}
		}
	}
}

// luminance is the relative luminance of a colour, 0 to 1.
func luminance(t *testing.T, colour string) (sum float64) {
	for i, weight := range []float64{0.2126, 0.7152, 0.0722} {
		v, err := strconv.ParseUint(colour[1+2*i:3+2*i], 16, 8)
		if err != nil {
			t.Fatal(err)
		}
		sum += weight * math.Pow((float64(v)/255+0.055)/1.055, 2.4)
	}
	return sum
}

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
