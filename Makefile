# The front door. CMake does the work; `make help` lists what there is.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
MAKEFLAGS += --no-print-directory
.DEFAULT_GOAL := build
.PHONY: help build debug run serve cluster man check test test-all bench bench-cuda bench-models bench-servers bench-memory answers eval eval-long install format clean

PREFIX ?= /usr/local
DESTDIR ?=
JOBS ?= $(shell nproc 2>/dev/null || sysctl -n hw.ncpu)
CACHE := $(or $(QUIRE_CACHE),$(or $(XDG_CACHE_HOME),$(HOME)/.cache)/quire)
GENERATOR := $(if $(shell command -v ninja),Ninja,Unix Makefiles)

GPU := $(wildcard /dev/nvidiactl)
NVCC := $(shell command -v nvcc || ls /usr/local/cuda/bin/nvcc 2>/dev/null)
# Without a CUDA toolkit: the nvcc that tools/setup has put into the cache, or nothing.
SET_CUDACXX = CUDACXX="$(or $(CUDACXX),$(NVCC),$$(ls "$(CACHE)"/cuda/nvidia/cu13/bin/nvcc 2>/dev/null || true))"

# $(call compile,DIR,OPTIONS[,OPTIONS OF A NEW DIR]): everything, or TARGET alone
compile = $(if $(CUDACXX)$(NVCC)$(GPU)$(TESTS),$(SET_CUDACXX)) cmake -S . -B $(1) $(if $(wildcard $(1)/CMakeCache.txt),,-G "$(GENERATOR)" $(3)) $(2) >/dev/null \
	&& cmake --build $(1) -j $(JOBS) $(if $(TARGET),--target $(TARGET))
# $(call ctest,DIR,OPTIONS). One test more than there are processors: some wait for a disk, a clock or a server.
ctest = ctest --test-dir $(1) -j $$(($(JOBS) + 1)) --output-on-failure --no-tests=error --output-log $(1)/ctest.log $(2)
# $(call short_ctest,DIR,OPTIONS): with the sweeps of `make test`, also within `make test-all`
short_ctest = QUIRE_TEST_SWEEP= $(ctest)
# $(call summary,DIR...): how many tests passed in each
summary = echo; echo "summary"; for dir in $(1); do printf '  %-14s %s\n' $$dir "$$(grep 'tests passed' $$dir/ctest.log)"; done
# Without a GPU a new tree of tests gets quickly compiled kernels; `make build` makes good ones of them, and they stay.
QUICK_KERNELS := $(if $(GPU),,-DQUIRE_CUDA_QUICK=ON)
GOOD_KERNELS := -DQUIRE_CUDA_QUICK=OFF
COMPILE_TESTS = $(call compile,build,-DCMAKE_BUILD_TYPE=Release -DQUIRE_TESTS=ON -DQUIRE_WERROR=ON \
	-DQUIRE_PYTHON="$(CACHE)/venv/bin/python" -DQUIRE_GGML_QUANTS="$(CACHE)/libggml-quants.so" $(KERNELS),$(QUICK_KERNELS))
SANITIZED := -DCMAKE_BUILD_TYPE=Debug -DCMAKE_C_FLAGS_DEBUG="-O2 -g" -DQUIRE_CLI=OFF -DQUIRE_ENGINE=OFF -DQUIRE_WERROR=ON \
	-DQUIRE_PYTHON="$(CACHE)/venv/bin/python"
LIBRARY_ONLY := -DCMAKE_BUILD_TYPE=Release -DQUIRE_CLI=OFF -DQUIRE_ENGINE=OFF -DQUIRE_CUDA=OFF -DQUIRE_WERROR=ON

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' Makefile

build: ## build the library and build/bin/quire (the default)
	@$(call compile,build,-DCMAKE_BUILD_TYPE=Release $(if $(NVCC)$(GPU),$(GOOD_KERNELS)),-DQUIRE_TESTS=OFF)

debug: ## build without optimisation into build/debug, tests included
	@$(call compile,build/debug,-DCMAKE_BUILD_TYPE=Debug)

run: ## install what is missing, build, fetch a small model, and let it answer from a quantized cache
	@tools/setup build >/dev/null
	@$(MAKE) build
	build/bin/quire run -m smollm2 --chat -p "Why is the sky blue?" -n 200 --temp 0 --kv k8v4

serve: ## the same, then serve that model on http://127.0.0.1:8080 (a page, and OpenAI's API)
	@tools/setup build >/dev/null
	@$(MAKE) build
	build/bin/quire serve -m smollm2 --kv k4v4

cluster: ## two replicas of `quire serve` that share prefixes through Redis, behind HAProxy, on loopback (CHECK=1: test it and end)
	@tools/setup cluster >/dev/null
	@$(MAKE) build
	@examples/cluster/cluster $(if $(CHECK),--check)

check test test-all: export QUIRE_REQUIRE_ALL := 1
check test test-all: TESTS := 1
check: TARGET := unit_tests
check: ## the unit tests of the release build, with the best kernels and the reference
	@tools/setup test
	@$(COMPILE_TESTS)
	@$(call ctest,build,-L unit -LE below_best)

test: ## what continuous integration runs: release, ASan+UBSan, Python oracles, engine, CLI
	@tools/setup test
	@$(COMPILE_TESTS)
	@$(call ctest,build,-LE long)
	@$(call compile,build/asan,$(SANITIZED) -DQUIRE_SANITIZE=address$(comma)undefined)
	@$(call ctest,build/asan,-L 'unit|server')
	@$(call summary,build build/asan)

test-all: export QUIRE_TEST_SWEEP := full
test-all: KERNELS := $(GOOD_KERNELS)
test-all: test ## every case of every sweep; also TSan, clang, the AVX-512 kernels emulated, the other processor under qemu, fidelity at length, the server's page in Chromium: hours
	@tools/setup all
	@$(call ctest,build,-L long)
	@$(call compile,build/tsan,$(SANITIZED) -DQUIRE_SANITIZE=thread -DQUIRE_PORTABLE=ON)
	@$(call short_ctest,build/tsan,-R 'threads|cells|server_http|store_redis')
	@$(call compile,build/emulated,$(LIBRARY_ONLY) -DQUIRE_EMULATED=ON)
	@$(call short_ctest,build/emulated,-R 'kernels|integers|emulated')
	@$(call compile,build/clang,$(LIBRARY_ONLY),-DCMAKE_C_COMPILER=clang)
	@$(call short_ctest,build/clang,-L unit)
	@$(call compile,build/cross,$(LIBRARY_ONLY),--toolchain cmake/linux-cross.cmake)
	@$(call short_ctest,build/cross,-L unit)
	@$(call summary,build build/asan build/tsan build/emulated build/clang build/cross)

bench: ## attention beside ggml, mlx and torch in one run (PEERS=all: torch on x86-64 too, 3.6 GB): build/peers.json, pictures
	@PEERS="$(PEERS)" tools/setup bench >/dev/null
	@$(MAKE) build
	@bench/peers --json build/peers.json --plot build/peers.svg --curve build/context.svg

bench-cuda: ## attention and sealing on the GPU beside torch's, in one run: a table and build/cuda.json (needs nvcc and a GPU)
	@$(call compile,build,-DCMAKE_BUILD_TYPE=Release -DQUIRE_CUDA=ON $(GOOD_KERNELS),-DQUIRE_TESTS=OFF)
	@bench/cuda --json build/cuda.json

bench-models: ## whole models beside llama.cpp, in one run: decode and prefill at a depth
	@tools/setup build >/dev/null
	@$(MAKE) build
	@bench/models --json build/models.json

bench-servers: ## `quire serve` beside llama-server: 16 clients with prompts of 2K tokens (TEXT=FILE), in one run; then what its store saves and costs
	@tools/setup cluster >/dev/null
	@$(MAKE) build
	@bench/servers $(if $(TEXT),--text "$(TEXT)") --json build/servers.json
	@bench/servers $(if $(TEXT),--text "$(TEXT)") --shared --json build/servers-shared.json
	@bench/serve-store $(if $(TEXT),--text "$(TEXT)") --json build/serve-store.json

bench-memory: ## what a prefill of Gemma 3 holds in memory, 1K to 32K tokens, as text, build/memory.json and a picture
	@tools/setup plot >/dev/null
	@$(MAKE) build
	@bench/memory --json build/memory.json --plot build/memory.svg

answers: ## five users' requests, answered point by point: docs/ANSWERS.md, build/answers.json (ONLY=000,..; 22 to 45 minutes)
	@tools/setup test >/dev/null
	@PEERS="$(PEERS)" tools/setup bench >/dev/null
	@$(COMPILE_TESTS)
	@bench/answers --docs docs/ANSWERS.md $(if $(ONLY),--only $(ONLY))

eval: ## what codecs cost a model, beside llama.cpp: KL divergence on a text (TEXT=FILE; build/eval/fidelity.json, .svg), needles
	@tools/setup plot >/dev/null
	@$(MAKE) build
	@mkdir -p build/eval
	@bench/fidelity $(EVAL_TEXT) --json build/eval/fidelity.json --plot build/eval/fidelity.svg
	build/bin/quire eval niah -m smollm2 --ctx 2048 --kv k8v8,k8v4,k4v4

eval-long: ## other texts, long contexts, ablation; needles at 8K and 32K tokens, agreement of texts (build/eval/; hours)
	@tools/setup plot >/dev/null
	@$(MAKE) build
	@mkdir -p build/eval
	@bench/fidelity $(EVAL_TEXT) --texts --ablation --long --json build/eval/fidelity-long.json | tee build/eval/fidelity-long.txt
	build/bin/quire eval niah -m smollm2 --ctx 8192 --kv k8v8,k8v4,k4v4 --plot build/eval/niah-smollm2.png | tee build/eval/niah-smollm2.txt
	build/bin/quire eval niah -m gemma3 --ctx 32768 --lengths 1 --raw bf16 --kv k8v8,k8v4,k4v4 --plot build/eval/niah-gemma3.png | tee build/eval/niah-gemma3.txt
	build/bin/quire eval agree -m smollm2 --chat -n 200 --kv $(PRESETS) | tee build/eval/agree-smollm2.txt
	build/bin/quire eval agree -m gemma3 -n 200 --kv $(PRESETS) | tee build/eval/agree-gemma3.txt

man: build ## the man pages, which every build writes from the help texts into build/man

# What is built is installed as it is: as root nothing is compiled, and nothing fetched.
install: ## install under PREFIX (/usr/local), staged in DESTDIR
	@test -e build/bin/quire || $(MAKE) build
	@! grep -qs '^QUIRE_CUDA_QUICK:BOOL=ON' build/CMakeCache.txt || { $(call compile,build,$(GOOD_KERNELS)); }
	@DESTDIR="$(DESTDIR)" cmake --install build --prefix "$(PREFIX)"

format: ## clang-format every C file in place
	@find include common src store engine server plugin cli cuda examples tests tools bench \( -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' \) -print0 | xargs -0 clang-format -i

clean: ## remove build/
	rm -rf build

comma := ,
# GPL-3, which is on every Debian machine, has no more than four pieces of 1024 tokens and a bit.
EVAL_TEXT = $(if $(TEXT),--text "$(TEXT)",--ctx 1024)
PRESETS = $(shell build/bin/quire codecs --json | sed -n '/"presets"/,/\]/ s/.*"name": "\(.*\)".*/\1/p' | paste -sd, -)
