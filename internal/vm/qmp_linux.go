package vm

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// qmpTimeout is how long QEMU may take to carry out a command.
const qmpTimeout = 10 * time.Second

// A qmpMessage is what QEMU says: a greeting, an answer or an event.
type qmpMessage struct {
	Return json.RawMessage `json:"return"`
	Error  *struct {
		Desc string `json:"desc"`
	} `json:"error"`
}

// execute gives QEMU a command (QEMU QMP reference), on a connection of its own.
func (m *Machine) execute(command string, args any) error {
	c, err := m.dial("qmp")
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(qmpTimeout)); err != nil {
		return err
	}
	s, enc := bufio.NewScanner(c), json.NewEncoder(c)
	for _, do := range []struct {
		name string
		args any
	}{{"qmp_capabilities", nil}, {command, args}} {
		request := map[string]any{"execute": do.name}
		if do.args != nil {
			request["arguments"] = do.args
		}
		if err := errors.Join(enc.Encode(request), answer(s)); err != nil {
			return fmt.Errorf("machine %s: %s: %w", m.Name, do.name, err)
		}
	}
	return nil
}

// answer waits for what is not an event.
func answer(s *bufio.Scanner) error {
	for s.Scan() {
		var r qmpMessage
		if err := json.Unmarshal(s.Bytes(), &r); err != nil {
			return err
		}
		if r.Error != nil {
			return errors.New(r.Error.Desc)
		}
		if r.Return != nil {
			return nil
		}
	}
	return errors.Join(s.Err(), errors.New("no answer"))
}

// Unplug takes device i out of the running guest, which is asked to let go of
// it, and waits until it is gone.
func (m *Machine) Unplug(ctx context.Context, i int) error {
	if err := m.execute("device_del", map[string]any{"id": fmt.Sprintf("nic%d", i)}); err != nil {
		return err
	}
	for {
		if _, err := m.Link(ctx, fmt.Sprintf("eth%d", i)); err != nil {
			return ctx.Err()
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("machine %s: device %d is still there: %w", m.Name, i, ctx.Err())
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// Plug brings device i back, as it was.
func (m *Machine) Plug(i int) error {
	return m.execute("device_add", m.nics[i].properties(i))
}
