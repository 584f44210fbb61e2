"""Chooses the next contest of a pool, and decides what happens to one that lost its place. It is pure."""

from collections.abc import Mapping, Sequence

from bakeoff.planning.plan import Contest

MAX_ATTEMPTS = 3
"""A contest is begun so often before its cells end with the reason why none of the attempts came to an end."""


class Schedule:
    """Hands out contests, the longest first. Contests that share a build follow one another at one place. A contest
    stays where it has begun, also when it is begun again, because places may differ a little."""

    def __init__(
        self, contests: Sequence[Contest], expected_s: Mapping[str, float], begun_at: Mapping[str, str] | None = None
    ) -> None:
        """`expected_s` is how long each contest is expected to take, by its id. `begun_at` is the place of each one
        that has begun before."""
        self._expected_s = expected_s
        chains = chains_of(contests)
        self._waiting = sorted(chains, key=lambda chain: -sum(expected_s[contest.id] for contest in chain))
        self._under_way: dict[str, list[Contest]] = {}  # by place; the first one is being measured
        self._attempts: dict[str, int] = {}
        self._begun_at = dict(begun_at or {})

    def next_for(self, place: str) -> Contest | None:
        if not self._under_way.get(place):
            # a chain that has begun elsewhere goes on there
            begun_at = [{self._begun_at.get(contest.id, place) for contest in chain} for chain in self._waiting]
            if {place} not in begun_at:
                return None
            chain = self._waiting.pop(begun_at.index({place}))
            self._under_way[place] = chain
        contest = self._under_way[place][0]
        self._begun_at[contest.id] = place
        self._attempts[contest.id] = self._attempts.get(contest.id, 0) + 1
        return contest

    def ended(self, place: str) -> None:
        """Go on from the contest that has come to its end at this place."""
        del self._under_way[place][0]

    def has_begun_at(self, place: str) -> bool:
        return bool(self._under_way.get(place))

    def lost(self, place: str) -> Contest | None:
        """Let the contest of this place be begun again. Return it instead where this was its last attempt."""
        chain = self._under_way.pop(place)
        given_up = chain.pop(0) if self._attempts[chain[0].id] >= MAX_ATTEMPTS else None
        if chain:
            self._waiting.insert(0, chain)
        return given_up

    def is_gone(self, place: str) -> None:
        """Let other places go on with what has begun at this place, which measures nothing more."""
        self._begun_at = {contest: where for contest, where in self._begun_at.items() if where != place}

    def share_of_waiting(self, contest: Contest) -> float:
        """Return the contest's share of the time that it and all that wait are expected to take."""
        own_s = self._expected_s[contest.id]
        total_s = own_s + self.waiting_s
        return own_s / total_s if total_s else 1.0

    @property
    def waiting_s(self) -> float:
        """The time that all contests are expected to take that have not been begun."""
        return sum(self._expected_s[contest.id] for contest in self.waiting)

    @property
    def waiting(self) -> list[Contest]:
        """The contests that have not been begun, or that are to be begun again."""
        chains = [*self._waiting, *(chain[1:] for chain in self._under_way.values())]
        return [contest for chain in chains for contest in chain]


def chains_of(contests: Sequence[Contest]) -> list[list[Contest]]:
    """Return the contests in chains: those of one share builds for a range of sizes, directly or through others."""
    chains: list[tuple[set[str], list[Contest]]] = []
    for contest in contests:
        builds = {planned.cell.build_id for planned in contest.cells if planned.cell.dynamic}
        joined = [chain for chain in chains if chain[0] & builds]
        members = [member for chain in joined for member in chain[1]] + [contest]
        chains = [chain for chain in chains if chain not in joined]
        chains.append((builds.union(*(chain[0] for chain in joined)), members))
    return [members for _, members in chains]
