package config

import (
	"crypto/sha256"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"taprouter/qdisc"
)

// fill puts defaults where the file says nothing (decisions 10 and 27 of the
// design: queues = workers, a flow table where there is a choice of queues).
func (d *decoder) fill(c *Config) {
	if c.Workers == 0 {
		c.Workers = allowedCPUs()
	}
	if c.Pool == 0 {
		c.Pool = DefaultPool
	}
	if c.Huge == "" {
		c.Huge = HugeAuto
	}
	for i := range c.Ports {
		d.fillPort(&c.Ports[i], c.Workers)
	}
	for i := range c.Bridges {
		fillBridge(&c.Bridges[i], c.Ports)
	}
}

func (d *decoder) fillPort(p *Port, workers int) {
	if p.Type == SocketType { // what a socket has no use for
		if !d.has(&p.Queues) {
			p.Queues = 1
		}
		if !d.has(&p.VnetHdr) {
			p.VnetHdr = false
		}
	}
	if p.Queues == 0 {
		p.Queues = min(workers, MaxQueues)
	}
	if p.MAC.IsZero() && p.Type != TUN {
		p.MAC = madeUpMAC("port", p.NetNS, p.Name)
	}
	if !d.has(&p.VnetHdr) && p.Backend == Water {
		p.VnetHdr = false
	}
	if !d.has(&p.GRO) { // merging pays where superpackets are taken
		p.GRO = p.VnetHdr
	}
	if !d.has(&p.Accept) && p.VnetHdr && p.Backend == Native {
		p.Accept = Accept{Csum: true, TSO: true, USO: true}
	}
	if !d.has(&p.XPS.FlowTableCnt) && (p.Queues == 1 || p.NAPI) {
		p.XPS.FlowTableCnt = 0 // no choice, or (IFF_NAPI) no order to keep
	}
	q := &p.Qdisc
	if q.Root.Kind == "" && p.Queues > 1 {
		q.Root.Kind = MQ
	} else if q.Root.Kind == "" {
		q.Root.Kind = PfifoFast
	}
	if q.Root.Kind == MQ && q.Child.Kind == "" {
		q.Child.Kind = PfifoFast
	}
	d.fillFQ(&q.Root, p.MTU)
	d.fillFQ(&q.Child, p.MTU)
}

// fillFQ gives fq the defaults that follow from the MTU. Other kinds have no
// options.
func (d *decoder) fillFQ(s *qdisc.Spec, mtu int) {
	if s.Kind != FQ {
		s.FQ = qdisc.FQConfig{}
		return
	}
	def := qdisc.DefaultFQ(mtu)
	if !d.has(given{s, "quantum"}) {
		s.FQ.Quantum = def.Quantum
	}
	if !d.has(given{s, "initial_quantum"}) {
		s.FQ.InitialQuantum = def.InitialQuantum
	}
}

// fillBridge also tells each port its bridge; the first one, if it is in two.
func fillBridge(b *Bridge, ports []Port) {
	mtu := DefaultMTU
	first := true
	for _, name := range b.Ports {
		i := slices.IndexFunc(ports, func(p Port) bool { return p.Name == name })
		if i < 0 || name == "" {
			continue
		}
		if ports[i].Bridge == "" {
			ports[i].Bridge = b.Name
		}
		if first || ports[i].MTU < mtu {
			mtu, first = ports[i].MTU, false
		}
	}
	if b.MTU == 0 {
		b.MTU = mtu
	}
	if b.MAC.IsZero() {
		b.MAC = madeUpMAC("bridge", "", b.Name)
	}
}

// madeUpMAC gives a locally administered address that is the same at every
// start on this host, so that neighbours need not learn a new one.
func madeUpMAC(words ...string) MAC {
	h := sha256.New()
	host, _ := os.Hostname()
	for _, w := range append(words, host) {
		h.Write([]byte(w))
		h.Write([]byte{0})
	}
	m := MAC(h.Sum(nil)[:6])
	m[0] = m[0]&^3 | 2
	return m
}

// allowedCPUs is the number of CPUs that we may run on.
func allowedCPUs() int {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return 1
	}
	return min(max(set.Count(), 1), MaxWorkers)
}
