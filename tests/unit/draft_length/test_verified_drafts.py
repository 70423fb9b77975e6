"""What counts as verified of drafts that a grammar, or the scheduler, cut; vLLM's own of both."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tests.support.draft_lengths import auto
from tests.support.engine import TINY
from tests.unit.draft_length.stepping import Stepper, make_scheduler, request
from vllm_eagle_ext import plugin
from vllm_eagle_ext.draft_length.verified_drafts import VerifiedDraft, VerifiedDrafts

K, MENU = 4, (0, 1, 2, 4)
DIGIT, LETTER = 17, 65  # "1" and "a" in the tiny target's vocabulary
MODEL_LENGTH = 64


@pytest.fixture(scope="module")
def config():
    from vllm.engine.arg_utils import EngineArgs

    plugin.register()
    made = EngineArgs(
        model=str(TINY / "target"),
        speculative_config={
            "method": "eagle3", "model": str(TINY / "postnorm"), "num_speculative_tokens": K,
        },
        additional_config={"eagle_ext": auto(MENU)},
        max_num_seqs=8,
        max_num_batched_tokens=64,
        max_model_len=MODEL_LENGTH,
        enable_prefix_caching=False,
    ).create_engine_config()  # fmt: skip
    made.scheduler_config.async_scheduling = False
    return made


@pytest.fixture
def observed(config, monkeypatch):
    """A function that runs requests with one kind of draft, and returns what the controller is told."""
    scheduler = make_scheduler(config)
    told: list[tuple[int, list[tuple[int, int]]]] = []
    monkeypatch.setattr(
        scheduler.controller, "observe_drafts", lambda length, outcomes: told.append((length, outcomes))
    )
    monkeypatch.setattr(scheduler.controller, "next_length", lambda n, context: K)

    def run(drafts, accepts, requests, steps=6):
        for each in requests:
            if each.use_structured_output:
                scheduler.structured_output_manager.grammar_init(each)
                while not each.structured_output_request.is_grammar_ready:
                    pass
            scheduler.add_request(each)
        Stepper(scheduler, lambda n, k: 0.01, accepts, lambda k: drafts[:k], DIGIT).run(steps)
        return told

    return run


def digits(name="0"):
    """A request whose answer must be digits."""
    from vllm.sampling_params import StructuredOutputsParams

    asked = StructuredOutputsParams(regex="[0-9]+")
    asked._backend = "xgrammar"  # what vLLM's front end decides
    return request(name, 10, 40, structured_outputs=asked)


@pytest.mark.parametrize(
    ("drafts", "most", "outcome"),
    [
        ([DIGIT, DIGIT, LETTER, DIGIT], 4, (3, 2)),  # the letter is reached
        ([DIGIT, DIGIT, LETTER, DIGIT], 1, (3, 1)),  # it is not
        ([LETTER, DIGIT, DIGIT, DIGIT], 4, (1, 0)),  # nothing is left to verify
        ([DIGIT] * 4, 4, (4, 4)),
        ([DIGIT] * 4, 2, (4, 2)),
    ],
    ids=["cut and reached", "cut behind a rejection", "nothing left", "whole", "rejected"],
)
def test_a_token_that_the_grammar_refuses_is_a_rejection(observed, drafts, most, outcome):
    told = observed(drafts, lambda n: min(n, most), [digits()])
    assert told == [(K, [outcome])] * 5


def test_of_a_request_without_a_grammar_nothing_is_cut(observed):
    told = observed([DIGIT, DIGIT, LETTER, DIGIT], lambda n: n, [digits(), request("1", 10, 40)])
    assert told == [(K, [(3, 2), (4, 4)])] * 5


def test_acceptance_is_not_overrated(config, observed):
    """Half of the requests draft what their grammar refuses at once, the others' drafts are right."""
    told = observed([LETTER] * 4, lambda n: n, [digits(), request("1", 10, 40)])
    first = [accepted > 0 for _, outcomes in told for _, accepted in outcomes]
    assert len(first) == 10
    assert sum(first) == 5


def test_what_the_longest_context_cuts_is_not_rejected(observed):
    """At its end there is room for fewer drafts than the grammar allows, and none is observed more."""
    told = observed([DIGIT] * 4, lambda n: n, [request("0", MODEL_LENGTH - 8, 40)])
    assert [outcome for _, (outcome,) in told] == [(4, 4), (1, 1)]
    assert {length for length, _ in told} == {K}, "K of the step that drafted, not what is left of it"


def test_a_cut_behind_what_the_scheduler_left_is_not_reached():
    drafts = VerifiedDrafts()
    drafts.note_cuts(_made("a", [5, 5, 6, 6]), {"a": _request(kept=[5, 5])})
    _, found = drafts.take(_step({"a": [5]}))
    assert found == {"a": VerifiedDraft(1)}


@pytest.mark.parametrize("gone", ["finished_req_ids", "preempted_req_ids"])
def test_nothing_is_kept_of_requests_that_are_gone(gone):
    drafts = VerifiedDrafts()
    drafts.note_cuts(_made("a", [6, 6]), {"a": _request(kept=[])})
    drafts.take(_step({}, **{gone: {"a"}}))
    assert drafts.take(_step({"a": []})) == (0, {})


def test_padding_is_no_draft():
    """V2 without async scheduling hands over -1 where no request of the batch has a grammar."""
    drafts = VerifiedDrafts()
    drafts.note_cuts(_made("a", [5, -1, -1]), {"a": _request(kept=[5])})
    assert drafts.take(_step({"a": [5]}))[1] == {"a": VerifiedDraft(1)}


def test_nothing_is_reached_behind_the_end_of_a_text():
    stop = 3
    drafts = VerifiedDrafts()
    drafts.note_cuts(_made("a", [5, stop, 6, 6]), {"a": _request(kept=[5, stop])})
    assert drafts.take(_step({"a": [5, stop]}))[1] == {"a": VerifiedDraft(2)}


def _made(name, tokens):
    return SimpleNamespace(req_ids=[name], draft_token_ids=[tokens])


def _request(kept):
    return SimpleNamespace(
        use_structured_output=True, is_prefill_chunk=False, spec_token_ids=kept,
        sampling_params=SimpleNamespace(all_stop_token_ids={3}),
    )  # fmt: skip


def _step(verified, **changes):
    return SimpleNamespace(
        **{
            "finished_req_ids": set(), "preempted_req_ids": None,
            "scheduled_spec_decode_tokens": {name: t for name, t in verified.items() if t},
            "num_scheduled_tokens": {name: 1 + len(t) for name, t in verified.items()},
            "num_spec_tokens_to_schedule": K,
        } | changes
    )  # fmt: skip
