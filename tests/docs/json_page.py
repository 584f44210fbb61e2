"""Makes docs/json.md of the models that commands print with --json: `python -m tests.docs.json_page`."""

import inspect
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel

from bakeoff.commands.checks import ChecksAnswer
from bakeoff.commands.env_and_cache import CacheAnswer, EnvironmentsAnswer
from bakeoff.commands.listing import ListAnswer
from bakeoff.commands.max_batch import MaxBatchAnswer
from bakeoff.commands.preview import Preview
from bakeoff.commands.run_script import RunScriptAnswer
from bakeoff.commands.selfcheck import SelfcheckAnswer
from bakeoff.doctor.diagnosis import Diagnosis
from bakeoff.models.pipeline_parts import Parts
from bakeoff.reports import command_answers as answers
from bakeoff.reports.json_answer import RunAnswer
from bakeoff.reports.start_report import StartsAnswer
from bakeoff.why.explanation import ExplanationAnswer
from bakeoff.why.records import Blame, KeptSet
from tests.support.checkout import ROOT

PAGE = ROOT / "docs" / "json.md"

MODELS: Mapping[str, type[BaseModel]] = {
    "run": RunAnswer,
    "compare": answers.ComparisonAnswer,
    "history": answers.HistoryAnswer,
    "machines": answers.MachinesAnswer,
    "doctor": Diagnosis,
    "list": ListAnswer,
    "export": answers.ExportAnswer,
    "start": StartsAnswer,
    "publish": answers.PublishAnswer,
    "explain": ExplanationAnswer,
    "blame": Blame,
    "blame --keep-fp32": KeptSet,
    "reproduce": answers.ScriptAnswer,
    "bisect": answers.BisectionAnswer,
    "run --check-only": ChecksAnswer,
    "max-batch": MaxBatchAnswer,
    "run-script": RunScriptAnswer,
    "run --dry-run": Preview,
    "inspect": Parts,
    "selfcheck": SelfcheckAnswer,
    "env": EnvironmentsAnswer,
    "cache": CacheAnswer,
}
"""What each command prints. `resume` and `report` of one path print what `run` does, or `bisect`."""

INTRODUCTION = """# JSON of every command

With `--json` a command prints one JSON document on standard output, and nothing else there. Progress and messages go
to standard error.

- Keys are stable: a key may be added in a release, and none is renamed or removed without a line in the changelog.
- Every document has `exit_status`, which is the exit status of the command.
- A command that cannot answer prints `{"error": "...", "exit_status": 2}`. The status is 1 where the request was right.
- Numbers that are not finite are the texts `"Infinity"`, `"-Infinity"` and `"NaN"`.
- `resume`, and `report` of one path, print what `run` does. `resume` of a bisection prints what `bisect` does.
- An error inside of Bakeoff prints `error`, too, with status 1, and its traceback on standard error.

| exit status | meaning |
| --- | --- |
| 0 | all is well; a cell that a `--budget` left out or cut off has not failed |
| 1 | a cell failed, or what was named or required is not met; the command's `--help` says which |
| 2 | wrong usage |
| 3 | nothing could be measured |
| 4 | `compare` found a regression |
| 130 | interrupted; `bakeoff resume` measures the rest |

`complete` is true when the run came to its end. Cells that a `--budget` left out are then `not reached`, and `resume`
measures them. It is false after an interruption: all answers are those so far.

This page is made from the models in the code, and a test holds it. MLflow and Weights & Biases take the numbers as they
are:

```python
answer = json.loads(subprocess.run(["bakeoff", "--model", "mlp", "--json"], stdout=subprocess.PIPE).stdout)
for contest in answer["contests"]:
    mlflow.log_metric("latency_ms", contest["latency_ms"])  # or wandb.log({"latency_ms": contest["latency_ms"]})
```
"""


def page() -> str:
    parts = [INTRODUCTION.strip()]
    for command, model in MODELS.items():
        schema = model.model_json_schema(mode="serialization")
        nested_models = schema.get("$defs", {})
        if "$ref" in schema:  # a model that holds itself, as the answer of a run has those of its parts
            schema = nested_models[schema["$ref"].rpartition("/")[2]]
        parts += [f"## bakeoff {command}", *_model(schema, nested_models), "`exit_status` (integer) is there, too."]
        for name, nested in nested_models.items():
            if "properties" in nested and nested is not schema:
                parts += [f"### {name} of {command}", *_model(nested, nested_models)]
    return "\n\n".join(parts) + "\n"


def _model(schema: Mapping[str, Any], models: Mapping[str, Any]) -> Iterator[str]:
    if described := schema.get("description"):
        yield " ".join(inspect.cleandoc(described).split())
    rows = [f"| `{name}` | {_type(each, models)} |" for name, each in schema["properties"].items()]
    yield "\n".join(["| key | type |", "| --- | --- |", *rows])


def _type(schema: Mapping[str, Any], models: Mapping[str, Any]) -> str:
    """Return `list of text`, `number or null`, `Ratio`; of an enumeration its values."""
    if reference := schema.get("$ref"):
        name = str(reference).rpartition("/")[2]
        return name if "properties" in models[name] else _type(models[name], models)
    if "const" in schema:
        return f"`{schema['const']}`"
    if "enum" in schema:
        return ", ".join(f"`{value}`" for value in schema["enum"])
    if several := schema.get("anyOf") or schema.get("oneOf"):
        return " or ".join(dict.fromkeys(_type(each, models) for each in several))
    match schema.get("type"):
        case "array":
            items = schema.get("items")
            return f"list of {_type(items, models)}" if items else "list"
        case "object":
            values = schema.get("additionalProperties")
            return f"object of {_type(values, models)}" if isinstance(values, dict) and values else "object"
        case "string":
            return "text"
        case None:
            return "any"
    return str(schema["type"])


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
