package hostnet

import (
	"errors"
	"fmt"
	"net"
	"os"
	"testing"
	"time"

	"github.com/safchain/ethtool"
	"golang.org/x/sys/unix"

	"taprouter/control/config"
)

func TestSetOffloads(t *testing.T) {
	ns := newNS(t)
	name, queue := newTAP(t)
	if err := unix.IoctlSetInt(int(queue.Fd()), unix.TUNSETOFFLOAD, unix.TUN_F_CSUM|unix.TUN_F_TSO4); err != nil {
		t.Fatal(err)
	}
	if err := Configure(ns, &config.Port{Name: name, MTU: 1500, TxQueueLen: 1000}); err != nil {
		t.Fatal(err)
	}
	for _, on := range []bool{false, true, false} {
		if err := ns.SetOffloads(name, on); err != nil {
			t.Fatal(err)
		}
		features := featuresOf(t, ns, name)
		for _, f := range []string{"tx-scatter-gather", "tx-checksum-ip-generic", "tx-tcp-segmentation", "tx-generic-segmentation", "rx-gro"} {
			if features[f] != on {
				t.Errorf("offloads %t: %s is %t", on, f, features[f])
			}
		}
	}
	if err := ns.SetOffloads("nosuch", true); err == nil {
		t.Error("SetOffloads of no device: no error")
	}
}

func featuresOf(t *testing.T, ns *NS, name string) (f map[string]bool) {
	t.Helper()
	err := ns.Do(func() error {
		e, err := ethtool.NewEthtool()
		if err != nil {
			return err
		}
		defer e.Close()
		f, err = e.Features(name)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// What goes to the port is counted by the device and comes no further.
func TestDropUDP(t *testing.T) {
	ns := newNS(t)
	if err := errors.Join(ns.SetUp("lo", true), ns.DropUDP("lo", 9)); err != nil {
		t.Fatal(err)
	}
	for port, arrives := range map[int]bool{9: false, 10: true, 9 + 256: true} {
		before, err := ns.Lookup("lo")
		if err != nil {
			t.Fatal(err)
		}
		err = ns.Do(func() error { return sendToSelf(fmt.Sprintf("127.0.0.1:%d", port)) })
		if arrives && err != nil || !arrives && !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("port %d: %v, want arrival: %t", port, err, arrives)
		}
		if after, err := ns.Lookup("lo"); err != nil || after.Stats.RxPackets != before.Stats.RxPackets+1 {
			t.Errorf("port %d: the device has counted %d packets, want 1 (%v)", port, after.Stats.RxPackets-before.Stats.RxPackets, err)
		}
	}
	if err := ns.DropUDP("nosuch", 9); err == nil {
		t.Error("DropUDP at no device: no error")
	}
}

// sendToSelf sends a datagram to addr and waits until it is there.
func sendToSelf(addr string) error {
	pc, err := net.ListenPacket("udp4", addr)
	if err != nil {
		return err
	}
	defer pc.Close()
	if _, err := pc.WriteTo([]byte("x"), pc.LocalAddr()); err != nil {
		return err
	}
	_ = pc.SetReadDeadline(time.Now().Add(200 * time.Millisecond))
	_, _, err = pc.ReadFrom(make([]byte, 10))
	return err
}
