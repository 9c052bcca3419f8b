package node

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/carom-dpr/carom/loadinfo"
)

// A host that dies among others that live did it by itself; where most fell silent with
// it, it may live on.
func TestFellAlone(t *testing.T) {
	const window = 3 * time.Second
	at := func(state loadinfo.State, age int) loadinfo.Member {
		return loadinfo.Member{State: state, Age: time.Duration(age) * time.Second}
	}
	const up, draining, stale, down = loadinfo.Up, loadinfo.Draining, loadinfo.Stale, loadinfo.Down
	dead := at(down, 10)
	for name, tt := range map[string]struct {
		others []loadinfo.Member // besides this host
		want   bool
	}{
		"one of two":                            {nil, true},
		"one of many":                           {[]loadinfo.Member{at(up, 0), at(draining, 1), at(up, 0)}, true},
		"two of three":                          {[]loadinfo.Member{at(stale, 8)}, false},
		"two of four":                           {[]loadinfo.Member{at(stale, 8), at(up, 1)}, true},
		"three of five, one of them known dead": {[]loadinfo.Member{at(stale, 8), at(down, 12), at(up, 1)}, false},
		"among those that died long ago":        {[]loadinfo.Member{at(down, 100), at(down, 200), at(down, 13)}, true},
		"after one that is back":                {[]loadinfo.Member{at(down, 0), at(down, 9)}, true},
		"before others":                         {[]loadinfo.Member{at(stale, 7), at(stale, 6), at(stale, 4)}, true},
	} {
		t.Run(name, func(t *testing.T) {
			members := append([]loadinfo.Member{at(up, 0), dead}, tt.others...)
			require.Equal(t, tt.want, fellAlone(&dead, members, window))
		})
	}
}
