# make help lists the targets.

SHELL       := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

export PATH    := $(PATH):/usr/local/go/bin:/usr/sbin:/sbin
export GOFLAGS := $(strip $(GOFLAGS) -buildvcs=false)

# Real namespaces are tested by make test and make soak only, all else anywhere.
UNIT   = $$(go list ./... | grep -v /test/netns)
# The tests in namespaces that run a second time under the race detector.
RACY   = Order|Fragments|ICMPErrors|LiveChanges|Kill|Deleted|ComesBack|Malformed|DeviceMoves|PingRouter|Steering
DEMO   ?=
# make plot draws this file, the output of router bench with --json.
JSON   ?= out.json
PLOTS  ?= docs
FUZZTIME ?= 30s
# make matrix runs this part of the offload matrix.
PART   ?= full
COUNT  ?= 6
PEERS    ?=
PEERSOPT ?=

step = @printf '\n== %s\n' "$(1)"

.PHONY: help build demo test race fuzz bench bench-peers plot lint soak check unit explore netns vm peers deps vm-deps clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

build: ## bin/router, one static binary
	@mkdir -p bin
	CGO_ENABLED=0 go build -trimpath -o bin/router ./cmd/router

demo: build ## see packets flow between two namespaces (root); DEMO='--duration 5s' passes options
	bin/router demo $(DEMO)

test: deps build check unit explore race netns vm peers ## everything: unit, race detector, real namespaces, virtual machines (root)
	$(call step,all passed)

race: ## unit tests under the race detector
	$(call step,unit tests under the race detector)
	CGO_ENABLED=1 ROUTER_REQUIRE_NETNS=$(ROUTER_REQUIRE_NETNS) go test -race -timeout 8m $(UNIT)

fuzz: ## every fuzz target for FUZZTIME (30s)
	@go list ./... | while read -r pkg; do \
	  for f in $$(go test -list '^Fuzz' $$pkg | grep '^Fuzz' || true); do \
	    printf '\n== %s %s\n' "$$pkg" "$$f"; \
	    go test -run '^$$' -fuzz "^$$f\$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 10x $$pkg; \
	  done; \
	done

bench: ## all benchmarks COUNT (6) times, for benchstat
	go test -run '^$$' -bench . -benchmem -count $(COUNT) -timeout 60m $(UNIT)

bench-peers: deps build ## the router beside other forwarders that are installed (root; hours); PEERS='taprouter fwd-vnet' PEERSOPT='--reps 1'
	$(MAKE) -C bench/peers/src
	$(MAKE) -C bench/peers/src go || echo 'without the peers in Go'
	bench/peers/bench.py run $(PEERS) $(PEERSOPT)

plot: ## draw what `router bench ... --json > out.json` found; JSON=FILE PLOTS=DIR (docs)
	go run ./bench/plot -o $(PLOTS) $(JSON)

# bench/plot/svg is tested here as its first build takes most of a minute.
lint: bin/golangci-lint ## golangci-lint, pinned in tools/go.mod (its first build takes minutes)
	go -C bench/plot/svg vet ./...
	go -C bench/plot/svg test ./...
	bin/golangci-lint run ./...
	bin/golangci-lint run --build-tags explore ./internal/step ./qdisc

soak: deps build ## the field cases in full length (root; hours)
	ROUTER_SOAK=1 ROUTER_REQUIRE_NETNS=1 go test -count 1 -timeout 12h -v ./test/netns
	ROUTER_SOAK=1 ROUTER_SOAK_TIME=10m ROUTER_REQUIRE_NETNS=1 go test -count 1 -timeout 12h $(UNIT)

vm: vm-deps ## tests with virtual machines (root); skipped where there is no QEMU, unless ROUTER_REQUIRE_VM=1
	$(call step,virtual machines)
	ROUTER_REQUIRE_NETNS=1 go test -count 1 -timeout 8m -v -run '^TestVM' ./test/netns

matrix: deps ## every combination of the offload matrix (root; long); PART=2/6 runs a part of them
	ROUTER_MATRIX=$(PART) ROUTER_REQUIRE_NETNS=1 go test -count 1 -timeout 12h -v -run TestOffloadMatrix ./test/netns

clean: ## remove what was built
	rm -rf bin

# ---- what make test is made of

test soak: export ROUTER_REQUIRE_NETNS := 1

deps:
	@need=; \
	for p in iperf3:iperf3 ethtool:ethtool ip:iproute2 ping:iputils-ping tcpdump:tcpdump traceroute:traceroute sysctl:procps gcc:gcc python3:python3; do \
	  command -v "$${p%%:*}" >/dev/null || need="$$need $${p#*:}"; \
	done; \
	[ -e /usr/include/stdlib.h ] || need="$$need libc6-dev"; \
	[ -z "$$need" ] || { echo "installing$$need"; \
	  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $$need; }

# QEMU is 43 MB and only the tests with virtual machines need it. They download
# a kernel of 27 MB, which is kept in the user's cache.
vm-deps:
	@command -v qemu-system-x86_64 >/dev/null || { echo "installing qemu-system-x86"; \
	  apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends qemu-system-x86; } \
	  || [ -z "$${ROUTER_REQUIRE_VM:-}" ]

check:
	$(call step,gofmt and go vet)
	@bad=$$(gofmt -l .); [ -z "$$bad" ] || { echo "gofmt -w $$bad"; exit 1; }
	go vet ./...
	go vet -tags explore ./internal/step ./qdisc

unit: # each benchmark runs once, so that none rots
	$(call step,unit tests)
	ROUTER_SOAK_TIME=$${ROUTER_SOAK_TIME:-1m} go test -timeout 8m -bench . -benchtime 1x $(UNIT)

explore:
	$(call step,every interleaving of the run protocol)
	go test -tags explore -timeout 8m ./internal/step ./qdisc

netns:
	$(call step,real namespaces)
	ROUTER_REQUIRE_NETNS=1 go test -count 1 -timeout 20m -v -skip '^TestVM' ./test/netns
	$(call step,real namespaces; router and tests under the race detector)
	CGO_ENABLED=1 ROUTER_REQUIRE_NETNS=1 ROUTER_IO=readv go test -race -count 1 -timeout 10m -v -run '$(RACY)' ./test/netns

peers: build # the bench beside other forwarders works; what it measures in a second means nothing
	$(call step,the bench beside other forwarders)
	$(MAKE) -C bench/peers/src
	python3 -m unittest discover -s bench/peers
	timeout 60 bench/peers/bench.py run taprouter taprouter-l3 fwd-vnet --tests tcp1_ab,pps1 --profile tiny --reps 1 --patience 0 --lock none

bin/golangci-lint bin/staticcheck: bin/%: tools/go.mod tools/go.sum
	@mkdir -p bin
	go -C tools build -o ../$@ $$(go -C tools list -f '{{.ImportPath}}' tool | grep '/$*$$')
