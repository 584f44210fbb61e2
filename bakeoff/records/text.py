"""Makes outside text safe to show, and spells latencies, shares and lists the same everywhere."""

import math
import re
import shlex
from collections.abc import Callable, Sequence

_ESCAPE_SEQUENCE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-_])")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")

SIGNIFICANT_DIGITS = 4
"""Latencies are fitted and printed with so many digits, so that the ratio of two printed ones is the printed ratio."""

WIDEST = 1000.0
"""An interval whose upper end is over so many times the lower one says only that the value is not known."""

MOST_TIMES = 1_000_000
"""No larger factor is spelled out: its digits say nothing."""

NAMES_SHOWN = 3
"""Number of names that a list of models, backends or winners begins with; further ones are counted."""

IN_PYTHON = "bakeoff.compare("
"""How the command of a run begins that a program has started: it is no line of a shell."""


def visible(text: str) -> str:
    """Return `text` without terminal escapes and control characters. Line breaks and tabs are kept."""
    return _CONTROL.sub("", _ESCAPE_SEQUENCE.sub("", text.replace("\r\n", "\n").replace("\r", "\n")))


def one_line(text: str, limit: int | None = None) -> str:
    """Return `text` on one line, without control characters, cut to `limit` characters."""
    line = " ".join(visible(text).split())
    return line if limit is None or len(line) <= limit else f"{line[: limit - 1].rstrip()}…"


def last_words(printed: str) -> str:
    """Return the line that says why a process ended: its last exception, which data may follow, or else its last."""
    lines = [line for line in printed.splitlines() if line.strip()]
    errors = [line for line in lines if re.match(r"[\w.]+(?:Error|Exception)\b", line)]
    return one_line((errors or lines or [""])[-1], 300)


def counted(number: float, noun: str) -> str:
    """Return `1 thread`, `2 processes`, `1,234 calls` or `0.5 times`, with at most seven digits of a fraction."""
    plural = f"{noun}{'es' if noun.endswith('s') else 's'}"
    return f"{number:{',' if isinstance(number, int) else ',.7g'}} {noun if number == 1 else plural}"


def percent(share: float) -> str:
    """Return `12 %`, and `<1 %` for what would round to nothing."""
    return "<1 %" if 0 < share < 0.005 else f"{100 * share:.0f} %"


def listed(names: Sequence[str], word: str = "and") -> str:
    """Return `a, b and c`."""
    return f"{', '.join(names[:-1])} {word} {names[-1]}" if len(names) > 1 else "".join(names)


def to_go_on(is_live: bool, what: str = "on, and unfinished processes anew") -> str:
    """Say what measures the rest of a run that was cut short. A live model was gone when its run had ended."""
    again = "Call compare again. Without fresh=True, it uses the builds that are kept"
    return again if is_live else f"bakeoff resume measures {what}"


def first(names: Sequence[str], shown: int = NAMES_SHOWN) -> list[str]:
    """Return the first `shown` names, and behind them a count of the rest, or the last name if it is one."""
    return list(names) if len(names) <= shown + 1 else [*names[:shown], f"{len(names) - shown} others"]


def spell_ms(milliseconds: float) -> str:
    """Return milliseconds with four significant digits: `0.01750 ms`, `12.34 ms`, `1,234 ms`. 0 is `0 ms`."""
    if milliseconds <= 0:
        return f"{milliseconds:g} ms"
    rounded = float(f"{milliseconds:.{SIGNIFICANT_DIGITS}g}")
    digits = max(0, SIGNIFICANT_DIGITS - 1 - math.floor(math.log10(rounded)))
    return f"{rounded:,.{digits}f} ms"


def spell_seconds(seconds: float) -> str:
    """Return at least two significant digits: `0.000042`, `0.0042`, `0.42`, `4.2`, `42`."""
    if seconds == 0:
        return "0"
    if seconds >= 9.95:
        return f"{seconds:,.0f}"
    return f"{seconds:.{max(1, 1 - math.floor(math.log10(float(f'{seconds:.2g}'))))}f}"


def spell_minutes(*moments: str) -> str:
    """Return `2026-01-02 03:04 UTC`, or `2026-01-02 03:04 to 03:09 UTC`, of moments of one day, in ISO 8601 and UTC."""
    first, last = min(moments), max(moments)
    return f"{first[:10]} {first[11:16]}{f' to {last[11:16]}' if last[:16] > first[:16] else ''} UTC"


def spell_times(value: float) -> str:
    """Return a multiple as `1.7`, `94.3`, `12,000` or `over 1,000,000`. One above 1 is never `1`."""
    if value > MOST_TIMES:
        return f"over {MOST_TIMES:,}"
    return f"{value:,.0f}" if value >= 99.95 else f"{math.ceil(round(value * 100, 6)) / 100:.3g}"


def spell_rate(value: float) -> str:
    """Return a rate as `18,761`, `93.8` or `0.413`: at least three significant digits, without a prefix or unit."""
    return f"{value:,.0f}" if value >= 99.95 else f"{value:#.3g}".rstrip(".")


def spell_ratio(value: float) -> str:
    """Return a ratio as `1.85`, `0.024`, `1,234` or `over 1,000,000`."""
    if value > MOST_TIMES:
        return f"over {MOST_TIMES:,}"
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.2f}" if value >= 0.1 else f"{value:#.2g}"


def spell_rough_ratio(value: float) -> str:
    """Return `0.43`, `4.8` or `1,200`: two digits, because no more are known."""
    return f"{float(f'{value:.2g}'):,g}"


def spell_interval(low: float, high: float, write: Callable[[float], str]) -> str:
    """Return `[0.0170, 0.0181]` with a space that does not break, or `[unknown]`."""
    return "[unknown]" if is_unknown(low, high, write) else f"[{write(low)},\u00a0{write(high)}]"


def is_unknown(low: float, high: float, write: Callable[[float], str]) -> bool:
    """Return True for an interval so wide that its ends say nothing. A ratio's interval is never unknown: its lower end
    says how much faster a build is at least."""
    return write is not spell_ratio and 0 < low * WIDEST < high


def again(commands: str) -> list[str]:
    """Return the commands of a run, one on each line, so that none overwrites what the run wrote. A folder that was
    named becomes `FOLDER-again`. Files, `--json` and `--quiet` are left out."""
    lines = []
    for line in filter(str.strip, visible(commands).splitlines()):
        folder = ",".join(values_of(line, "--out")).rstrip("/")
        line = with_option(with_option(line, "--junit"), "--summary")
        line = with_option(line, "--out", f"{folder}-again") if folder else line
        variables, words = _split(line)
        kept = [word for word in words if word not in ("--json", "--quiet")]
        lines.append(variables + shlex.join(kept) if kept else line)
    return lines


def with_option(command: str, option: str, value: str = "") -> str:
    """Return the command of a run with this value of an option, or without the option."""
    variables, words = _split(command)
    kept = [
        word
        for before, word in zip(["", *words], words, strict=False)
        if option not in (before, word) and not word.startswith(f"{option}=")
    ]
    return variables + shlex.join([*kept, *([option, value] if value else [])]) if words else command


def values_of(command: str, option: str) -> list[str]:
    """Return the values of an option in the command of a run: `--model a,b --model c` has `a`, `b` and `c`."""
    _, words = _split(command)
    pairs = zip(["", *words], words, strict=False)
    given = [word for before, word in pairs if before == option or word.startswith(f"{option}=")]
    return [value for word in given for value in word.removeprefix(f"{option}=").split(",")]


def variables_before(command: str) -> str:
    """Return the environment variables that a command begins with, such as `OMP_NUM_THREADS=1 `, or nothing."""
    assignments = re.match(r"(?:[A-Za-z_]\w*=(?:'[^']*'|[^\s'])*\s+)+", command)
    return assignments[0] if assignments else ""


def _split(command: str) -> tuple[str, list[str]]:
    """Return the variables before a command, and its words. A call in Python has none, nor has what cannot be split."""
    variables = variables_before(command)
    try:
        return variables, [] if command.startswith(IN_PYTHON) else shlex.split(command.removeprefix(variables))
    except ValueError:  # it was cut, or comes from another program
        return variables, []
