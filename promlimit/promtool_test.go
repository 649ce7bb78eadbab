package promlimit_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// promtool runs the command promtool of the Debian package prometheus.
func promtool(t *testing.T, stdin string, args ...string) {
	t.Helper()
	path, err := exec.LookPath("promtool")
	if err != nil && os.Getenv("RATELIMIT_REQUIRE_PROMTOOL") == "" {
		t.Skip("there is no promtool")
	}
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), path, args...)
	cmd.Stdin = strings.NewReader(stdin)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "promtool %v\n%s", args, out)
}

func TestPromtoolFindsNothingInAScrape(t *testing.T) {
	s := newService(t)
	s.traffic(t)
	text, _ := scrape(t, s.collector)
	promtool(t, text, "check", "metrics")
}

func TestAlertsFireAndDoNotFire(t *testing.T) {
	promtool(t, "", "check", "rules", "alerts.yml")
	promtool(t, "", "test", "rules", "alerts_test.yml")
}

// query returns an expression of the dashboard, with its variables replaced as Grafana does.
type query struct{ panel, expr, legend string }

// dashboard has the parts of dashboard.json that the tests read.
type dashboard struct {
	Templating struct {
		List []struct {
			Name  string
			Query any
		}
	}
	Panels []struct {
		ID      int
		Title   string
		GridPos struct{ H, W, X, Y int }
		Targets []struct{ RefID, Expr, LegendFormat string }
	}
}

func readDashboard(t *testing.T) (d dashboard) {
	t.Helper()
	require.NoError(t, json.Unmarshal([]byte(read(t, "dashboard.json")), &d))
	require.NotEmpty(t, d.Panels)
	return d
}

func (d dashboard) queries() (all []query) {
	variables := strings.NewReplacer("$__rate_interval", "1m", "$job", ".*", "$limiter", ".*")
	for _, p := range d.Panels {
		for _, target := range p.Targets {
			all = append(all, query{p.Title + " " + target.RefID, variables.Replace(target.Expr), target.LegendFormat})
		}
	}
	return all
}

// TestEachPanelShowsSomething checks that each expression has a value after two scrapes of a
// service.
func TestEachPanelShowsSomething(t *testing.T) {
	s := newService(t)
	s.traffic(t)
	_, first := scrape(t, s.collector)
	s.traffic(t)
	_, second := scrape(t, s.collector)

	var rules, tests strings.Builder
	rules.WriteString("groups:\n- name: panels\n  rules:\n")
	tests.WriteString("rule_files: [rules.yml]\nevaluation_interval: 15s\ntests:\n- interval: 15s\n  input_series:\n")
	for series, before := range first {
		fmt.Fprintf(&tests, "  - {series: %q, values: %q}\n", withJob(series), grows(t, before, second[series]))
	}
	tests.WriteString("  alert_rule_test:\n")
	for _, q := range readDashboard(t).queries() {
		require.NotContains(t, q.expr, "$", q.panel)
		// An alert that fires if there is any value except NaN.
		fmt.Fprintf(&rules, "  - {alert: %q, expr: %q}\n", q.panel, "count(("+q.expr+") > -Inf) > 0")
		fmt.Fprintf(&tests, "  - {eval_time: 3m, alertname: %q, exp_alerts: [{}]}\n", q.panel)
	}
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "rules.yml"), []byte(rules.String()), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "test.yml"), []byte(tests.String()), 0o600))
	promtool(t, "", "check", "rules", filepath.Join(dir, "rules.yml"))
	promtool(t, "", "test", "rules", filepath.Join(dir, "test.yml"))
}

// withJob returns the series as Prometheus stores it.
func withJob(series string) string {
	return strings.Replace(series, "{", `{job="shop",instance="a",`, 1)
}

// grows returns the values of a series that begins with these two and continues in the same way.
func grows(t *testing.T, first, second string) string {
	t.Helper()
	from, err := strconv.ParseFloat(first, 64)
	require.NoError(t, err)
	to, err := strconv.ParseFloat(second, 64)
	require.NoError(t, err)
	return fmt.Sprintf("%g+%gx20", from, to-from)
}

var (
	selector = regexp.MustCompile(`\b(ratelimit_\w+)(?:\{([^}]*)\})?`)
	matcher  = regexp.MustCompile(`(\w+)(=~|!~|!=|=)"([^"]*)"`)
	by       = regexp.MustCompile(`\bby \(([^)]*)\)`)
	inLegend = regexp.MustCompile(`\{\{\s*(\w+)\s*\}\}`)
)

// labels has the values of each label of each metric that a service exports.
type labels map[string]map[string][]string

func labelsOf(t *testing.T) labels {
	t.Helper()
	s := newService(t)
	s.traffic(t)
	_, series := scrape(t, s.collector)
	all := make(labels)
	for name := range series {
		metric, rest, _ := strings.Cut(withJob(name), "{")
		if all[metric] == nil {
			all[metric] = make(map[string][]string)
		}
		for _, m := range matcher.FindAllStringSubmatch(rest, -1) {
			all[metric][m[1]] = append(all[metric][m[1]], m[3])
		}
	}
	return all
}

// check checks that the metrics and labels in text exist, and so do the values of those labels that
// have the same values in every program.
func (all labels) check(t *testing.T, text string) {
	t.Helper()
	found := selector.FindAllStringSubmatch(text, -1)
	require.NotEmpty(t, found, text)
	for _, s := range found {
		metric := s[1]
		require.Contains(t, all, metric, text)
		for _, m := range matcher.FindAllStringSubmatch(s[2], -1) {
			label, values := m[1], strings.Split(m[3], "|")
			require.Contains(t, all[metric], label, text)
			if slices.Contains([]string{"outcome", "source", "class", "state", "reason"}, label) {
				require.Subset(t, all[metric][label], values, text)
			}
		}
		for _, list := range by.FindAllStringSubmatch(text, -1) {
			for label := range strings.SplitSeq(list[1], ", ") {
				require.Contains(t, all[metric], label, text)
			}
		}
	}
}

func TestPanelsNameWhatIsThere(t *testing.T) {
	all, d := labelsOf(t), readDashboard(t)
	for _, v := range d.Templating.List[1:] { // the first is the data source
		all.check(t, fmt.Sprint(v.Query))
		require.Contains(t, all["ratelimit_decisions_total"], v.Name)
	}
	for _, q := range d.queries() {
		all.check(t, q.expr)
		for _, m := range inLegend.FindAllStringSubmatch(q.legend, -1) {
			list := by.FindStringSubmatch(q.expr)
			require.Contains(t, strings.Split(list[1], ", "), m[1], "%s: {{%s}}", q.panel, m[1])
		}
	}
}

func TestAlertsNameWhatIsThere(t *testing.T) {
	all := labelsOf(t)
	rules := strings.Split(read(t, "alerts.yml"), "- alert:")
	for _, rule := range rules[1:] {
		all.check(t, rule)
	}
	for line := range strings.Lines(read(t, "alerts_test.yml")) {
		if strings.Contains(line, "- series:") {
			all.check(t, line)
		}
	}
}

// TestEachMetricHasAPanel also checks that each panel has a place of its own.
func TestEachMetricHasAPanel(t *testing.T) {
	d := readDashboard(t)
	shown, ids, places := "", make(map[int]bool), make(map[[2]int]string)
	for _, q := range d.queries() {
		shown += q.expr
	}
	part := regexp.MustCompile("_(bucket|sum|count)$") // of a histogram
	for metric := range labelsOf(t) {
		require.Contains(t, shown, part.ReplaceAllString(metric, ""))
	}
	for _, p := range d.Panels {
		require.False(t, ids[p.ID], p.Title)
		ids[p.ID] = true
		require.LessOrEqual(t, p.GridPos.X+p.GridPos.W, 24, p.Title)
		for x := range p.GridPos.W {
			for y := range p.GridPos.H {
				place := [2]int{p.GridPos.X + x, p.GridPos.Y + y}
				require.Empty(t, places[place], p.Title)
				places[place] = p.Title
			}
		}
	}
}

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	return string(text)
}
