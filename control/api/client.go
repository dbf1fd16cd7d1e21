package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"syscall"
	"time"
)

// A Client talks to the router with a name.
type Client struct {
	name string
	http http.Client
}

// Dial makes a Client; it connects with the first request. Close ends it.
func Dial(name string) *Client {
	c := &Client{name: name}
	c.http.Timeout = 10 * time.Second
	c.http.Transport = &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", SocketPath(name))
	}}
	return c
}

// Close frees the connection.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Get decodes what the router says at /v1/WHAT into v.
func (c *Client) Get(ctx context.Context, what string, v any) error {
	return c.do(ctx, http.MethodGet, what, nil, v)
}

// Set asks the router for a change.
func (c *Client) Set(ctx context.Context, what string, change Change) error {
	b, err := json.Marshal(change)
	if err != nil {
		return err
	}
	return c.do(ctx, http.MethodPost, what, bytes.NewReader(b), nil)
}

func (c *Client) do(ctx context.Context, method, what string, body io.Reader, v any) error {
	req, err := http.NewRequestWithContext(ctx, method, "http://router/v1/"+what, body)
	if err != nil {
		return err
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return c.explain(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		var f failure
		if json.NewDecoder(resp.Body).Decode(&f) != nil || f.Error == "" {
			f.Error = resp.Status
		}
		return errors.New(f.Error)
	}
	if v == nil {
		return nil
	}
	return json.NewDecoder(resp.Body).Decode(v)
}

// explain says in a user's words why there is no answer.
func (c *Client) explain(err error) error {
	path := SocketPath(c.name)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("no router named %q is running (%s); start one with `router run -c FILE`, or give its --name", c.name, path)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("no permission for %s: be root, or in the group that owns it", path)
	}
	return err
}
