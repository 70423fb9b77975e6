# `make demo` and `make test` set up .venv once and reuse it.
PYTHON ?= python3
VLLM ?= auto
TORCH_INDEX ?=
BIN := .venv/bin
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
# Two engines at a time on a CPU, each on one core; those of a GPU would share its memory.
ENGINES := $(if $(shell command -v nvidia-smi),,-n 2 $(SPREAD)) $(SLOWEST) $(PYTEST)

.PHONY: venv demo serve test test-full nightly lint docs contract

# `make contract VLLM=0.33.0` names a release, not a kind of set-up.
venv:
	@$(PYTHON) tools/setup_venv.py --vllm $(if $(filter contract,$(MAKECMDGOALS)),auto,$(VLLM)) \
		--torch-index "$(TORCH_INDEX)"

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

# One thread for each test: tensors are tiny, and threads that wait for each other cost more.
ONE := OMP_NUM_THREADS=1
test: venv
	@$(ONE) $(BIN)/python -m pytest tests/unit tests/contract -m "$(FAST)" $(UNITS) $(SLOWEST) $(PYTEST)
	@$(ONE) $(RUN) $(BIN)/python -m pytest tests/e2e -m "$(FAST)" $(ENGINES)

# `make test-full REST=1` leaves out what `make test` runs.
test-full: $(if $(REST),venv,test)
	@$(ONE) $(RUN) $(BIN)/python -m pytest -m "full and not long and not peers" $(ENGINES)

AVX2 := $(addprefix tests/unit/,memory/test_device.py families replay/test_cpu_ops.py replay/test_on_cpu.py)
# With 0.32 one of each kind of draft on V2, and what only that release does.
V2_032 := $(addprefix tests/e2e/test_,v2.py v2_hybrid.py hybrid_v2_trained.py families.py)
V1_033 := $(addprefix tests/e2e/test_,in_float32.py hybrid_dflash.py hybrid_replay.py scheduling.py)
BIN_033 := .venv-0.33/bin
RUN_033 := $(BIN_033)/python tools/preload.py $(BIN_033)/python

# Hours. Each line can be run by itself; the first that fails ends it.
nightly: venv
	# Every family and target, compiled engines, other K, bf16, all mutations, faults of vLLM, the fuzzer, killed
	# processes, Ray, the demo, wheel and source archive; some of V2.
	$(ONE) $(RUN) $(BIN)/python -m pytest -m "long and not peers and not v2" $(ENGINES)
	$(ONE) $(RUN) $(BIN)/python -m pytest $(V2_032) -m v2 $(ENGINES)
	# All Triton kernels under the interpreter, which is slow; with a GPU each tier has run its own on it.
	$(if $(shell command -v nvidia-smi),,$(ONE) TRITON_INTERPRET=1 PYTHONPATH=tests/support/triton_cpu \
		$(BIN)/python -m pytest tests/unit/replay/interpreted -n 2 $(SLOWEST) $(PYTEST))
	# What depends on the CPU's instructions, with vLLM's smallest library.
	$(ONE) $(BIN)/python tools/isa.py avx2 $(BIN)/python -m pytest $(AVX2) -m "$(FAST)" $(UNITS)
	$(ONE) $(RUN) $(BIN)/python tools/isa.py avx2 $(BIN)/python -m pytest tests/e2e/test_in_float32.py $(ENGINES)
	# vLLM 0.33's Python files over .venv's compiled ones: what they can change, and all of V2.
	$(BIN)/python -m tools.overlay
	$(ONE) $(BIN_033)/python -m pytest tests/unit tests/contract -m "$(FAST)" $(UNITS) $(PYTEST)
	$(ONE) $(RUN_033) -m pytest $(V1_033) -m "not long and not v2" $(ENGINES)
	$(ONE) $(RUN_033) -m pytest tests/e2e -m v2 $(ENGINES)
	# Other projects' libraries write drafts and draft with them, in an environment that also reads .venv.
	$(BIN)/python tools/setup_peers.py
	.venv-peers/bin/python tools/preload.py .venv-peers/bin/python -m pytest tests/peers -m peers
	# Mixed load on one server, with bounds.
	$(RUN) $(BIN)/python -m tests.soak --minutes 15 --target tiny
	$(RUN) $(BIN)/python -m tests.soak --minutes 15 --target hybrid
	# Ours against stock vLLM in one run: ten minutes, while nothing else runs.
	$(RUN) $(BIN)/python -m benchmarks.guard
	# The same next to llama.cpp, where `train --native` (examples/smollm2) has written a draft.
	[ ! -f build/smollm2/native/report.json ] || $(RUN) $(BIN)/python -m benchmarks.side_by_side build/smollm2/native

lint: venv
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/python -m tools.plain_english
	@$(BIN)/python -m tools.budget

# `make contract VLLM=0.33.0` downloads that release and reads its source without importing it.
contract: venv
	@$(BIN)/python -m tests.contract $(if $(filter-out auto cpu cuda,$(VLLM)),--release $(VLLM))

# What is computed from the source or from committed results, the same on every machine.
WRITERS := tools.architecture tools.faults_page tools.readme_picture tools.schemas tools.shown_output benchmarks.modelled_page \
	benchmarks.step_times tests.drafts_page tests.families tests.published_drafts tests.quantised_page

# Writes what pages show, and makes a site of them in build/site; a link that leads nowhere fails.
docs: venv
	@for writer in $(WRITERS); do $(BIN)/python -m $$writer --write > /dev/null || exit 1; done
	@$(BIN)/python -c "import material" 2>/dev/null || $(BIN)/python -m pip install --quiet --editable '.[docs]'
	@$(BIN)/python -m tools.website
