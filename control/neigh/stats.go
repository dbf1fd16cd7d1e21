package neigh

// Stats counts what the router heard and said on its links.
type Stats struct {
	RxARP       uint64 // packets that were understood
	RxND        uint64 // solicitations and advertisements
	RxEcho      uint64 // echo requests, whole
	RxMalformed uint64 // lengths, checksums or options that are wrong
	RxIgnored   uint64 // not for us, or nothing that we answer
	Conflicts   uint64 // somebody uses an address of ours
	TxRequests  uint64 // ARP requests and solicitations
	TxReplies   uint64 // ARP replies and advertisements
	TxEcho      uint64 // echo replies
	TxRefused   uint64 // frames that the data path had no room for
	Limited     uint64 // neighbours not asked for: too many at once
	Evicted     uint64 // entries that made room for others
	Failed      uint64 // neighbours that did not answer
	Published   uint64 // snapshots
}

// Stats gives the counters as they are now.
func (t *Table) Stats() Stats {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.stats
}

// inject sends a frame, which the data path copies. What it refuses is lost,
// as it might be on the wire.
func (t *Table) inject(iface uint16, frame []byte) {
	if !t.cfg.Inject(iface, frame) {
		t.stats.TxRefused++
	}
}
