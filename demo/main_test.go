package demo

import (
	"context"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// TestMain lets the test binary be the router's stand-in and the agents.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "run":
			os.Exit(fakeRouter(os.Args[2:]))
		case AgentCommand:
			os.Exit(AgentMain(os.Args[2:], os.Stdin, os.Stdout))
		case "demo":
			exit, _ := Run(context.Background(), Options{Duration: time.Minute})
			os.Exit(exit)
		}
	}
	goleak.VerifyTestMain(m)
}
