//go:build !race

package netns

const raceEnabled = false
