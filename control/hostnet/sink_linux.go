package hostnet

import (
	"encoding/binary"
	"fmt"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// DropUDP makes a device forget IPv4 datagrams to a port as soon as it has
// counted them, with a filter of tc at its ingress: for measurements of what
// comes before the receiving host's network stack.
func (ns *NS) DropUDP(name string, port uint16) error {
	err := ns.Do(func() error {
		l, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		clsact := &netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{
			LinkIndex: l.Attrs().Index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT,
		}}
		if err := netlink.QdiscAdd(clsact); err != nil {
			return fmt.Errorf("add clsact: %w", err)
		}
		return addFilter(l.Attrs().Index, udpTo(port))
	})
	if err != nil {
		return Explain(fmt.Errorf("drop UDP to port %d at %s in netns %s: %w", port, name, ns, err), NetAdmin)
	}
	return nil
}

// addFilter is `tc filter add dev DEV ingress bpf da bytecode …`.
func addFilter(index int, program []unix.SockFilter) error {
	req := nl.NewNetlinkRequest(unix.RTM_NEWTFILTER, unix.NLM_F_CREATE|unix.NLM_F_EXCL|unix.NLM_F_ACK)
	all := binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, unix.ETH_P_ALL))
	req.AddData(&nl.TcMsg{
		Family: unix.AF_UNSPEC, Ifindex: int32(index), Parent: netlink.HANDLE_MIN_INGRESS, Info: 1<<16 | uint32(all), // priority 1
	})
	req.AddData(nl.NewRtAttr(nl.TCA_KIND, nl.ZeroTerminated("bpf")))
	options := nl.NewRtAttr(nl.TCA_OPTIONS, nil)
	options.AddRtAttr(nl.TCA_BPF_OPS_LEN, nl.Uint16Attr(uint16(len(program))))
	var ops []byte // struct sock_filter, each
	for _, f := range program {
		ops = binary.NativeEndian.AppendUint16(ops, f.Code)
		ops = append(ops, f.Jt, f.Jf)
		ops = binary.NativeEndian.AppendUint32(ops, f.K)
	}
	options.AddRtAttr(nl.TCA_BPF_OPS, ops)
	options.AddRtAttr(nl.TCA_BPF_FLAGS, nl.Uint32Attr(nl.TCA_BPF_FLAG_ACT_DIRECT))
	req.AddData(options)
	if _, err := req.Execute(unix.NETLINK_ROUTE, 0); err != nil {
		return fmt.Errorf("add a filter (CONFIG_NET_CLS_BPF): %w", err)
	}
	return nil
}

// udpTo is a program for IPv4 headers without options.
func udpTo(port uint16) []unix.SockFilter {
	const (
		protocol = 0xfffff000 // SKF_AD_OFF + SKF_AD_PROTOCOL: the EtherType
		header   = 0xfff00000 // SKF_NET_OFF
		drop     = 2          // TC_ACT_SHOT
		goOn     = 0xffffffff // TC_ACT_UNSPEC
	)
	const equal = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
	return []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: protocol},
		{Code: equal, K: unix.ETH_P_IP, Jf: 5},
		{Code: unix.BPF_LD | unix.BPF_B | unix.BPF_ABS, K: header + 9},
		{Code: equal, K: unix.IPPROTO_UDP, Jf: 3},
		{Code: unix.BPF_LD | unix.BPF_H | unix.BPF_ABS, K: header + 22},
		{Code: equal, K: uint32(port), Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: drop},
		{Code: unix.BPF_RET | unix.BPF_K, K: goOn},
	}
}
