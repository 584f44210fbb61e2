"""A user's own model: `path/to/file.py:factory`, or `package.module:factory` for what Python can import.

The factory is a top-level function of the file, or one that it imports from another Python file, that returns
`(module, example_inputs)`:

    def factory(batch: int = 8, seq: int = 128, activation: str = "gelu"):
        return Net(activation), torch.randn(batch, seq)

- Its parameters are the model's named dimensions. Each needs a default that is written as a whole number or a string. A
  parameter named `seed` is not a dimension: it receives the cell's seed and needs no default.
- A file is imported as `python file.py` would do it: its folder comes first on the search path, and stays there. Its
  module has a name of ours, so that a file such as `queue.py` takes no library's place.
- A module is imported as `python -m package.module` would do it, from the folder that the user stands in.
- A process imports the file once, and calls the factory for each load. Before a further load, the file's variables get
  the values back that they had after the first one. If the factory returns a module that the file keeps, or a tensor
  among its variables was written into, the file is imported once more. So it is for a model that is called in turns
  with an earlier one (`keep_apart`), unless that fails.
- Torch's generator for the CPU is seeded before the import. A factory that only draws from it can ignore seeds.
- The module is put into eval mode, on the CPU. Floating-point weights and inputs become float32.
- If the module has an attribute `surgical_targets`, it is a list of patterns of its parts' names. Inductor's mode
  `surgical` compiles these parts.
- The example inputs are a tensor, a tuple or list of positional arguments, or a dict of keyword arguments. Nested
  tuples, lists and dicts may hold tensors. Numbers, booleans, strings and None are constants of the call.
- Or they are several calls: a list, or anything to iterate over, of `bakeoff.Call(args, kwargs)`. These are the sets of
  inputs then, at most `MAX_CALLS`. All need the same structure, shapes, types and constants.
- What is said of functions of the file below holds for those, too, that it imports by these names from Python files.
- If the file has a function `calibrate`, it returns or yields the inputs of further calls, each in one of these forms.
  int8 fixes its ranges with them. Its parameters are some of the factory's.
- If the file has a function `evaluate(predict)`, it returns the model's metrics by their names. It computes them with
  `predict`, which behaves like the model. Its other parameters are some of the factory's.
- Where a request does more than to call the model, the factory returns `(bakeoff.Pipeline(before, module, after), raw
  example)`. Or the file has functions `before` and `after`, of which one may be missing. `before` takes the raw
  example, which the file's `example()` returns or the factory in place of inputs, and returns the example inputs.
  `after` takes what the module returns. Both are timed beside the cells.
- With `--inputs FILE` they are those in the file, and the factory may return the module alone.
- Otherwise the other sets of inputs are made from the example. They have other values in the same layout, which the
  model most likely takes, too (`bakeoff.models.input_sets`). Every set has its own memory.
"""

from __future__ import annotations

import ast
import importlib.util
import inspect
import os
import re
import sys
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeGuard

from bakeoff.models import big_libraries
from bakeoff.models.base import (
    INPUT_SETS,
    Around,
    Call,
    Dimension,
    Family,
    Inputs,
    LoadedModel,
    Pipeline,
    Sizes,
    call_of,
)
from bakeoff.models.seeding import seeded
from bakeoff.models.unwrapping import form_by_mode, form_by_types, require_weights
from bakeoff.records.errors import UsageError, first_line, os_reason, unknown
from bakeoff.records.package import checkout

if TYPE_CHECKING:
    import torch

    from bakeoff.models.file_variables import Variables

_names: dict[Path, str] = {}
"""The names under which this process imports files."""

_loaded: dict[str, UserModel] = {}
"""The models that this process has begun to load, by their names."""

_imported: dict[Path, Imported] = {}
"""The files that this process has imported and called a factory of."""


@dataclass
class Imported:
    """A user's file that was imported once, for the loads that follow."""

    module: ModuleType
    code: bytes
    seed: int
    random_state: torch.Tensor  # of torch's generator for the CPU, after the import
    variables: Variables | None = None  # as they were after the factory's first return
    made: Sequence[weakref.ref[Any]] = ()  # what the factory has returned so far, as `_own_parts` gives it
    is_in_use: bool = False  # by a model that is called in turns with the next one

    def keeps(self, returned: object) -> bool:
        """Return True if the factory has returned a part of this before. Remember its parts."""
        parts = _own_parts(returned)
        before = {id(part) for reference in self.made if (part := reference()) is not None}
        self.made = [*(reference for reference in self.made if reference() is not None), *map(weakref.ref, parts)]
        return any(id(part) in before for part in parts)


class UserCode:
    """A function in a user's file. The file is only parsed at first, and runs when the function is wanted."""

    def __init__(self, source: str, function: str) -> None:
        """Parse the file `source`, or that of the module `source`.

        Raise UsageError if the file, the module or the function is missing.
        """
        self.name = f"{source}:{function}"
        self.module = "" if source.endswith(".py") else source
        self.path = _file_of_module(source) if self.module else Path(source).expanduser()
        self.file = self.path.resolve()  # the process may change its folder
        self.folder = Path.cwd() if self.module else self.file.parent
        self.function = function
        self.tree = _parse(self.path)
        if not self.module:
            _refuse_relative_imports(source, function, self.tree)
        self.definition = self._required(function)

    def defined(self, name: str) -> ast.FunctionDef | None:
        """Return the file's top-level function of this name. One that it imports from another Python file is its own.

        Nothing is imported. `from package import name` is followed to where the function is written.
        """
        package = self.module if self.path.name == "__init__.py" else self.module.rpartition(".")[0]
        return _function_in(self.tree, name, package, _places(self.folder))

    def _required(self, name: str) -> ast.FunctionDef:
        function = self.defined(name)
        if function is not None:
            return function
        factory = "A factory is a function that returns the model and the inputs of a call: def factory(batch: int = 1)"
        match _others(self.tree).get(name):
            case ast.ClassDef():
                raise UsageError(
                    f"{name} in {self.path} is a class. {factory}: return {name}(...), torch.randn(batch, ...)"
                )
            case ast.stmt(lineno=line):
                raise UsageError(
                    f"{name} in {self.path}, line {line}, is not written with def at the top level, and Bakeoff reads "
                    f"the parameters before it runs the file. {factory}: return ..., torch.randn(batch, ...)"
                )
        functions = _functions(self.tree)
        has_factory = "factory" in functions or any(map(_may_return_model_and_inputs, functions.values()))
        if functions and not has_factory:
            raise UsageError(f"no function {name} in {self.path}. {factory}: return ..., torch.randn(batch, ...)")
        raise unknown(f"top-level function of {self.path}", name, functions)

    @property
    def root(self) -> Path:
        """The folder of the user's code: that of the file, or the one that holds the module's outermost package."""
        levels = self.module.count(".") + (self.path.name == "__init__.py" and bool(self.module))
        return self.file.parents[levels]

    def imported(self) -> Callable[..., Any]:
        """Return the function, from the module as the process has it, or else import it."""
        self.make_importable()
        name = self.module or _names[self.file]
        function: Callable[..., Any] = getattr(sys.modules.get(name) or self._import(), self.function)
        return function

    def make_importable(self) -> None:
        """Put the file's folder first on the search path of this process. It stays there, for imports at any time.

        From then on the process finds the file under the name that pickles of its classes have.
        """
        entry = str(self.folder)
        sys.path[:] = [entry, *(path for path in sys.path if path != entry)]
        if not self.module and self.file not in _names:
            name = re.sub(r"\W", "_", f"bakeoff_user_{self.file.stem}")
            is_taken = name in _names.values()
            _names[self.file] = f"{name}_{len(_names)}" if is_taken else name
            sys.meta_path.insert(0, _UserFile(self.file, _names[self.file]))

    def _import(self) -> ModuleType:
        self.make_importable()
        if not self.module:
            return _import_file(self.file)
        imported = importlib.import_module(self.module)
        if not imported.__file__ or not self.file.samefile(imported.__file__):
            raise UsageError(
                f"{self.name} is in {self.path}, but Python imports {imported.__file__} as '{self.module}': "
                "give one of them another name"
            )
        is_first = self.file not in _names
        _names[self.file] = self.module
        return imported if is_first else importlib.reload(imported)


class UserModel(UserCode, Family):
    """A model made by a function in a user's file."""

    dimensions_stand_in = "dimensions are the keyword parameters of the factory"

    def __init__(self, source: str, factory: str) -> None:
        """Parse the file. Raise UsageError, also for a function that cannot be a factory."""
        super().__init__(source, factory)
        function = self.definition
        docstring = ast.get_docstring(function) or "a model of your own"
        self.description = docstring.splitlines()[0]
        self.dimensions = _dimensions(self.name, function)
        self.takes_seed = "seed" in {parameter.arg for parameter, _ in _parameters(function)}
        self.around = frozenset(filter(self.defined, AROUND))
        self.calibrate_takes = self._parameters_of_calibrate({*self.dimensions, "seed"})
        self.evaluated_by = f"{source}:{EVALUATE}" if self._has_evaluate else ""
        self.imports = () if self.module else self._big_libraries()

    def _big_libraries(self) -> tuple[str, ...]:
        """Return the modules of big libraries that fork servers may import before the file, if none is the user's."""
        modules = big_libraries.imported_by(self.tree)
        folder = [str(self.folder)]  # which comes first where the file is imported
        has_own = any(PathFinder.find_spec(module.partition(".")[0], folder) for module in modules)
        return () if has_own else modules

    @property
    def _has_evaluate(self) -> bool:
        """True if the file has a function `evaluate` whose first parameter is `predict`. Others are not meant."""
        function = self.defined(EVALUATE)
        positional = [*function.args.posonlyargs, *function.args.args] if function else []
        return [parameter.arg for parameter in positional[:1]] == [PREDICT]

    def _parameters_of_calibrate(self, known: Collection[str]) -> frozenset[str] | None:
        """Return which of the factory's parameters the function `calibrate` takes, or None without such a function.

        Raise UsageError for a parameter that it needs and the factory has not. If it is imported, it is not meant then.
        """
        function = self.defined("calibrate")
        if function is None:
            return None
        parameters = {parameter.arg: default for parameter, default in _parameters(function)}
        if missing := [name for name, default in parameters.items() if name not in known and default is None]:
            if function not in self.tree.body:
                return None
            raise unknown(
                f"parameter of calibrate() for {self.name}", missing[0], known, "calibrate takes the factory's"
            )
        return frozenset(parameters) & frozenset(known)

    def made(self, dimensions: Sizes, seed: int) -> Any:
        """Return whatever the factory does, such as a pipeline and an example call of it."""
        with seeded(seed):
            return self._run(dimensions, seed)[1]

    def load(self, dimensions: Sizes, seed: int) -> LoadedModel:
        """Run the factory. Raise UsageError if it does not return a model; its own exceptions pass through."""
        with seeded(seed):
            imported, returned = self._run(dimensions, seed)
            own = {name: getattr(imported, name) for name in self.around}
            module, example, around = with_stages(self.name, *_unpack(self.name, returned), **own)
        model = replace(with_own_inputs(self.name, module, example), around=around)
        if self.calibrate_takes is None:
            return model
        arguments = {
            name: value for name, value in {**dimensions, "seed": seed}.items() if name in self.calibrate_takes
        }
        calibrate = partial(_calibration, self.name, partial(imported.calibrate, **arguments), seed)
        return replace(model, calibrate=calibrate, calibrates_with=f"calibrate() in {self.path.name}")

    def _run(self, dimensions: Sizes, seed: int) -> tuple[ModuleType, Any]:
        """Call the factory as a process does that has just imported the file with this seed."""
        import torch

        from bakeoff.models.file_variables import Variables

        _loaded[self.name] = self
        arguments: dict[str, int | str] = {**dimensions, **({"seed": seed} if self.takes_seed else {})}
        code = self.file.read_bytes()
        known = _imported.get(self.file)
        is_same = known is not None and (known.code, known.seed) == (code, seed)
        may_share = known is not None and is_same and not known.is_in_use
        if known and may_share and (returned := self._call_again(known, arguments)) is not None:
            return known.module, returned
        torch.default_generator.manual_seed(seed)
        try:
            module = self._import()
        except Exception as error:
            if known is None or not is_same:
                raise
            if known.is_in_use and (returned := self._call_again(known, arguments)) is not None:
                return known.module, returned
            raise UsageError(
                f"{self.path} keeps the model, or a tensor that a call has written into, and cannot be imported a "
                f"second time: {first_line(error)}: make them inside of {self.function}()"
            ) from error
        known = _imported[self.file] = Imported(module, code, seed, torch.get_rng_state())
        returned = getattr(module, self.function)(**arguments)
        known.keeps(returned)
        known.variables = Variables(module, _imports(self.tree))
        return module, returned

    def _call_again(self, known: Imported, arguments: Mapping[str, int | str]) -> Any:
        """Call the factory of a file that was imported before. Return None where the file keeps what it returns."""
        import torch

        from bakeoff.models.file_variables import Variables

        if known.variables is not None and not known.variables.put_back():
            return None
        torch.set_rng_state(known.random_state)
        returned = getattr(known.module, self.function)(**arguments)
        if known.keeps(returned):
            return None
        known.variables = known.variables or Variables(known.module, _imports(self.tree))
        return returned

    def keep_apart(self) -> None:
        """Have the next load import the file anew, if that works: an earlier model stays in use, with its variables."""
        if self.file in _imported:
            _imported[self.file].is_in_use = True


def _own_parts(returned: object) -> list[Any]:
    """Return the modules that a factory has returned, their parameters, and the parts that hold tensors."""
    from torch import nn

    values = returned if isinstance(returned, tuple | list) else (returned,)
    roots = [value.model if isinstance(value, Pipeline) else value for value in values]
    modules = [root for root in roots if isinstance(root, nn.Module)]
    parts = [part for root in modules for part in root.modules() if part is root or part._parameters or part._buffers]
    return [*parts, *(parameter for root in modules for parameter in root.parameters())]


def with_own_inputs(
    model: str, module: torch.nn.Module, example: object, taken: tuple[str, ...] = (), code: str = ""
) -> LoadedModel:
    """Return a user's module, made ready, with the input sets that its example inputs give.

    `taken` was taken off the module already. `code` is a digest of the code that lies in no file.
    """
    require_weights(module)
    sets, bolder = _input_sets(model, example) if example is not None else ((), None)
    forms = (*form_by_types(module), *form_by_mode(module))
    module = module.to("cpu").float().eval()
    targets = _targets(model, module)
    return LoadedModel(
        module, sets, surgical_targets=targets, unwrapped=taken, forms=forms, code=code, bolder_inputs=bolder
    )


AROUND = frozenset(("before", "after", "example"))
"""Functions of a user's file that are the stages of a request around the model, and give the raw example."""


def with_stages(
    model: str,
    returned: torch.nn.Module | Pipeline,
    given: object,
    before: Callable[[Any], Any] | None = None,
    after: Callable[[Any], Any] | None = None,
    example: Callable[[], Any] | None = None,
) -> tuple[torch.nn.Module, object, Around | None]:
    """Return the module, its example inputs, and what a request does around it.

    `given` is what stands beside the module: its inputs, or the raw example that `before` makes them from. Raise
    UsageError where `before` has no example.
    """
    module = returned
    if isinstance(returned, Pipeline):
        module, before, after = returned.model, returned.before, returned.after
    assert not isinstance(module, Pipeline)
    if before is None and after is None:
        return module, given, None
    if before is None:
        return module, given, Around(None, after)
    raw = given if example is None else example()
    if raw is None:
        raise UsageError(
            f"{model}: before() has no example: return it beside the module, or add a function example() that does"
        )
    return module, before(raw), Around(before, after, raw)


def answer_request(around: Around, model: Callable[..., Any], raw: Any) -> Any:
    """Answer a whole request with this raw example: before, the model and after. Any of the stages may be missing."""
    inputs = as_inputs("before()", around.before(raw) if around.before else raw)
    answer = model(*inputs.args, **inputs.kwargs)
    return around.after(answer) if around.after else answer


def loaded(name: str) -> UserModel | None:
    """Return the user's model of this name that this process has begun to load, if there is one."""
    return _loaded.get(name)


class _UserFile(MetaPathFinder):
    """Finds a user's file under a name of ours. Under its own name, libraries come first, and then the same module.

    With its folder first on the search path, `queue.py` would take the place of Python's queue for every library. A
    file that nobody imports by its own name does not get it: scipy looks for `sparse` among the imported modules.
    """

    def __init__(self, file: Path, name: str) -> None:
        self._file, self._name = file, name

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname == self._name:
            return importlib.util.spec_from_file_location(self._name, self._file)
        if fullname != self._file.stem or path is not None or fullname in sys.builtin_module_names:
            return None
        others = [entry for entry in sys.path if Path(entry or os.curdir).resolve() != self._file.parent]
        if (library := PathFinder.find_spec(fullname, others)) is not None and library.origin is not None:
            return library
        return ModuleSpec(fullname, _SameModule(self._name), origin=str(self._file))


class _SameModule(Loader):
    """Gives a module that has another name, too."""

    def __init__(self, name: str) -> None:
        self._name = name

    def exec_module(self, module: ModuleType) -> None:
        sys.modules[module.__name__] = importlib.import_module(self._name)


def _import_file(path: Path) -> ModuleType:
    name = _names[path]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None  # the path ends in .py and was read before
    module = importlib.util.module_from_spec(spec)
    before = dict.fromkeys([name], sys.modules.get(name))
    if (by_stem := sys.modules.get(path.stem)) is not None and getattr(by_stem, "__name__", "") == name:
        before[path.stem] = by_stem
    # as an import does, because dataclasses and pickle look up a class's module by name
    sys.modules.update(dict.fromkeys(before, module))
    try:
        spec.loader.exec_module(module)
    except BaseException:
        sys.modules.update({name: module for name, module in before.items() if module is not None})
        raise
    return module


def can_import(module: str) -> bool:
    """Return True if Python finds a module of this name from the current folder. Nothing is imported."""
    return _spec_of(module) is not None


def _file_of_module(module: str) -> Path:
    spec = _spec_of(module)
    if spec is None:
        raise UsageError(
            f"no module '{module}' can be imported from this folder or this environment: "
            "write package.module:FACTORY, or path/to/file.py:FACTORY"
        )
    if spec.origin is None or not spec.origin.endswith(".py"):
        raise UsageError(f"module '{module}' is not a Python file: name the module that holds the factory")
    return Path(spec.origin)


def _spec_of(module: str) -> ModuleSpec | None:
    """Find a module as a worker would that imports it."""
    return spec_of(module, _places(Path.cwd()))


def _places(first: Path) -> list[str]:
    # the folder of `python runner.py` is on the controller's path and not on a worker's
    return [str(first), *(path for path in sys.path if Path(path) != checkout())]


def spec_of(module: str, places: Sequence[str]) -> ModuleSpec | None:
    """Find a module in these folders, or by the finders of this process. A package on the way is not imported."""
    spec: ModuleSpec | None = None
    for part in module.split("."):
        is_top = spec is None
        spec = PathFinder.find_spec(part, list(places))
        if spec is None and is_top:
            spec = _spec_by_other_finders(part)
        if spec is None:
            return None
        places = spec.submodule_search_locations or ()
    return spec


def _spec_by_other_finders(name: str) -> ModuleSpec | None:
    """Ask the finders that editable installs add, too. A worker does not have this process's finders of files."""
    others = (finder for finder in sys.meta_path if finder is not PathFinder and not isinstance(finder, _UserFile))
    finders = (getattr(finder, "find_spec", None) for finder in others)
    specs = (find(name, None) for find in finders if find)
    return next((spec for spec in specs if spec is not None), None)


def _refuse_relative_imports(source: str, factory: str, tree: ast.Module) -> None:
    """Raise UsageError if the file imports from the package that it lies in, which a file alone cannot do."""
    parts = Path(source).with_suffix("").parts
    module = ".".join(parts) if all(part.isidentifier() for part in parts) else f"package.{parts[-1]}"
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.level:
            raise UsageError(
                f"{source}, line {node.lineno}, imports from its own package: stand in the folder that holds the "
                f"package, and write {module}:{factory}"
            )


def likely_factory(path: Path) -> str:
    """Return the name of the function in the file that most likely is the factory, or `factory` if there is none."""
    try:
        tree = _parse(path)
    except UsageError:
        return "factory"
    functions = {name: function for name, function in _functions(tree).items() if not name.startswith("_")}
    names = [name for name, function in functions.items() if _may_return_model_and_inputs(function)]
    names += {"factory"} & _imports(tree).keys()
    names = names or [name for name in _others(tree) if not name.startswith("_") and not functions]
    return "factory" if "factory" in names or not names else names[-1]


def _may_return_model_and_inputs(function: ast.FunctionDef) -> bool:
    """Return False for a function that surely returns something else, such as a list of inputs."""
    other = ast.List | ast.ListComp | ast.Dict | ast.DictComp | ast.Set | ast.Constant | ast.JoinedStr
    return not any(isinstance(node, ast.Return) and isinstance(node.value, other) for node in ast.walk(function))


def _parse(path: Path) -> ast.Module:
    """Parse the file without running it."""
    try:
        return ast.parse(path.read_bytes(), filename=str(path))
    except FileNotFoundError:
        raise UsageError(f"no file {path}: a model of your own is path/to/file.py:FACTORY") from None
    except OSError as error:
        raise UsageError(f"cannot read {path}: {os_reason(error)}") from None
    except (SyntaxError, ValueError) as error:  # before Python 3.12 a null byte raises ValueError
        line = getattr(error, "lineno", None)
        raise UsageError(f"{path}{f', line {line}' if line else ''}: {getattr(error, 'msg', error)}") from None


def _function_in(
    tree: ast.Module, name: str, package: str, places: Sequence[str], seen: tuple[str, ...] = ()
) -> ast.FunctionDef | None:
    """Return the function that a parsed file of this package has under a name, wherever it is written, or None."""
    if name in (functions := _functions(tree)) or (imported := _imports(tree).get(name)) is None:
        return functions.get(name)
    module, original = imported
    if module.startswith("."):
        if not package:
            return None
        module = importlib.util.resolve_name(module, package)
    spec = spec_of(module, places)
    if spec is None or spec.origin is None or not spec.origin.endswith(".py") or spec.origin in seen:
        return None
    return _function_in(_parse(Path(spec.origin)), original, spec.parent or "", places, (*seen, spec.origin))


def _imports(tree: ast.Module) -> dict[str, tuple[str, str]]:
    """Return the modules from which a file imports names, and the names that they have there."""
    return {
        alias.asname or alias.name: ("." * node.level + (node.module or ""), alias.name)
        for node in tree.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def _functions(tree: ast.Module) -> dict[str, ast.FunctionDef]:
    return {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}


def _others(tree: ast.Module) -> dict[str, ast.stmt]:
    """Return what else a file has by name: classes, what it assigns, and functions inside of an `if` or `try`."""
    others: dict[str, ast.stmt] = {}
    for statement in tree.body:
        match statement:
            case ast.ClassDef(name=name) | ast.AsyncFunctionDef(name=name):
                others[name] = statement
            case ast.Assign(targets=targets):
                others |= {target.id: statement for target in targets if isinstance(target, ast.Name)}
            case ast.AnnAssign(target=ast.Name(id=name)):
                others[name] = statement
            case ast.If() | ast.Try():
                inside = ast.Module(
                    [inner for inner in ast.iter_child_nodes(statement) if isinstance(inner, ast.stmt)], []
                )
                others |= _others(inside) | _functions(inside)
    return others


def _parameters(function: ast.FunctionDef) -> Iterator[tuple[ast.arg, ast.expr | None]]:
    """Yield each parameter that can be given by keyword, with its default."""
    arguments = function.args
    positional = [*arguments.posonlyargs, *arguments.args]
    defaults = [None] * (len(positional) - len(arguments.defaults)) + list(arguments.defaults)
    by_position = list(zip(positional, defaults, strict=True))
    yield from by_position[len(arguments.posonlyargs) :]
    yield from zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)


def _dimensions(model: str, function: ast.FunctionDef) -> dict[str, Dimension]:
    if function.args.posonlyargs:
        parameter = function.args.posonlyargs[0].arg
        raise UsageError(f"{model}: parameter '{parameter}' is positional-only: remove the '/' after it")
    return {
        parameter.arg: _dimension(model, parameter.arg, default)
        for parameter, default in _parameters(function)
        if parameter.arg != "seed"
    }


def _dimension(model: str, parameter: str, default: ast.expr | None) -> Dimension:
    try:
        value = ast.literal_eval(default) if default is not None else None
    except (ValueError, TypeError):  # TypeError for a set or dict with unhashable items
        value = None
    return dimension_of(model, parameter, value, ast.unparse(default) if default is not None else "")


def dimension_of(model: str, parameter: str, value: object, written: str = "") -> Dimension:
    """Return the dimension of a factory's parameter with this default, which may be written in another way.

    Raise UsageError where it has no default, or one that is no size.
    """
    remedy = f"give it a whole number or a string, like {parameter}=8"
    if value is None and not written:
        raise UsageError(f"{model}: parameter '{parameter}' has no default: {remedy}")
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise UsageError(f"{model}: parameter '{parameter}' has the default {written or repr(value)}: {remedy}")
    # a count such as that of extra layers may be 0; a parameter whose default is no count may be anything
    minimum = 0 if isinstance(value, str) or value >= 1 else -sys.maxsize
    return Dimension(value, "parameter of the factory", minimum)


def module_in(model: str, returned: object, example: object) -> tuple[torch.nn.Module | Pipeline, object]:
    """Return what a factory returned, if its inputs are not given, or else the module in it and `example`."""
    module, own_example = _unpack(model, returned)
    return module, own_example if example is None else example


def _unpack(model: str, returned: object) -> tuple[torch.nn.Module | Pipeline, object]:
    if _is_model(returned):
        return returned, None
    if not isinstance(returned, tuple | list) or len(returned) != 2 or not _is_model(returned[0]):
        raise UsageError(f"{model} returned {_describe(returned)}: expected (nn.Module, example inputs)")
    return returned[0], returned[1]


def _is_model(value: object) -> TypeGuard[torch.nn.Module | Pipeline]:
    from torch import nn

    return isinstance(value.model if isinstance(value, Pipeline) else value, nn.Module)


def _targets(model: str, module: torch.nn.Module) -> tuple[str, ...]:
    """Return the module's `surgical_targets`. Raise UsageError if they are not a list of patterns."""
    named = getattr(module, "surgical_targets", ())
    if not isinstance(named, tuple | list) or not all(isinstance(pattern, str) for pattern in named):
        raise UsageError(f"{model}: surgical_targets is {_describe(named)}: expected names like ['layers.*.rope']")
    return tuple(named)


EVALUATE = "evaluate"
PREDICT = "predict"


MAX_CALIBRATION = 512
"""So many calls of `calibrate` are used. Further ones are not asked for."""


def _calibration(model: str, calibrate: Callable[[], Any], seed: int) -> list[Inputs]:
    """Return the calls that a user's `calibrate` returns or yields: each is as the example inputs of a factory are."""
    with seeded((seed + 1) % 2**32):  # random data are others than the factory's
        calls = list(islice(iter(calibrate()), MAX_CALIBRATION))
    if not calls:
        raise UsageError(f"{model}: calibrate() returned nothing: expected the inputs of several calls")
    return [as_inputs(f"calibrate() of {model}", call) for call in calls]


MAX_CALLS = 16
"""So many example calls of a factory are sets of inputs. Further ones are not asked for."""


BolderInputs = Callable[[tuple[str, ...]], tuple[Inputs, ...]]


def _input_sets(model: str, example: object) -> tuple[tuple[Inputs, ...], BolderInputs | None]:
    """Return the example calls, or sets that are made from the only one, and then what makes bolder ones from it."""
    calls = _calls(example)
    sets = input_sets_of(model, calls) if calls else input_sets(as_inputs(model, example))
    return sets, None if len(calls) > 1 else partial(input_sets, sets[0])


def input_sets_of(model: str, calls: Sequence[Call]) -> tuple[Inputs, ...]:
    """Return these example calls as sets of inputs, or sets that are made from the only one.

    Raise UsageError for calls that differ by more than the values of their tensors.
    """
    sets = tuple(as_inputs(model, call) for call in calls)
    for number, inputs in enumerate(sets[1:], 1):
        if problem := difference_of(inputs, sets[0]):
            raise UsageError(
                f"{model}: example call {number} {problem}: calls may differ in the values of tensors only. "
                "For several sizes, give the factory a dimension, and set it to stream:LOW:HIGH"
            )
    return sets if len(sets) > 1 else input_sets(sets[0])


def require_fitting(model: Callable[..., Any], example: object) -> None:
    """Raise UsageError for example inputs that cannot be the arguments of a module's call. Nothing is called."""
    from torch import nn

    if example is None:
        return
    name = type(model).__name__ if isinstance(model, nn.Module) else getattr(model, "__name__", "the factory")
    given: list[object] = [*_calls(example)]
    calls = [as_inputs(name, call) for call in given or [example]]
    if not isinstance(model, nn.Module) or model._forward_pre_hooks:  # which may change the arguments
        return
    try:
        signature = inspect.signature(model.forward)
    except (TypeError, ValueError):  # what is scripted may have none
        return
    for call in calls:
        try:
            signature.bind(*call.args, **call.kwargs)
        except TypeError as error:
            raise UsageError(f"the inputs do not fit {name}.forward{signature}: {error}") from None


def _calls(example: object) -> list[Call]:
    """Return the calls in `example`, if it is one or several."""
    if isinstance(example, Call):
        return [example]
    if isinstance(example, Mapping) or not isinstance(example, Iterable) or hasattr(example, "layout"):
        return []
    first_ones = list(islice(example, MAX_CALLS)) if isinstance(example, Iterator) else list(example)[:MAX_CALLS]
    return first_ones if all(isinstance(element, Call) for element in first_ones) else []


def difference_of(call: Inputs, first: Inputs) -> str:
    """Return how a call differs from the first one by more than the values of its tensors, or an empty text."""
    import torch
    from torch.utils import _pytree as pytree

    (leaves, structure), (wanted_leaves, wanted_structure) = (
        pytree.tree_flatten((inputs.args, dict(sorted(inputs.kwargs.items())))) for inputs in (call, first)
    )
    if structure != wanted_structure:
        return "has other arguments"
    for leaf, wanted in zip(leaves, wanted_leaves, strict=True):
        if not isinstance(leaf, torch.Tensor) or not isinstance(wanted, torch.Tensor):
            if type(leaf) is not type(wanted) or leaf != wanted:
                return f"has {leaf!r} for {wanted!r}"
        elif leaf.shape != wanted.shape:
            return f"has a tensor of shape {tuple(leaf.shape)} for {tuple(wanted.shape)}"
        elif (leaf.dtype, leaf.layout) != (wanted.dtype, wanted.layout):
            return f"has a tensor of {leaf.dtype}, {leaf.layout} for {wanted.dtype}, {wanted.layout}"
    return ""


def as_inputs(model: str, example: object) -> Inputs:
    """Return `example` as the arguments of one call, with tensors on the CPU and floating-point ones in float32."""
    import torch
    from torch.utils import _pytree as pytree

    call = call_of(example)
    if not isinstance(example, torch.Tensor) and any(argument is example for argument in call.args):
        raise UsageError(
            f"{model}: the example inputs are {_describe(example)}: "
            "expected a tensor, a tuple of positional arguments, a dict of keyword arguments, or a list of bakeoff.Call"
        )
    inputs = Inputs(call.args, call.kwargs)
    for leaf in pytree.tree_leaves((call.args, call.kwargs)):
        if not isinstance(leaf, torch.Tensor | int | float | complex | str | None):
            raise UsageError(f"{model}: {_describe(leaf)} among the example inputs: expected tensors and plain values")
    if not inputs.tensors():
        raise UsageError(f"{model}: no tensor among the example inputs: expected at least one")
    if not any(tensor.numel() for tensor in inputs.tensors()):
        raise UsageError(f"{model}: the example inputs have no elements: is a dimension 0 that is a size?")
    moved: dict[int, torch.Tensor] = {}

    def to_float32_on_cpu(tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) not in moved:  # one that is given twice stays one
            moved[id(tensor)] = _to_float32_on_cpu(tensor)
        return moved[id(tensor)]

    return inputs.map(to_float32_on_cpu)


def _to_float32_on_cpu(tensor: torch.Tensor) -> torch.Tensor:
    import torch

    moved = tensor.detach().to("cpu")
    if moved.is_complex():
        moved = moved.to(torch.complex64)
    elif moved.is_floating_point():
        moved = moved.to(torch.float32)
    return moved.requires_grad_(tensor.requires_grad)


def input_sets(inputs: Inputs, bolder: tuple[str, ...] = ()) -> tuple[Inputs, ...]:
    """Return `INPUT_SETS` sets, of which the first has the values of `inputs`. `bolder` names what changes besides."""
    from bakeoff.models.input_sets import input_sets_of

    sets = input_sets_of((inputs.args, dict(inputs.kwargs)), INPUT_SETS, bolder)
    return tuple(Inputs(args, kwargs) for args, kwargs in sets)


def _describe(value: object) -> str:
    """Describe `value` by its type, and a tuple or list also by the types in it."""
    if isinstance(value, tuple | list):
        return f"a {type(value).__name__} of ({', '.join(type(item).__name__ for item in value)})"
    return f"a value of type {type(value).__name__}"
