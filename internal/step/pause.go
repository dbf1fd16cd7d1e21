package step

import "runtime"

func pause() { runtime.Gosched() }
