package figures

import (
	"context"

	"github.com/carom-dpr/carom/internal/sim"
	"github.com/carom-dpr/carom/lb"
)

// A queueTable is mean response times by report period and method, in lifetimes.
// A cell is "mean", "mean[99th percentile]" or "mean/share redirected".
type queueTable struct {
	source  string
	hosts   int
	load    float64
	note    string
	edit    func(*sim.Scenario)
	columns []string
	rows    []queueRow
}

type queueRow struct {
	period float64
	method string // where the columns are thresholds
	cells  string
}

var boardOnly = []string{"random", "d=2", "d=3", "shortest", "Basic LI", "Aggressive LI", "record-insert"}
var dispatchers = []string{"no redirect", "low", "low+inc", "p2", "p3"}
var thresholds = []string{"θ=0", "θ=1", "θ=2", "θ=3", "θ=5"}

// queueTables are those of FIGURES §6.3 and §6.4, from an independent simulation.
// They contain its checkable figures 14, 16 to 20 and 23 to 26. What does not
// depend on the period is there once.
var queueTables = []queueTable{
	{source: "§6.3", hosts: 100, load: 0.9, columns: boardOnly, rows: []queueRow{
		{0, "", "10.05[46] 2.64[8.9] 2.06[7.5] 1.066[4.9] - - -"},
		{0.1, "", "- 2.68 2.12 1.56 1.49 1.48 1.19"},
		{0.5, "", "- 2.81 2.34 2.83 2.11 2.04 1.59"},
		{1, "", "- 2.97[9.9] 2.59[9.0] 4.04[15.4] 2.52[9.0] 2.41[8.8] 1.84[6.9]"},
		{5, "", "- 4.01[13.3] 4.34[15.4] 12.1[41] 4.01[13.2] 3.70[12.8] 2.63[9.3]"},
		{10, "", "- 5.11[17] 6.30[23] 23.5[91] 4.93[16] 4.47[15] 3.06[11]"},
		{50, "", "- 12.5 21.1 - 7.43 6.62 4.10"},
	}},
	{source: "§6.3", hosts: 100, load: 0.9, note: " individual", edit: individual,
		columns: []string{"d=2", "d=3", "shortest"}, rows: []queueRow{
			{1, "", "2.97 2.59 3.98"},
			{5, "", "4.01 4.34 11.7"},
			{10, "", "5.11 6.30 21.9"},
			{20, "", "- - 43.6"},
		}},
	{source: "§6.3", hosts: 100, load: 0.9, note: " continuous", edit: continuous,
		columns: []string{"d=2", "d=3", "shortest"}, rows: []queueRow{
			{1, "", "3.24 2.99 5.91"},
			{5, "", "4.94 5.68 24.3"},
			{10, "", "6.74 8.74 -"},
		}},
	{source: "§6.3", hosts: 100, load: 0.5, columns: boardOnly[:6], rows: []queueRow{
		{1, "", "2.00 1.44 1.38 1.38 1.38 -"},
		{5, "", "- 1.81 1.94 2.10 1.77 1.72"},
		{10, "", "- 2.07 2.35 2.64 1.89 1.84"},
		{20, "", "- 2.39 2.91 3.45 1.97 1.92"},
	}},
	{source: "§6.3", hosts: 10, load: 0.9, columns: boardOnly[:6], rows: []queueRow{
		{0, "", "10.07 2.99 2.45 1.92 - -"},
		{1, "", "- 3.32 3.00 4.14 2.91 2.82"},
		{5, "", "- 4.41 4.91 14.0 4.30 4.02"},
		{10, "", "- 5.65 7.19 25.9 5.18 4.76"},
		{20, "", "- 7.91 11.6 49.8 6.18 5.59"},
		{50, "", "- 14.1 24.5 124 7.54 6.80"},
	}},
	{source: "§6.4", hosts: 10, load: 0.9, columns: dispatchers, rows: []queueRow{
		{0.1, "", "10.07 2.04/0.71 2.04/0.70 2.99 -"},
		{0.5, "", "- 2.64 2.46 3.07 -"},
		{1, "", "- 3.43/0.84 2.92 3.15 2.78"},
		{5, "", "- 10.2/0.88 4.75/0.76 3.54 3.42"},
		{10, "", "- 18.6/0.88 5.54 3.84 3.91"},
		{50, "", "- 84.7 5.37 4.60 -"},
	}},
	{source: "§6.4", hosts: 100, load: 0.9, columns: dispatchers, rows: []queueRow{
		{0.1, "", "10.05 1.50 1.49 2.67 2.11"},
		{0.5, "", "- 2.59 2.61 2.75 2.24"},
		{1, "", "- 3.75 3.70 2.82 2.38"},
		{5, "", "- 13.2/0.90 13.2/0.90 3.24 3.19"},
		{10, "", "- 26.7/0.90 27.6/0.90 3.57 3.95"},
	}},
	{source: "§6.4", hosts: 10, load: 0.9, columns: thresholds, rows: []queueRow{
		{1, "low", "3.44/0.84 3.00/0.58 2.97/0.36 3.19/0.23 3.86/0.12"},
		{1, "low+inc", "2.92/0.79 2.75/0.52 2.88/0.31 3.20/0.20 3.88/0.11"},
		{5, "low", "10.2/0.88 7.80/0.74 5.87/0.57 4.74/0.41 4.39/0.19"},
		{5, "low+inc", "4.74/0.76 4.06/0.59 3.77/0.42 3.77/0.28 4.24/0.13"},
		{5, "p2", "3.55/0.40 3.74/0.28 4.00/0.19 4.29/0.14 -"},
		{5, "p3", "3.42/0.54 3.50/0.37 3.70/0.25 3.97/0.17 -"},
	}},
}

// individual has each host report at its own phase.
func individual(sc *sim.Scenario) { sc.Sync = false }

// continuous has choosers see the state as it was a period ago: reports are frequent
// and late, so that their mean age is the period.
func continuous(sc *sim.Scenario) {
	age := sc.Period
	sc.Period, sc.Length = 0.1, 2000+200*age
	sc.Delay = age - sc.Period/2
}

// queueFigures are those that are not means of one scenario.
func queueFigures() []check {
	return []check{
		&valueCheck{"figure 14", []value{
			{"supermarket d=2 λ=0.5", 1.266, 0.025, 0},
			{"supermarket d=2 λ=0.9", 2.614, 0.025, 0},
			{"supermarket d=2 λ=0.95", 3.383, 0.035, 0},
		}, supermarkets(0.5, 0.9, 0.95)},
		&valueCheck{"figure 15", []value{
			{"supermarket d=2 λ=0.9, share with ≥1 jobs", 0.900, 0, 0.01},
			{"supermarket d=2 λ=0.9, share with ≥2 jobs", 0.729, 0, 0.01},
			{"supermarket d=2 λ=0.9, share with ≥3 jobs", 0.478, 0, 0.015},
			{"supermarket d=2 λ=0.9, share with ≥4 jobs", 0.206, 0, 0.015},
		}, tail},
		&valueCheck{"figure 16", []value{{"random λ=0.9", 10.0, 0, 0.2}}, randomSplit},
		&valueCheck{"figure 25", []value{
			{"p2 redirected n=10 T=1", 0.415, 0, 0.03},
			{"p2 redirected n=100 T=10", 0.415, 0, 0.03},
		}, redirects},
		&valueCheck{"figure 56", []value{{"p2 / d=2 on the board, n=100 T=10", 3.57 / 5.11, 0.04, 0}}, ownCount},
	}
}

// A jobTable is distributions of the maximum load of unit jobs: for each number of
// choices the shares of trials, in percent, by load.
type jobTable struct {
	source, what string
	policy       func() lb.Policy
	hosts, conns int
	moving       bool
	trials       int     // of ours, for each seed
	theirs       int     // of the figures'
	shares       string  // "load:percent ..."; "" where only the mean is known
	mean         float64 // where shares are not
	tolerance    float64 // of the mean
}

// jobTables are those of FIGURES §2.2. They contain its checkable figures 9 to 12.
var jobTables = concat(
	uniformJobs(1<<8, 1000, 1000,
		"3:0.4 4:35.8 5:49.5 6:12.0 7:1.9 8:0.4", "2:8.2 3:91.8", "2:87.6 3:12.4", "2:99.4 3:0.6"),
	uniformJobs(1<<12, 1000, 1000,
		"5:9.1 6:62.8 7:23.6 8:3.8 9:0.6 10:0.1", "3:98.1 4:1.9", "2:12.4 3:87.6", "2:90.7 3:9.3"),
	uniformJobs(1<<16, 400, 200,
		"6:2.0 7:52.5 8:36.0 9:7.0 10:2.5", "3:65.0 4:35.0", "3:100", "2:19.5 3:80.5"),
	uniformJobs(1<<20, 3, 20, "8:25 9:60 10:15", "4:100", "3:100", "3:100"),
	ringJobs(1<<8, 1000, 1000, lb.ToAny,
		"5:0.4 6:11.2 7:26.3 8:26.0 9:15.0 10:9.8 11:5.8 12:2.7 13:2.8", "3:25.9 4:72.3 5:1.7 6:0.1",
		"2:0.1 3:98.5 4:1.4", "2:12.0 3:88.0"),
	ringJobs(1<<12, 600, 1000, lb.ToAny,
		"9:1.7 10:10.5 11:23.9 12:24.8 13:15.4 14:10.8 15:5.6 16:3.6 17:3.7", "4:88.1 5:11.9",
		"3:90.0 4:10.0", "3:100"),
	ringJobs(1<<16, 40, 200, lb.ToAny,
		"13:2.5 14:13.5 15:22.0 16:21.0 17:15.0 18:13.5 19:8.0 20:3.0 21:1.5", "4:19.0 5:81.0",
		"3:20.0 4:80.0", "3:99.5 4:0.5"),
	ringJobs(1<<20, 2, 20, lb.ToAny, "", "5:100", "4:100", "3:100"),
	torusJobs(1<<8, 1000, 1000,
		"4:4.1 5:38.3 6:37.0 7:14.7 8:4.4 9:1.3 10:0.2", "2:0.2 3:96.0 4:3.7 5:0.1", "2:46.9 3:53.1", "2:92.1 3:7.9"),
	torusJobs(1<<16, 25, 200,
		"8:0.5 9:18.5 10:45.5 11:27.5 12:5.0 13:2.5 14:0.5", "4:100", "3:100", "3:100"),
	ringJobs(1<<8, 1000, 1000, lb.ToSmaller, "", "3:75.2 4:24.8", "2:26.8 3:73.2", "2:93.4 3:6.6"),
	ringJobs(1<<8, 1000, 1000, lb.ToLarger, "", "3:5.3 4:86.3 5:8.2", "3:88.2 4:11.8", "2:0.4 3:99.3"),
	ringJobs(1<<8, 1000, 1000, lb.ToLeft, "", "3:52.6 4:47.2", "2:3.4 3:96.6", "2:72.1 3:27.9"),
	ringJobs(1<<16, 20, 200, lb.ToSmaller, "", "4:99.5 5:0.5", "3:100", "3:100"),
	ringJobs(1<<16, 20, 200, lb.ToLarger, "", "5:100", "4:100", "3:86.0 4:14.0"),
	ringJobs(1<<16, 20, 200, lb.ToLeft, "", "4:98.5 5:1.5", "3:100", "3:100"),
	leftJobs(1<<8, 1000, 1000, "2:35.3 3:64.7", "", ""),
	leftJobs(1<<12, 1000, 1000, "3:100", "2:96.0 3:4.0", "2:100"),
	leftJobs(1<<16, 100, 200, "3:100", "2:41.0 3:59.0", "2:100"),
	[]jobTable{
		meanJob("figure 9", "uniform", 1<<16, 1<<16, 400, uniform(1), 7.56, 0.1),
		meanJob("figure 9", "uniform d=2", 1<<16, 1<<16, 400, uniform(2), 3.35, 0.1),
		meanJob("figure 9", "uniform d=3", 1<<16, 1<<16, 400, uniform(3), 3.00, 0.1),
		meanJob("figure 9", "uniform d=4", 1<<16, 1<<16, 400, uniform(4), 2.81, 0.1),
		meanJob("figure 10", "ring", 1<<12, 1<<12, 1000, ring(1, 1, lb.ToAny), 12.4, 0.2),
		meanJob("figure 10", "ring d=2", 1<<12, 1<<12, 600, ring(2, 1, lb.ToAny), 4.12, 0.05),
		meanJob("figure 10", "ring d=3", 1<<12, 1<<12, 600, ring(3, 1, lb.ToAny), 3.10, 0.05),
		meanJob("figure 10", "ring d=4", 1<<12, 1<<12, 600, ring(4, 1, lb.ToAny), 3.00, 0.05),
		meanJob("figure 12", "uniform", 10, 1000, 2000, uniform(1), 115.6, 0.5),
		meanJob("figure 12", "uniform d=2", 10, 1000, 2000, uniform(2), 101.2, 0.5),
		meanJob("figure 12", "uniform d=3", 10, 1000, 2000, uniform(3), 101.0, 0.5),
		meanJob("§2.2", "ring, 8 points", 1<<8, 1<<8, 1000, ring(1, 8, lb.ToAny), 5.29, 0.15),
		meanJob("§2.2", "ring, 12 points", 1<<12, 1<<12, 200, ring(1, 12, lb.ToAny), 6.70, 0.25),
		meanJob("§2.2", "ring, 16 points", 1<<16, 1<<16, 8, ring(1, 16, lb.ToAny), 8.2, 1),
		meanJob("§2.2", "uniform", 4096, 16*4096, 200, uniform(1), 32.1, 0.5),
		meanJob("§2.2", "uniform d=2", 4096, 16*4096, 100, uniform(2), 18.2, 0.2),
		meanJob("§2.2", "uniform d=3", 4096, 16*4096, 50, uniform(3), 17.9, 0.2),
		meanJob("§2.2", "ring", 4096, 16*4096, 200, ring(1, 1, lb.ToAny), 145, 8),
		meanJob("§2.2", "ring d=2", 4096, 16*4096, 100, ring(2, 1, lb.ToAny), 28.5, 1.2),
		meanJob("§2.2", "ring d=3", 4096, 16*4096, 50, ring(3, 1, lb.ToAny), 23.0, 0.5),
		meanJob("§2.2", "ring", 10, 1000, 2000, ring(1, 1, lb.ToAny), 295, 12),
		meanJob("§2.2", "ring d=2", 10, 1000, 2000, ring(2, 1, lb.ToAny), 156, 7),
		meanJob("§2.2", "ring d=3", 10, 1000, 2000, ring(3, 1, lb.ToAny), 128, 4),
		meanJob("§2.2", "ring, 100 points", 10, 1000, 1000, ring(1, 100, lb.ToAny), 122.6, 2),
	},
)

// hashFigures are those of places and of what moves when hosts go.
func hashFigures() []check {
	return []check{
		&valueCheck{"figure 13", []value{
			{"longest arc × n, n=2^8", 6.12, 0, 0.4},
			{"longest arc × n, n=2^12", 8.90, 0, 0.6},
			{"longest arc × n, n=2^16", 11.67, 0, 1.8},
		}, longestArcs},
		&valueCheck{"figure 36", []value{
			{"Maglev M=65537, n=100, 1 goes: moved", 0.0155, 0.15, 0},
			{"Maglev M=65537, n=100, 1 goes: needlessly", 0.0055, 0.15, 0},
			{"Maglev M=65537, n=1000, 10 go: moved", 0.034, 0.15, 0},
		}, func(_ context.Context, _ *runs, seed uint64) ([]float64, error) { return maglevMoves(seed), nil }},
	}
}
