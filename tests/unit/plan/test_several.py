"""`vllm-eagle plan -k 3,7,15`: several K side by side."""

from __future__ import annotations

import json

from tests.unit.plan.inputs import H200

REST = H200[2:]


def test_each_is_the_plan_of_its_own(plan, said):
    found = json.loads(plan("-k", "1,7,15", *REST, "--json").stdout)
    assert found.keys() == {"schema_version", "plans", "exit_code"}
    assert found["plans"] == [said("-k", k, *REST) for k in ("1", "7", "15")]
    assert [one["request"]["k"] for one in found["plans"]] == [1, 7, 15]


def test_table(plan):
    result = plan("-k", "1,7,15", *REST, columns=80)
    lines = result.stdout.splitlines()
    rows = {line.split()[0]: line.split()[1:] for line in lines[7:10]}
    assert rows == {
        "1": ["per_token", "450", "300", "31", "33", "432", "435"],
        "7": ["replay", "1404", "324", "22", "32", "1296", "444"],
        "15": ["replay", "2754", "348", "16", "32", "2448", "456"],
    }
    assert max(len(line) for line in lines[5:10]) <= 80
    sentences = [line for line in lines if line.startswith("K = ")]
    assert [line.split(". ")[0] for line in sentences] == ["K = 1", "K = 7", "K = 15"]


def test_advice_that_is_the_same_for_all_is_given_once(plan):
    short = ("--gpu-mem", "140", "--max-model-len", "1024", "--max-num-seqs", "8")
    text = plan("-k", "7,15", *short, "--cpu", "--prefix-caching").stdout
    assert text.count("use --no-prefix-caching") == 1


def test_the_worst_exit_code(plan):
    barely = ("--gpu-mem", "57.35", "--max-model-len", "1024")
    codes = {k: plan("-k", k, *barely).exit_code for k in ("1", "3", "1,3")}
    assert codes == {"1": 1, "3": 0, "1,3": 1}


def test_a_k_that_is_named_twice_is_planned_once(said, plan):
    assert json.loads(plan("-k", "3,3", *REST, "--json").stdout)["plans"] == [said("-k", "3", *REST)]
