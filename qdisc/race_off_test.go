//go:build !race

package qdisc

const raceEnabled = false
