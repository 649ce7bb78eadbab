# The commands of .github/CONTRIBUTING.md, which says what each takes.
.DEFAULT_GOAL := help
.PHONY: help test test-full lint bench fuzz soak release

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 12

test: ## all tests of the root module, and the suite's, in a minute
	go test ./...
	go test -C internal/suite ./...

test-full: ## what must pass before a change lands
	.ci/run

lint: ## golangci-lint over all modules
	.ci/lint

bench: ## one key, each algorithm, in memory and on Redis
	go test -run '^$$' -bench 'Allow/.*/.*/keys=1$$' -benchmem .

fuzz: ## each fuzz target for TIME
	.ci/fuzz $(or $(TIME),1m)

soak: ## some 90 limiters whose servers break 200 times an hour, for TIME
	RATELIMIT_SOAK=$(or $(TIME),3h) go test -C internal/suite -timeout 100h -count=1 -v -run Soak

release: ## tags VERSION, such as v0.2.0, and pushes the tags
	tools/release/tag $(VERSION)
