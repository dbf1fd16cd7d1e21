//go:build race

package qdisc

const raceEnabled = true
