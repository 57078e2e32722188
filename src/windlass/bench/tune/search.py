"""The search: select the next choice to try, and decide whether a difference is real. Pure except for the trials.

Settings with few values are enumerated one after the other with the best values of the other settings (coordinate
descent). Ordered settings are climbed. A trial that is clearly worse is not repeated. The default is tried first, and
last together with the winner. The change between is drift. A gain smaller than twice the spread does not count.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

import msgspec

from windlass.bench.tune.space import Choice, TunedSetting

CLEARLY_WORSE = 1.15
"""Beyond this multiple of the best value, one trial is enough."""
_PASSES = 2


class Trial(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One trial of a choice: its value (smaller is better), or the reason why it failed."""

    choice: dict[str, str]
    value: float | None = None
    failure: str = ""
    seconds: float = 0.0
    final: bool = False
    """Whether it is one of the last trials, in which default and winner alternate."""


class SearchResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The result of a search. `winner` is empty if the default stays."""

    default: dict[str, str]
    winner: dict[str, str] = {}
    default_value: float | None = None
    winner_value: float | None = None
    spread: float | None = None
    drift: float | None = None
    why: str
    trials: tuple[Trial, ...]

    @property
    def gain(self) -> float | None:
        """Share of the default's time that the winner saves."""
        if not self.default_value or self.winner_value is None:
            return None
        return 1 - self.winner_value / self.default_value


Measure = Callable[[Choice], Trial]


class Search:
    """One search. `measure` makes a trial. A choice that is not clearly worse gets `repeats` trials."""

    def __init__(
        self, space: Sequence[TunedSetting], default: Choice, measure: Measure, *, repeats: int, budget: int
    ) -> None:
        self._space = tuple(space)
        self._default = dict(default)
        self._measure = measure
        self._repeats = repeats
        self._left = budget
        self._seen: dict[tuple[tuple[str, str], ...], list[float]] = {}
        self._failed: set[tuple[tuple[str, str], ...]] = set()
        self.trials: list[Trial] = []

    def run(self) -> SearchResult:
        """Search until there is no improvement or the budget of trials is spent."""
        reserve = 2 * self._repeats
        self._left -= reserve
        if self._value(self._default) is None:
            why = f"the default itself failed: {self.trials[-1].failure}"
            return SearchResult(default=self._default, why=why, trials=tuple(self.trials))
        best = self._descend(dict(self._default))
        self._left += reserve
        return self._judge(best)

    def _descend(self, best: dict[str, str]) -> dict[str, str]:
        for _ in range(_PASSES):
            before = dict(best)
            for setting in self._space:
                best = self._climb(setting, best) if setting.ordered else self._enumerate(setting, best)
            if best == before:
                break
        return best

    def _enumerate(self, setting: TunedSetting, best: dict[str, str]) -> dict[str, str]:
        for value in setting.values:
            best = self._better(best, {**best, setting.name: value})
        return best

    def _climb(self, setting: TunedSetting, best: dict[str, str]) -> dict[str, str]:
        """Climb from the current value.

        If a larger value does not help, go down. Continue as long as each step is better.
        """
        values = list(setting.values)
        for direction in (1, -1):
            at = (
                values.index(best[setting.name])
                if best[setting.name] in values
                else -1
                if direction == 1
                else len(values)
            )
            moved = False
            while 0 <= at + direction < len(values):
                step = self._better(best, {**best, setting.name: values[at + direction]})
                if step == best:
                    break
                best, at, moved = step, at + direction, True
            if moved:
                break
        return best

    def _better(self, best: dict[str, str], other: dict[str, str]) -> dict[str, str]:
        if other == best:
            return best
        mine, theirs = self._value(best), self._value(other)
        return other if mine is not None and theirs is not None and theirs < mine else best

    def _value(self, choice: Choice) -> float | None:
        """Return the median of a choice's trials, and make the trials if it has no trials yet.

        Returns None if the choice failed or the budget is spent.
        """
        key = tuple(sorted(choice.items()))
        samples = self._seen.setdefault(key, [])
        best = min((statistics.median(found) for found in self._seen.values() if found), default=None)
        while key not in self._failed and len(samples) < self._repeats and self._left > 0:
            self._try(choice, final=False)
            if samples and best is not None and samples[-1] > CLEARLY_WORSE * best:
                break
        return statistics.median(samples) if samples and key not in self._failed else None

    def _try(self, choice: Choice, *, final: bool) -> Trial:
        self._left -= 1
        trial = msgspec.structs.replace(self._measure(choice), final=final)
        self.trials.append(trial)
        key = tuple(sorted(choice.items()))
        if trial.value is None:
            self._failed.add(key)
        elif not final:
            self._seen[key].append(trial.value)
        return trial

    def _judge(self, best: dict[str, str]) -> SearchResult:
        """Try default and best in turn once more. Only these trials are compared with each other."""
        if best == self._default:
            return self._verdict("no setting was better than the default", {}, [], [])
        ours, theirs = [], []
        for _ in range(self._repeats):
            ours.append(self._try(self._default, final=True).value)
            theirs.append(self._try(best, final=True).value)
        mine = [value for value in ours if value is not None]
        other = [value for value in theirs if value is not None]
        if not mine or len(other) < len(theirs):
            return self._verdict("the best choice failed when it was tried again", {}, mine, [])
        gain = statistics.median(mine) - statistics.median(other)
        spread = max(max(mine) - min(mine), max(other) - min(other))
        if gain <= 0:
            return self._verdict("the best choice was no better when both were tried again in turn", {}, mine, other)
        if gain <= 2 * spread:
            why = "the gain is not larger than twice the spread of the trials: no verdict"
            return self._verdict(why, {}, mine, other)
        changed = {name: value for name, value in best.items() if self._default.get(name) != value}
        return self._verdict("better than the default by more than twice the spread", changed, mine, other)

    def _verdict(self, why: str, winner: dict[str, str], mine: list[float], other: list[float]) -> SearchResult:
        first = self._seen[tuple(sorted(self._default.items()))]
        ours = mine or first
        return SearchResult(
            default=self._default,
            winner=winner,
            default_value=statistics.median(ours),
            winner_value=statistics.median(other) if other else None,
            spread=max(max(v) - min(v) for v in (ours, other) if v),
            drift=statistics.median(mine) / statistics.median(first) - 1 if mine else None,
            why=why,
            trials=tuple(self.trials),
        )
