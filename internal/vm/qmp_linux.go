package vm

import (
	"bufio"
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
	Event string `json:"event"`
	Data  struct {
		Device string `json:"device"`
	} `json:"data"`
}

// execute gives QEMU a command (QEMU QMP reference) on a connection of its
// own, and then waits for an event about a device, if one is named.
func (m *Machine) execute(command string, args map[string]any, event, device string) error {
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
		args map[string]any
	}{{"qmp_capabilities", nil}, {command, args}} {
		request := map[string]any{"execute": do.name}
		if do.args != nil {
			request["arguments"] = do.args
		}
		if err := errors.Join(enc.Encode(request), await(s, "", "")); err != nil {
			return fmt.Errorf("machine %s: %s: %w", m.Name, do.name, err)
		}
	}
	if event == "" {
		return nil
	}
	if err := await(s, event, device); err != nil {
		return fmt.Errorf("machine %s: %s: no %s: %w", m.Name, command, event, err)
	}
	return nil
}

// await waits for an event about a device, or without one for an answer.
func await(s *bufio.Scanner, event, device string) error {
	for s.Scan() {
		var r qmpMessage
		if err := json.Unmarshal(s.Bytes(), &r); err != nil {
			return err
		}
		switch {
		case r.Error != nil:
			return errors.New(r.Error.Desc)
		case event == "" && r.Return != nil:
			return nil
		case event != "" && r.Event == event && r.Data.Device == device:
			return nil
		}
	}
	return errors.Join(s.Err(), errors.New("QEMU says nothing"))
}

// Unplug takes device i out of the running guest, which is asked to let go of
// it.
func (m *Machine) Unplug(i int) error {
	id := fmt.Sprint("nic", i)
	return m.execute("device_del", map[string]any{"id": id}, "DEVICE_DELETED", id)
}

// Plug brings device i back, as it was.
func (m *Machine) Plug(i int) error { return m.execute("device_add", m.nics[i].properties(i), "", "") }
