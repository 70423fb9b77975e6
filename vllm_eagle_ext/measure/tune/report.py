# SPDX-License-Identifier: Apache-2.0
"""All that a tune shows, from what lies in its folder."""

from __future__ import annotations

from statistics import median
from typing import Any

from vllm_eagle_ext.measure.folder import Context, Record
from vllm_eagle_ext.measure.intervals import Interval
from vllm_eagle_ext.measure.tune.choice import TunedChoice, choose_config, measured_mean
from vllm_eagle_ext.measure.tune.engines import additional_of, speculative_of
from vllm_eagle_ext.measure.tune.results import (
    NONE,
    Cell,
    ServedConfig,
    ServedLoad,
    TuneFolder,
    TuneSettings,
)
from vllm_eagle_ext.measure.tune.surface import (
    gains_of,
    rates_by_position,
    surface_of,
)


class SurfaceRow(Record):
    """One K at one load."""

    load: ServedLoad
    k: int
    plain_ms: float  # a step without a draft, median over the rounds
    step_ms: float
    needed: Interval  # acceptance length from which it pays
    needed_rate: float | None  # acceptance of each position that gives this length; None: none does
    length: float | None  # as measured; None with --surface-only
    gain: float | None  # predicted: length over what is needed


class ServedRow(Record):
    """What may be served, at one load, as the closing round measured it."""

    served: ServedConfig
    load: ServedLoad
    tokens_per_s: float
    gain: Interval | None  # over no draft; None of no draft itself
    predicted: float | None  # by the sweep


class Config(Record):
    """What to serve with; both are None without a draft."""

    speculative_config: dict[str, Any] | None
    additional_config: dict[str, Any] | None


class TuneReport(Record):
    settings: TuneSettings
    context: Context
    surface: list[SurfaceRow]
    acceptance: list[float]  # per position, of the largest K
    closing: list[ServedRow] = []
    served: ServedConfig | None = None  # what is printed; None with --surface-only
    config: Config | None = None
    mean_gain: float | None = None  # measured, geometric mean over the loads
    slower: list[ServedLoad] = []  # than no draft, by more than the interval
    undecided: list[ServedLoad] = []  # slower by the median, but not by the whole interval
    with_zero: Config | None = None  # the same with K = 0 there, where that is less slow
    other_cores: float = 0.0  # at most, that other processes kept busy
    exit_code: int

    def row(self, load: ServedLoad, k: int) -> SurfaceRow | None:
        return next((row for row in self.surface if (row.load, row.k) == (load, k)), None)

    def closed(self, served: ServedConfig, load: ServedLoad) -> ServedRow | None:
        return next((row for row in self.closing if (row.served, row.load) == (served, load)), None)

    @property
    def compared(self) -> list[ServedConfig]:
        """What the closing round measured, no draft first."""
        found = dict.fromkeys(row.served for row in self.closing)
        return sorted(found, key=lambda served: served != NONE)


def report_of(folder: TuneFolder) -> TuneReport:
    """Summarise a folder.

    Raises:
        SpeculativeConfigError: no tune is here.
    """
    settings, sweep, closing = folder.settings(), folder.cells("sweep"), folder.cells("closing")
    surface = surface_of(sweep, with_lengths=not settings.surface_only)
    times = _medians(sweep)
    rows = [
        SurfaceRow(
            load=load, k=k, plain_ms=1000 * times[NONE, load],
            step_ms=1000 * times[ServedConfig(name="held", k=k), load], needed=point.needed,
            needed_rate=point.needed_rate, length=point.length, gain=point.gain,
        )
        for (load, k), point in sorted(surface.items(), key=lambda one: (_order(one[1].load), one[1].k))
    ]  # fmt: skip
    found = TuneReport(
        settings=settings, context=folder.context(), surface=rows,
        acceptance=[] if settings.surface_only else rates_by_position(sweep, settings.k),
        other_cores=max((cell.other_cores or 0.0 for cell in [*sweep, *closing]), default=0.0),
        exit_code=0,
    )  # fmt: skip
    return found if settings.surface_only else _with_choice(found, closing)


def _with_choice(report: TuneReport, closing: list[Cell]) -> TuneReport:
    settings, measured = report.settings, gains_of(closing)
    surface = {(row.load, row.k): row for row in report.surface}
    choice = choose_config(settings, measured, surface)
    return report.model_copy(update={
        "closing": _served_rows(report, closing),
        "served": choice.served,
        "config": _config(settings, choice.served),
        "mean_gain": None if choice.served == NONE else measured_mean(choice.served, measured),
        "slower": sorted(choice.slower, key=_order),
        "undecided": sorted(choice.undecided, key=_order),
        "with_zero": _zero_config(settings, choice),
        "exit_code": choice.exit_code,
    })  # fmt: skip


def _served_rows(report: TuneReport, closing: list[Cell]) -> list[ServedRow]:
    gains = gains_of(closing)
    rates: dict[tuple[ServedConfig, ServedLoad], list[float]] = {}
    for cell in closing:
        rates.setdefault((cell.served, cell.load), []).append(cell.tokens_per_s)
    rows = [
        ServedRow(
            served=served, load=load, tokens_per_s=median(found),
            gain=gains.get((served, load)), predicted=_swept_gain(report, served, load),
        )
        for (served, load), found in rates.items()
    ]  # fmt: skip
    return sorted(rows, key=lambda row: _order(row.load))


def _swept_gain(report: TuneReport, served: ServedConfig, load: ServedLoad) -> float | None:
    k = served.k_at(load.requests)
    row = None if k is None else report.row(load, k)
    return row.gain if row else None


def _config(settings: TuneSettings, served: ServedConfig) -> Config:
    return Config(
        speculative_config=speculative_of(settings, served),
        additional_config=None if served == NONE else additional_of(settings),
    )


def _zero_config(settings: TuneSettings, choice: TunedChoice) -> Config | None:
    if not choice.with_zero:
        return None
    if not any(k for _, _, k in choice.with_zero):
        return _config(settings, NONE)
    return _config(settings, ServedConfig(name="schedule", schedule=choice.with_zero))


def _medians(cells: list[Cell]) -> dict[tuple[ServedConfig, ServedLoad], float]:
    found: dict[tuple[ServedConfig, ServedLoad], list[float]] = {}
    for cell in cells:
        found.setdefault((cell.served, cell.load), []).append(cell.step_s)
    return {key: median(times) for key, times in found.items()}


def _order(load: ServedLoad) -> tuple[int, int]:
    return load.context, load.requests
