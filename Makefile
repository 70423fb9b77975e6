# `make demo` and `make test` set up .venv once and reuse it.
PYTHON ?= python3
VLLM ?= auto
TORCH_INDEX ?=
BIN := .venv/bin
KIND := $(if $(filter cpu cuda,$(VLLM)),$(VLLM),auto)
# Everything that starts vLLM on a CPU runs with its libraries preloaded.
RUN := $(BIN)/python tools/preload.py
# `make test PYTEST="--durations=20"` hands pytest more.
PYTEST ?=
FAST := not full and not long and not peers
# A file stays in one process, whose engines and fixtures its tests share.
SPREAD := --dist loadfile --no-loadscope-reorder
UNITS := -n logical --maxprocesses 4 $(SPREAD)
# Each tier ends with its slowest tests.
SLOWEST := --durations=20 --durations-min=1
# An engine on a CPU keeps one core busy; those of a GPU would share its memory.
ENGINES := $(if $(shell command -v nvidia-smi),,-n 2 $(SPREAD))

# `make test ISA=avx2` runs what depends on the CPU's instructions with vLLM's library for AVX2.
ifdef ISA
UNDER := $(BIN)/python tools/isa.py $(ISA)
TESTED_UNITS := $(addprefix tests/unit/,preflight/test_cpu_kernels.py drafters replay/test_cpu_ops.py replay/test_on_cpu.py)
TESTED_ENGINES := tests/e2e/test_in_float32.py
else
TESTED_UNITS := tests/unit tests/contract
TESTED_ENGINES := tests/e2e
endif

# `make contract` takes a release instead.
ifeq ($(filter auto cpu cuda,$(VLLM))$(filter contract,$(MAKECMDGOALS)),)
$(error VLLM=$(VLLM): allowed are cpu and cuda)
endif

.PHONY: venv venv-0.33 demo serve test test-full test-long test-peers test-0.33 promises soak bench-guard lint tiny contract build docs

venv:
	@$(PYTHON) tools/setup_venv.py --vllm $(KIND) --torch-index "$(TORCH_INDEX)"

# vLLM 0.33's Python files over .venv's compiled ones, in an environment of its own.
venv-0.33: venv
	@$(BIN)/python -m tools.overlay

# `make demo TINY=1` takes the toy pair, which needs no network.
demo: venv
	@$(RUN) $(BIN)/python -m examples.demo $(if $(TINY),--tiny)

# The toy pair for one user, on the loopback interface. Eager, because a CPU compiles it for minutes, and
# then vLLM's log has tracebacks of CPUDNNLGEMMHandler.__del__: an old handler is freed while torch traces,
# which takes no real tensor. ARGS is for further options of `vllm serve`.
PORT ?= 8000
serve: venv
	@$(RUN) $(BIN)/vllm serve examples/tiny/target --host 127.0.0.1 --port $(PORT) --served-model-name tiny \
		--max-model-len 1024 --gpu-memory-utilization 0.3 --enforce-eager --speculative-config \
		'{"method": "eagle3", "model": "examples/tiny/postnorm", "num_speculative_tokens": 4}' $(ARGS)

# One thread for the unit tests: their tensors are tiny, and threads that wait for each other cost more.
test: venv
	@OMP_NUM_THREADS=1 $(UNDER) $(BIN)/python -m pytest $(TESTED_UNITS) -m "$(FAST)" $(UNITS) $(SLOWEST) $(PYTEST)
	@$(RUN) $(UNDER) $(BIN)/python -m pytest $(TESTED_ENGINES) -m "$(FAST)" $(ENGINES) $(SLOWEST) $(PYTEST)

# Without AVX-512 bfloat16 is a fallback, with which these take half an hour: `make test-long` runs them.
IN_BF16 := $(addprefix tests/e2e/test_,acceptance.py hybrid.py)
SLOW := $(if $(shell command -v nvidia-smi; grep -wom1 avx512f /proc/cpuinfo 2>/dev/null),,$(IN_BF16))

# `make test-full REST=1` leaves out what `make test` runs.
test-full: $(if $(REST),venv,test)
	@$(if $(SLOW),echo "Without AVX-512 'make test-long' runs $(SLOW).")
	@$(RUN) $(BIN)/python -m pytest -m "full and not long and not peers" $(addprefix --ignore=,$(SLOW)) \
		$(ENGINES) $(SLOWEST) $(PYTEST)

test-long: venv
	@$(RUN) $(BIN)/python -m pytest -m "long and not peers" $(SLOWEST) $(PYTEST)
	@$(if $(SLOW),$(RUN) $(BIN)/python -m pytest $(SLOW) -m "full and not long" $(SLOWEST) $(PYTEST))

# Other projects' libraries write drafts and draft with them, in an environment that also reads .venv.
# `make test-peers ROWS=reference` starts no engine, ROWS=all serves every draft.
ROWS ?= default
PEERS_reference := peers and not e2e
PEERS_default := peers and not long
PEERS_all := peers
ifneq ($(filter test-peers,$(MAKECMDGOALS)),)
ifeq ($(PEERS_$(ROWS)),)
$(error ROWS=$(ROWS): allowed are reference, default and all)
endif
endif
test-peers: venv
	@$(BIN)/python tools/setup_peers.py
	@.venv-peers/bin/python tools/preload.py .venv-peers/bin/python -m pytest tests/peers -m "$(PEERS_$(ROWS))"

# What vLLM 0.33's Python can change: no server, no other project's library. SHORT=1: each kind of draft on V2.
BIN_033 := .venv-0.33/bin
SHORT_033 := $(addprefix tests/e2e/test_,v2.py v2_hybrid.py v2_under_load.py)
ENGINES_033 := $(SHORT_033) $(addprefix tests/e2e/test_,acceptance.py gated.py hybrid_dflash.py \
	hybrid_replay.py scheduling.py)
# Of these, what runs on V2.
V2_033 := $(addprefix tests/e2e/test_,adapters.py adaptive_verification.py draft_vocabulary.py draft_window.py \
	families.py k_by_batch_size.py one_token_prompts.py quantised_drafts.py ray.py sampling.py second_heads.py)
test-0.33: venv-0.33
ifndef SHORT
	@OMP_NUM_THREADS=1 $(BIN_033)/python -m pytest tests/unit tests/contract -m "$(FAST)" $(UNITS) $(PYTEST)
endif
	@$(BIN_033)/python tools/preload.py $(BIN_033)/python -m pytest $(if $(SHORT),$(SHORT_033),$(ENGINES_033)) \
		-m "not peers and (v2 or not long)" $(ENGINES) $(SLOWEST) $(PYTEST)
ifndef SHORT
	@$(BIN_033)/python tools/preload.py $(BIN_033)/python -m pytest $(V2_033) -m v2 $(ENGINES) $(SLOWEST) $(PYTEST)
endif

# What README promises: by model runner and release of vLLM, and the test in `make test`.
promises: venv
	@$(BIN)/python -m tests.promises

# `make soak TARGET=hybrid MINUTES=5` for another pair or time.
TARGET ?= tiny
MINUTES ?= 15
soak: venv
	@$(RUN) $(BIN)/python -m tests.soak --minutes $(MINUTES) --target $(TARGET)

# Ours against stock vLLM in one run, with wide margins: about ten minutes, while nothing else runs.
bench-guard: venv
	@$(RUN) $(BIN)/python -m benchmarks.guard

lint: venv
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/python -m tools.plain_english
	@$(BIN)/python -m tools.budget

tiny: venv
	@$(BIN)/python -m examples.tiny.train

# `make contract VLLM=0.33.0` downloads that release and reads its source without importing it.
contract: venv
	@$(BIN)/python -m tests.contract $(if $(filter-out auto cpu cuda,$(VLLM)),--release $(VLLM))

# A site of the same pages, in build/site; a link that leads nowhere fails.
docs: venv
	@$(BIN)/python -c "import material" 2>/dev/null || $(BIN)/python -m pip install --quiet --editable '.[docs]'
	@rm -rf build/pages && mkdir -p build/pages && git ls-files -z | xargs -0 cp --parents -t build/pages
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

build: venv
	@rm -rf build/dist && $(BIN)/python -m build --outdir build/dist
