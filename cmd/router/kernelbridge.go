package main

import (
	"fmt"
	"io"

	"taprouter/control/config"
	"taprouter/control/hostnet"
)

// A kernelBridge is one that we made.
type kernelBridge struct{ netns, name string }

// remove takes it away, unless others are in it by now.
func (b kernelBridge) remove() error {
	ns, _, err := hostnet.Ensure(b.netns, false)
	if err != nil {
		return err
	}
	defer ns.Close()
	return ns.DeleteBridge(b.name)
}

// joinBridge makes the kernel bridge of a port if that is asked for.
// hostnet.Configure puts the port into it.
func (r *router) joinBridge(ns *hostnet.NS, p *config.Port) error {
	if p.Host.Bridge == "" {
		return nil
	}
	made, err := ns.EnsureBridge(p.Host.Bridge, p.Host.Create)
	if made {
		r.kernel = append(r.kernel, kernelBridge{p.NetNS, p.Host.Bridge})
	}
	return err
}

// bridgeProblems says what keeps frames from passing between a port and the
// kernel bridge that it joins; nothing if it joins none.
func bridgeProblems(ns *hostnet.NS, p *config.Port, mtu int) []string {
	if p.Host.Bridge == "" {
		return nil
	}
	problems, err := ns.BridgeProblems(p, mtu)
	if err != nil {
		problems = append(problems, err.Error())
	}
	return problems
}

// checkBridges prints what `run` would find about kernel bridges now.
func checkBridges(w io.Writer, c *config.Config) {
	for i := range c.Ports {
		p := &c.Ports[i]
		if p.Host.Bridge == "" {
			continue
		}
		ns, _, err := hostnet.Ensure(p.NetNS, false)
		if err != nil {
			continue // run makes the namespace, or says that it is not there
		}
		for _, problem := range bridgeProblems(ns, p, p.MTU) {
			fmt.Fprintf(w, "warning: port %s: %s\n", p.Name, problem)
		}
		ns.Close()
	}
}
