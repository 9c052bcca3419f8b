package flowtable

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// Clients count their ports up, and networks their addresses. Whatever the secret is, keys
// that follow each other spread over shards and buckets as by chance, not in steps.
func TestKeysInARowSpread(t *testing.T) {
	const flows, shards, secrets = 1000, 4, 3000
	slots, buckets := geometry(flows, shards)
	rows := map[string]func(k *Key, i int){
		"ports":     func(k *Key, i int) { k.ClientPort = uint16(i) },
		"addresses": func(k *Key, i int) { k.Client[1] += uint64(i) },
		"networks":  func(k *Key, i int) { k.Client[0] += uint64(i) << 16 },
		"both":      func(k *Key, i int) { k.Client[1] += uint64(i / 32); k.ClientPort += uint16(i % 32 * 2) },
	}
	for name, row := range rows {
		t.Run(name, func(t *testing.T) {
			var keys [flows]Key
			for i := range keys {
				keys[i] = Key{Client: [2]uint64{0, 0xffff<<32 | 10<<24}, ClientPort: 40_000, Port: 80}
				row(&keys[i], i)
			}
			most, fullest := 0, 0
			var sums [flows]uint64
			for range secrets {
				h := newHash()
				h.sum(keys[:], sums[:])
				var inShard [shards]int
				inBucket := make([]int, shards*buckets)
				for _, s := range sums {
					inShard[s>>62]++
					inBucket[uint64(hashOf(s))*uint64(len(inBucket))>>32]++
				}
				for _, n := range inShard {
					most = max(most, n)
				}
				for _, n := range inBucket {
					fullest = max(fullest, n)
				}
			}
			require.LessOrEqual(t, most, slots-Classes, "the slots of a shard, 12 deviations above its mean")
			// By Poisson's law, one bucket of 10^14 has more.
			require.LessOrEqual(t, fullest, 50)
		})
	}
}
