package netns

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"testing"
)

// router demo --vm runs to its end and leaves nothing. A TCP sender of a guest
// that hops between vCPUs is reordered without a flow table, and with mode
// inflight it is not. What little is allowed is the ingress: where the machine
// is so late that a hop reaches us while the queue before is still being read,
// two workers have packets of the flow at the same time.
func TestVMDemo(t *testing.T) {
	needMachines(t)
	var out, progress bytes.Buffer
	tmp := t.TempDir()
	cmd := exec.CommandContext(t.Context(), routerBinary, "demo", "--vm", "--yes", "--duration", "700ms", "-j")
	cmd.Stdout, cmd.Stderr = &out, &progress
	cmd.Env = append(os.Environ(), "TMPDIR="+tmp)
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v\n%s%s", err, progress.String(), out.String())
	}
	var got struct {
		Legs []struct {
			Name  string
			MbitS float64 `json:"mbit_s"`
		}
		Ping struct{ Sent, Received int }
		Hops []struct {
			Sender    string
			Table     string  `json:"flow_table"`
			MbitS     float64 `json:"mbit_s"`
			Hops      int
			Reordered int
			OFO       int `json:"tcp_ofo_queue"`
		}
		Conserved bool
	}
	if err := json.Unmarshal(out.Bytes(), &got); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	for _, row := range got.Hops {
		t.Logf("%+v", row)
	}
	if len(got.Legs) != 4 || len(got.Hops) != 4 || got.Ping.Received == 0 || !got.Conserved {
		t.Fatalf("the demo says\n%s", out.String())
	}
	pinned, none, inflight := got.Hops[0], got.Hops[1], got.Hops[3]
	if pinned.Hops != 0 || min(none.Hops, inflight.Hops) < 10 {
		t.Errorf("hops: pinned %d, without a table %d, inflight %d", pinned.Hops, none.Hops, inflight.Hops)
	}
	if none.Reordered < 20 || none.OFO < 20 {
		t.Errorf("without a flow table only %d packets were reordered, and %d queued by TCP", none.Reordered, none.OFO)
	}
	if inflight.Reordered*20 > none.Reordered {
		t.Errorf("with inflight %d packets were reordered, without a flow table %d", inflight.Reordered, none.Reordered)
	}
	entries, err := os.ReadDir(tmp)
	if err != nil || len(entries) > 0 {
		t.Errorf("left behind: %v %v", entries, err)
	}
	for _, k := range []string{"a", "b"} {
		if name := fmt.Sprintf("td%d%s", cmd.Process.Pid, k); namespaces()[name] {
			t.Errorf("namespace %s is left behind", name)
		}
	}
}
