"""The doubts of a contest as sentences, under a heading for what they do to the answer."""

from bakeoff.judging.answer import Certainty, Question
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
    is_beside = effect is Effect.WINNER and _is_sure_of_calls(contest)
    of_single_calls = is_beside or (contest.load and effect is not Effect.NONE)
    return f"{EFFECTS[effect]}{' at single calls' if of_single_calls else ''}"


def _is_sure_of_calls(contest: ContestJudgement) -> bool:
    answer = contest.answer
    return answer.question is Question.CALLS and not answer.doubts and answer.certainty is not Certainty.OPEN


def of_answer(contest: ContestJudgement) -> list[str]:
    """Return what could change the answer to what was asked, what the answer names first."""
    named = [doubt.say() for doubt in contest.answer.doubts]
    others = [] if contest.load or _is_sure_of_calls(contest) else doubts_with(Effect.WINNER, contest)
    return list(dict.fromkeys([*named, *others]))


def by_effect(contest: ContestJudgement) -> dict[str, list[str]]:
    said = {effect: [doubt.say() for doubt in doubts] for effect, doubts in contest.doubts_of_answer.items()}
    of_winner = of_answer(contest)
    return {
        "winner": of_winner,
        "winner_at_single_calls": [text for text in said[Effect.WINNER] if text not in of_winner],
        "numbers": [text for text in said[Effect.NUMBER] if text not in of_winner],
        "nothing": [text for text in said[Effect.NONE] if text not in of_winner],
    }


def doubts(contest: ContestJudgement) -> list[str]:
    return [doubt.say() for doubt in contest.doubts]


def doubts_with(effect: Effect, contest: ContestJudgement) -> list[str]:
    """Return the doubts that have this effect on the answer, as sentences. How failed cells ended is said by rows."""
    return [
        doubt.say()
        for doubt in contest.doubts_of_answer[effect]
        if effect is not Effect.NONE or not isinstance(doubt, NotRanked)
    ]
