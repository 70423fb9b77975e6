"""Rules for all tests: engines end with them, take neither runner nor network from the machine, and
what the README promises is proven by `make test`."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from tests.support.lifetime import end_children_with_us
from vllm_eagle_ext.log import log_once

end_children_with_us()
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job's children ignore it
os.environ.setdefault("VLLM_USE_V2_MODEL_RUNNER", "0")
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["VLLM_NO_USAGE_STATS"] = "1"


@pytest.hookimpl(tryfirst=True)  # before tests of another tier are left out
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Refuse a promise that lost its test in `make test`, where whole folders were collected."""
    if any("::" in argument or argument.endswith(".py") for argument in config.args):
        return
    made, proven = set(), set()
    for item in items:
        parameters = item.callspec.id if hasattr(item, "callspec") else None
        is_in_make_test = not any(item.get_closest_marker(tier) for tier in ("full", "long", "peers"))
        for marker in item.iter_markers("promise"):
            made.add(marker.args[0])
            if is_in_make_test and marker.kwargs.get("id", parameters) == parameters:
                proven.add(marker.args[0])
    if lost := made - proven:
        raise pytest.UsageError(f"no test of `make test` proves: {'; '.join(sorted(lost))}")


class _Messages(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and record.exc_info[1]:
            record.msg = f"{record.getMessage()}\n{record.exc_info[1]}"
            record.args = ()
        self.records.append(record)

    def containing(self, words: str) -> list[logging.LogRecord]:
        return [record for record in self.records if words in record.getMessage()]


def _configure_logging() -> None:
    """vLLM 0.33 configures it with the first engine's config of a process, and drops other handlers."""
    from vllm import logger

    if hasattr(logger, "configure_logging_if_needed"):
        from vllm.config.logging import LoggingConfig

        logger.configure_logging_if_needed(LoggingConfig())


@pytest.fixture
def vllm_log():
    """What is logged under `vllm`, whose messages do not reach pytest's own capture.

    Whatever an earlier test had said once is said again.
    """
    _configure_logging()
    log_once.cache_clear()
    handler, logger = _Messages(), logging.getLogger("vllm")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    yield handler
    logger.removeHandler(handler)
    logger.setLevel(level)


@pytest.fixture(scope="session")
def prometheus(tmp_path_factory):
    """The folder of `prometheus` and `promtool`; from Debian's package where none are installed."""
    if tool := shutil.which("promtool"):
        return Path(tool).parent
    folder = tmp_path_factory.mktemp("prometheus")
    download = "apt-get -qq download prometheus"
    script = f"({download} || (apt-get -qq update && {download})) && dpkg -x prometheus_*.deb ."
    done = subprocess.run(["sh", "-c", script], cwd=folder, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"Prometheus is not installed, and Debian's package not to be had: {done.stderr}")
    return folder / "usr/bin"
