package api

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// Dir is where control sockets lie of routers that may write there: root's.
const Dir = "/run/taprouter"

// userDir is where those of a user's other routers lie: ports of type socket
// need no rights, and then the router needs none either.
func userDir() string {
	if run := os.Getenv("XDG_RUNTIME_DIR"); run != "" {
		return filepath.Join(run, "taprouter")
	}
	return filepath.Join(os.TempDir(), "taprouter-"+strconv.Itoa(os.Getuid()))
}

// Dirs are the places where a user finds control sockets, their own first.
func Dirs() []string {
	if os.Geteuid() == 0 {
		return []string{Dir}
	}
	return []string{userDir(), Dir}
}

// makeDir gives the place for a new socket, and makes it if need be.
func makeDir() (string, error) {
	err := os.MkdirAll(Dir, 0o755)
	if err == nil {
		err = unix.Access(Dir, unix.W_OK)
	}
	if err == nil || os.Geteuid() == 0 {
		return Dir, err
	}
	d := userDir()
	if err := os.MkdirAll(d, 0o700); err != nil {
		return "", fmt.Errorf("no place for the control socket: be root, as all ports but sockets need CAP_NET_ADMIN, or set XDG_RUNTIME_DIR: %w", err)
	}
	var st unix.Stat_t
	if err := unix.Lstat(d, &st); err != nil {
		return "", fmt.Errorf("%s: %w", d, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR || int(st.Uid) != os.Geteuid() || st.Mode&0o022 != 0 {
		return "", fmt.Errorf("%s is not a directory that only we can write to; remove it, or set XDG_RUNTIME_DIR", d)
	}
	return d, nil
}

// SocketPath is the control socket of the router with this name.
func SocketPath(name string) string {
	dirs := Dirs()
	for _, d := range dirs {
		if path := filepath.Join(d, name+".sock"); unix.Access(path, unix.F_OK) == nil {
			return path
		}
	}
	return filepath.Join(dirs[len(dirs)-1], name+".sock")
}
