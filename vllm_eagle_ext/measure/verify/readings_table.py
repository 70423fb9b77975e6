# SPDX-License-Identifier: Apache-2.0
"""How the readings of a checkpoint look side by side on a terminal."""

from __future__ import annotations

import json

from rich.console import Console
from rich.table import Table

from vllm_eagle_ext.measure.verify.acceptance import CERTAIN
from vllm_eagle_ext.measure.verify.readings import Comparison
from vllm_eagle_ext.options import KEY


def print_answer(answer: Comparison, console: Console) -> None:
    option, at = answer.question.option, answer.question.position
    decides = f"position {at + 1} of those accepted before"
    table = Table(option, "drafts", "acceptance per position", "length", decides)
    for one in answer.measured:
        rates = " ".join(f"{rate:.2f}" for rate in one.rates)
        share = f"{one.share(at):.3f} ± {one.error(at):.3f}"
        table.add_row(
            json.dumps(one.value), str(one.drafts), rates, f"{one.acceptance_length:.2f}", share
        )
    console.print(table)
    if at:
        console.print(f"Before position {at + 1} both draft the same tokens.")
    if (best := answer.best) is None:
        console.print(
            f"Too close to tell: less than {CERTAIN:g} standard errors apart. Use a larger "
            "--num-prompts or a larger --max-tokens."
        )
        return
    if answer.is_low:
        console.print("Both are low: something else is wrong as well, see `vllm-eagle check`.")
    served = json.dumps({KEY: {**answer.options, option: best.value}})
    said = f"{option} {json.dumps(best.value)} is right. Serve it with --additional-config '{served}'"
    console.print(said, markup=False)
