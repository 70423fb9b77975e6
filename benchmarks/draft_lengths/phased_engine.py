# SPDX-License-Identifier: Apache-2.0
"""An engine in a process of its own that decodes phases as well, and those that ask it.

python -m benchmarks.draft_lengths.phased_engine
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, cast

from benchmarks.draft_lengths.phased_load import PhasedLoad, PhasedSteps
from vllm_eagle_ext.measure.engine.client import EngineProcess
from vllm_eagle_ext.measure.engine.process import Engine, main
from vllm_eagle_ext.measure.tune.engines import Engines
from vllm_eagle_ext.measure.tune.results import ServedConfig


class PhasedEngine(Engine):
    COMMANDS = (*Engine.COMMANDS, "phases")

    def phases(self, **load: Any) -> dict[str, Any]:
        """A `PhasedLoad`: a `PhasedSteps`."""
        from benchmarks.draft_lengths.phased_steps import Phases

        before = self._counters()
        phases = Phases(self.llm, PhasedLoad(**load), detokenize=self._detokenize)
        return asdict(phases.run()) | self._counted_since(before)


class PhasedProcess(EngineProcess):
    PROGRAM = "benchmarks.draft_lengths.phased_engine"

    def phases(self, load: PhasedLoad) -> PhasedSteps:
        return PhasedSteps(**self._ask({"do": "phases", **load.to_json()}))


class PhasedEngines(Engines):
    PROCESS = PhasedProcess

    def of(self, served: ServedConfig) -> PhasedProcess:
        return cast(PhasedProcess, super().of(served))


if __name__ == "__main__":
    main(PhasedEngine)
