package hostnet

import (
	"fmt"

	"github.com/safchain/ethtool"
)

// offloads are what `ethtool -K DEV tx|sg|tso|gso|gro` switches, in the
// kernel's names (net/ethtool/common.c, netdev_features_strings).
var offloads = []string{
	"tx-checksum-ip-generic", "tx-scatter-gather",
	"tx-tcp-segmentation", "tx-tcp6-segmentation", "tx-tcp-ecn-segmentation", "tx-udp-segmentation",
	"tx-generic-segmentation", "rx-gro",
}

// SetOffloads switches checksums, segmentation and GRO of a device on, as far as
// it has them, or off, so that each frame is no longer than its MTU.
func (ns *NS) SetOffloads(name string, on bool) error {
	err := ns.Do(func() (err error) {
		e, err := ethtool.NewEthtool()
		if err != nil {
			return err
		}
		defer e.Close()
		have, err := e.FeatureNames(name)
		if err != nil {
			return err
		}
		want := map[string]bool{}
		for _, f := range offloads {
			if _, ok := have[f]; ok {
				want[f] = on
			}
		}
		return e.Change(name, want)
	})
	if err != nil {
		return Explain(fmt.Errorf("set offloads of %s in netns %s: %w", name, ns, err), NetAdmin)
	}
	return nil
}
