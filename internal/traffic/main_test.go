package traffic

import (
	"os"
	"testing"

	"go.uber.org/goleak"
)

// TestMain lets the test binary be an agent, too.
func TestMain(m *testing.M) {
	if os.Getenv("TRAFFIC_TEST_AGENT") != "" {
		if err := Serve(os.Stdin, os.Stdout, nil); err != nil {
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}
