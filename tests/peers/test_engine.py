"""Real engines serve the peers' drafts: the drafted ids are those of the peers' own forwards.

The engines compute in float32 and start one after the other in one process.
"""

from __future__ import annotations

import pytest

from tests.peers.chains import equal_drafts
from tests.peers.ours import checked
from tests.peers.rows import ROWS
from tests.peers.texts import ANSWER, PROMPT, prompts, texts
from tests.support.batches import RECORDED, Batch, Engine, start_engines
from vllm_eagle_ext.measure.reference.published import accepted_length
from vllm_eagle_ext.start.serve import speculative_config

pytestmark = [pytest.mark.peers, pytest.mark.e2e]

ENGINE = {"dtype": "float32", "max_model_len": 256, "gpu_memory_utilization": 0.2}


SERVED = [row for row in ROWS if row.engine and row.draft]


def serve(rows, written) -> dict:
    """Row -> outputs and drafts per text, or the error of its engine."""
    engines = []
    for row in rows:
        folder = written(row)
        result = checked(folder, row.target, row.options)
        if result.inspection.errors:
            continue
        texts = [Batch("texts", prompts(row.target), max_tokens=ANSWER)]
        speculative, options = speculative_config(result), dict(row.options)
        engines.append(
            Engine(row.name, texts, speculative, ENGINE, options, row.target, drafts=RECORDED)
        )
    return start_engines(engines)[0]


def available(rows) -> list:
    from tests.peers.available import missing

    return [row for row in rows if not any(missing(peer) for peer in row.peers)]


@pytest.fixture(scope="module")
def served(written):
    return serve(available(SERVED), written)


@pytest.mark.parametrize("row", SERVED, ids=str)
def test_served_as_the_peer_drafts(row, served, written, peers_chains):
    written(row)
    assert row.name in served, "check refuses the draft"
    assert "error" not in served[row.name], served[row.name]["trace"]
    batch = served[row.name]["texts"]
    counts = []
    for text, output, drafts in zip(texts(row.target), batch["tokens"], batch["drafts"], strict=True):
        assert tuple(output) == text[PROMPT:]  # greedy, so what the target says alone
        start, starts = PROMPT - 1, []
        for ids in drafts:
            starts.append(start)
            start += accepted_length(ids, text[start + 2 :]) + 1
        counts.append(equal_drafts(peers_chains(row, text), starts, drafts))
    equal = [sum(text[k][0] for text in counts) for k in range(len(counts[0]))]
    of = [sum(text[k][1] for text in counts) for k in range(len(counts[0]))]
    assert min(of) > 10
    assert equal == of
