"""What a model does beside computing outputs from its inputs, in a sentence for each trait."""

from collections.abc import Iterator, Sequence

from bakeoff.judging.judgement import ContestJudgement
from bakeoff.records.schema import ModelTraits, Record
from bakeoff.records.text import counted, first, listed
from bakeoff.records.traits import MILDER_SETS, AccessKind, NotFinite, is_reading, of_accesses

SHOWN_DECISIONS = 3


def about_models(contests: Sequence[ContestJudgement]) -> list[str]:
    return about([(contest.cell.model, [cell.record for cell in contest.cells]) for contest in contests])


def about(contests: Sequence[tuple[str, Sequence[Record]]]) -> list[str]:
    sentences_of_all: dict[str, None] = {}
    several = len({model for model, _ in contests}) > 1
    for model, records in contests:
        known = [record.traits for record in records if record.traits]
        start = model if several else "the model"
        sentences_of_forms = (sentence for traits in known for sentence in traits.forms)  # int8 alone is calibrated
        sentences_of_model = [*(sentences(known[0]) if known else ()), *sentences_of_forms]
        sentences_of_all.update(dict.fromkeys(f"{start} {sentence}" for sentence in sentences_of_model))
    return [sentence[0].upper() + sentence[1:] if not several else sentence for sentence in sentences_of_all]


def sentences(traits: ModelTraits) -> Iterator[str]:
    if traits.unwrapped:
        yield f"came wrapped in {listed(traits.unwrapped)}, which was removed: eager is eager"
    yield from traits.forms
    if traits.keeps_types:
        yield "casts between the types of its weights itself: these stay as they came, and fp32 is the type of all else"
    if traits.autocasts:
        yield (
            f"computes in {listed(traits.autocasts)} by its own autocast, also in cells of another precision: that is "
            "the precision of its weights and inputs"
        )
    if names := traits.unwritten:
        yield (
            f"answers with memory that it has not written, as torch.empty gives it, in {listed(first(names))}: any "
            "values are right there, and they are not compared"
        )
    elif traits.loads_other_weights:
        yield (
            "has other weights each time that it is loaded, though the seeds of torch, NumPy and Python are set, so "
            "that no two processes measure the same model: outputs are not compared, and no winner is sure. Seed the "
            "generators that it makes itself"
        )
    elif traits.is_random and traits.repeats_with_seed:
        yield (
            "is random: two calls with the same inputs differ. Builds are called with eager's seeds. One that draws "
            "other numbers is compared by mean and spread over several calls, and one that is not random is incorrect"
        )
    elif traits.is_random:
        yield (
            "changes its answers from call to call, or when it is loaded again, though the same seed is set: outputs "
            "are compared by mean and spread over several calls, and no winner is sure"
        )
    if traits.state:
        yield (
            f"keeps state from call to call ({listed(first(traits.state))}): compared calls begin from the same state, "
            "and timed calls go on from what the calls before have left"
        )
    if traits.kept_buffers:
        yield (
            f"changes buffers in each call ({listed(first(traits.kept_buffers))}), though none of the first answers "
            "depends on them: a build that leaves them alone is incorrect. What many more calls do was not tried"
        )
    if traits.clock_s is not None:
        yield "answers by the clock: the answer depends on the time of the call. Compared calls see the same time"
    if accesses := [access for access in traits.accesses if access.kind is not AccessKind.CLOCK]:
        notes = [f"{of_accesses(accesses)} in forward"]
        notes += ["Measured calls do so, too"] if any(access.kind in LASTING for access in accesses) else []
        notes += ["Its answers are checked with what it reads now"] if is_reading(accesses) else []
        yield ". ".join(notes)
    if traits.written_inputs:
        yield (
            f"writes into its inputs ({listed(first(traits.written_inputs))}): each compared and each timed call gets "
            "fresh values. Calls for throughput go on with what was written"
        )
    if traits.writes_in_any_order:
        yield (
            "writes several values to one place, as x[index] = y does for equal indices, and torch does not define "
            "which of them stays: a build that answers otherwise than eager is not compared, and is no sure winner"
        )
    for decision in traits.decisions[:SHOWN_DECISIONS]:
        code = f" ({decision.code})" if decision.code else ""
        inputs = (
            "inputs that take another branch were found, and are checked too"
            if decision.goes_both_ways
            else "no inputs that take another branch were found"
        )
        how = "decides by the values of its inputs, or computes with them in Python"
        yield f"{how}, at {decision.place}{code}: {inputs}"
    if (more := len(traits.decisions) - SHOWN_DECISIONS) > 0:
        yield f"reads the values of its inputs at {counted(more, 'more line')}"
    if traits.depends_on_rounding:
        yield f"answers as the rounding or the range of its type decides: {traits.depends_on_rounding}"
    if same := traits.constant_outputs:
        yield f"gives the same values in {listed(first(same))} to all input sets, so that a constant passes there"
    for kind in MILDER_SETS.keys() & set(traits.changed_kinds):
        yield (
            f"fails for values that Bakeoff made from its example, and not for the example. So {MILDER_SETS[kind]}. "
            "To check more, give several bakeoff.Call as example inputs"
        )
    if same := traits.unvaried_inputs:
        yield f"gets the same {listed(first(same))} in all input sets, so that a build that ignores it passes"
    if names := traits.inputs_without_effect:
        yield (
            f"uses {listed(first(names))}, but no output moves with it: what a build does with it is not checked, and "
            "no winner is sure. Weights of zero may hide it"
        )
    if names := traits.tiny_weights:
        yield (
            f"multiplies by weights of zero, or nearly ({listed(first(names))}): a build that is wrong in what they "
            "hide passes. Give the model trained weights"
        )
    if traits.one_answer:
        yield f"gives one answer {traits.one_answer.how}: the check says little about a build, and no winner is sure"
    if traits.needs_autograd:
        yield (
            "needs what torch.inference_mode lacks, such as gradients in forward or threads of its own: everything "
            "was called in torch.no_grad, where calls take a little longer"
        )
    if fast := traits.fast_path:
        what = "writes zeros at padded places" if fast.are_zeros else "answers otherwise than these layers"
        yield (
            f"has transformer layers, and eager's fast path {what} ({fast.differing:,} of {fast.values:,} values): a "
            "build without it has other numbers there, and is right if it answers as eager does without its fast path"
        )
    if traits.not_finite:
        places = listed([_of_not_finite(output) for output in traits.not_finite])
        yield (
            f"answers its own inputs with values that are not finite: {places}. A build is right if it gives the same "
            "ones at the same places"
        )
    if traits.settings:
        changes = [f"{setting.name} from {setting.before} to {setting.after}" for setting in traits.settings]
        threads = f", with {counted(traits.threads, 'thread')} each" if traits.threads else ""
        yield (
            f"changes global settings: {listed(changes)}. All cells run with them{threads}, but for what the precision "
            "of a cell decides"
        )
    if traits.unexamined:
        yield f"could not be examined wholly: {traits.unexamined}"


LASTING = (AccessKind.WRITTEN_FILE, AccessKind.MADE_FOLDER, AccessKind.DATABASE, AccessKind.PROGRAM, AccessKind.NETWORK)
"""What measured calls do outside of their processes."""


def _of_not_finite(output: NotFinite) -> str:
    kinds = [(output.nan, "NaN"), (output.infinite, "infinite")]
    counts = listed([f"{count:,} {kind}" for count, kind in kinds if count])
    return f"{output.output} has {counts} among {counted(output.values, 'value')}"
