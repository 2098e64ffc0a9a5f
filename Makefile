.PHONY: install serve test lint bench clean

install: ; @infra/bin/install dev
serve: ; @infra/bin/serve
test: ; @infra/bin/test
lint: ; @infra/bin/lint
bench: ; @infra/bin/bench
clean: ; @infra/bin/clean
