"""The doubts of a contest as sentences, under a heading for what they do to the answer."""

from bakeoff.judging.contest import ContestJudgement
from bakeoff.judging.doubts_of_winner import NotRanked
from bakeoff.records.doubts import Effect

EFFECTS = {
    Effect.WINNER: "What could change the winner",
    Effect.NUMBER: "What could change the winner's numbers",
    Effect.NONE: "Other remarks",
}
"""What stands above the doubts that have this effect. The remarks fold away."""


def heading(effect: Effect, contest: ContestJudgement) -> str:
    """Return what stands above the doubts with this effect. Those under load stand beside what is carried."""
    return f"{EFFECTS[effect]}{' at single calls' if contest.load and effect is not Effect.NONE else ''}"


def doubts(contest: ContestJudgement) -> list[str]:
    """Return each doubt about a contest as a sentence, in order of weight."""
    return [doubt.say() for doubt in contest.doubts]


def doubts_with(effect: Effect, contest: ContestJudgement) -> list[str]:
    """Return the doubts that have this effect on the answer, as sentences. How failed cells ended is said by rows."""
    return [
        doubt.say()
        for doubt in contest.doubts_of_answer[effect]
        if effect is not Effect.NONE or not isinstance(doubt, NotRanked)
    ]
