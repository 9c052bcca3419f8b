package sockmeter

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestConfig(t *testing.T) {
	for _, c := range []struct {
		name, err string
		config    Config
	}{
		{"nothing", "", Config{}},
		{"neighbours", "", Config{Services: []Service{{"a", 80, 89}, {"b", 90, 0}, {"c", 65535, 65535}}}},
		{"mode", "Config.Mode 9", Config{Mode: 9}},
		{"period", "Config.Period -1ns", Config{Period: -1}},
		{"no name", "service 0 has no Name", Config{Services: []Service{{"", 80, 0}}}},
		{"same name", `"a"`, Config{Services: []Service{{"a", 80, 0}, {"a", 81, 0}}}},
		{"no port", `"a" has no Port`, Config{Services: []Service{{"a", 0, 80}}}},
		{"backwards", "PortEnd 79", Config{Services: []Service{{"a", 80, 79}}}},
		{"overlap", `"a" and "b" share a port`, Config{Services: []Service{{"a", 80, 90}, {"b", 90, 0}}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := c.config.withDefaults()
			if c.err == "" {
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, c.err)
			}
		})
	}
}
