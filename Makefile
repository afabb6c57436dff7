# `make help` lists the targets. The work is in scripts/.

# Go's usual place is not in everyone's PATH, least of all in root's.
export PATH := $(PATH):/usr/local/go/bin
# A Go that is older than go.mod asks for fetches the right one.
export GOTOOLCHAIN ?= auto
# The binary links no C. Tests and tools are built alike, and without paths in them: one build cache serves all checkouts.
export CGO_ENABLED ?= 0
# What `go env -w GOFLAGS` has set holds as well.
export GOFLAGS := $(shell PATH="$(PATH)" go env GOFLAGS 2>/dev/null) -trimpath

SCREENSHOTS ?= out/screenshots
AS_ROOT = -exec "sudo --preserve-env=CI,PATH,HOME,SCREENSHOTS"
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
ROOT = $(if $(filter 0,$(shell id -u)),,sudo)

PREFIX ?= /usr/local
DESTDIR ?=
export SOURCE_DATE_EPOCH ?= $(shell git log -1 --format=%ct 2>/dev/null || echo 0)

comma := ,

.NOTPARALLEL:

.PHONY: help
help: ## what can be made
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | awk -F '\t' '{printf "  make %-11s %s\n", $$1, $$2}'

.PHONY: setup
setup: ## install everything that clawjail and its tests need (Debian, Ubuntu)
	@scripts/setup.sh test

.PHONY: build
build: ## bin/clawjail
	@scripts/setup.sh build
	go build -ldflags '-s -w -X main.version=$(VERSION)' -o bin/ ./cmd/...

.PHONY: check
check: ## format, vet, staticcheck and the tests that need no root; under a minute
	@scripts/check.sh

.PHONY: template
template: build ## the template "browser", unless it is there already
	@scripts/template.sh

.PHONY: templates
templates: build ## that, and the template "clawbot" of agents
	@scripts/template.sh browser clawbot

.PHONY: test
test: setup templates ## the tests, as root
	@scripts/test.sh

.PHONY: test-long
test-long: setup templates ## what make test leaves out: tests that take minutes, or ask servers of others
	@scripts/test.sh --long

.PHONY: test-vm
test-vm: templates ## the package on an ordinary Debian 12 in an emulator, or ONLY=what of it; no part of make test
	@scripts/setup.sh vm
	CI=true go test -tags vm -count=1 -v -timeout 120m $(if $(ROOT),$(AS_ROOT)) ./test/vm $(if $(ONLY),-only '$(ONLY)') $(if $(BEFORE),-before '$(BEFORE)')

.PHONY: test-vm-all
test-vm-all: templates ## that, and on newer kernels and releases, and on arm64, or on one GUEST; takes hours
	@scripts/setup.sh vm
	CI=true go test -tags vm,guests -count=1 -v -timeout 600m $(if $(GUEST),-run '$(GUEST)') $(if $(ROOT),$(AS_ROOT)) ./test/vm $(if $(ONLY),-only '$(ONLY)') $(if $(BEFORE),-before '$(BEFORE)')

K8S_FIGURES = ^TestFigures|^TestAHundred
define on-k8s
@scripts/setup.sh k8s
@$(if $(ROOT),sudo --preserve-env=PATH$(comma)HOME) scripts/k8s.sh
CI=true go test -tags k8s -count=1 -v -timeout 90m -exec "$(if $(ROOT),sudo --preserve-env=CI$(comma)PATH$(comma)HOME )$(CURDIR)/scripts/alone.sh" ./test/k8s
endef

.PHONY: test-k8s
test-k8s: templates ## what is for Kubernetes, on a cluster that is built from Go modules and runs on this machine, or ONLY=what of it; no part of make test
	$(on-k8s) $(if $(ONLY),-run '$(ONLY)',-skip '$(K8S_FIGURES)') $(if $(HOLLOW),-hollow $(HOLLOW))

.PHONY: bench-k8s
bench-k8s: templates ## figures of that cluster: beside a single machine, a hundred sessions at once, and 1000 or HOLLOW=10000 on nodes that only seem to be there
	$(on-k8s) -run '$(K8S_FIGURES)|OnHollowNodes' -hollow $(or $(HOLLOW),1000)

.PHONY: screenshots
screenshots: setup templates ## pictures of every page of the console, light, dark and of a phone's width, in out/screenshots
	SCREENSHOTS=$(abspath $(SCREENSHOTS)) go test -count=1 -timeout 30m -tags screenshots -run '^TestScreenshots$$' $(if $(ROOT),$(AS_ROOT)) ./test/console

.PHONY: bench
bench: setup templates ## measure everything, next to docker run and plain Chromium, in about a quarter of an hour; into bench/results
	@scripts/bench.sh
	$(ROOT) bin/bench

.PHONY: demo
demo: ## a jailed Chromium loads a page, takes a screenshot and leaves nothing behind
	@scripts/setup.sh run
	@$(MAKE) --no-print-directory template
	@mkdir -p out
	$(ROOT) bin/clawjail demo --output out/clawjail-demo.png

.PHONY: manual
manual: ## manual pages and completions, in out/manual
	@scripts/setup.sh build
	@rm -rf out/manual
	go run ./packaging/manual -out out/manual -version '$(VERSION)'

.PHONY: install
install: build manual ## put clawjail in its places, below PREFIX (/usr/local); as root, or with DESTDIR
	PREFIX='$(PREFIX)' DESTDIR='$(DESTDIR)' packaging/stage.sh install

.PHONY: uninstall
uninstall: ## take the files of `make install` away; data, configuration and jails stay (first: clawjail uninstall)
	PREFIX='$(PREFIX)' DESTDIR='$(DESTDIR)' packaging/stage.sh uninstall

.PHONY: packages
packages: ## packages for Debian, Ubuntu and Fedora, in out/packages
	@scripts/setup.sh build
	@packaging/packages.sh '$(VERSION)'

.PHONY: clean
clean: ## remove what was built; templates and data stay
	rm -rf bin
