"""A user's own model: `path/to/file.py:factory`, or `package.module:factory` for what Python can import.

docs/recipes.md and docs/adding-a-model.md say what a factory takes and returns, how often it is called, and which other
functions its file may have.
"""

from __future__ import annotations

import ast
import importlib
import re
import sys
import weakref
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from functools import partial
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from bakeoff.models import importing, source_code
from bakeoff.models.base import Dimension, Family, LoadedModel, Pipeline, Sizes
from bakeoff.models.example_inputs import calibration_of, unpacked, with_own_inputs, with_stages
from bakeoff.models.lazily import nn, torch
from bakeoff.models.seeding import seeded
from bakeoff.records.errors import UsageError, first_line, is_misspelt, unknown

if TYPE_CHECKING:
    from bakeoff.models.file_variables import Variables

CALIBRATE, EXAMPLE = "calibrate", "example"

AROUND = frozenset(("before", "after", EXAMPLE))
"""Functions of a user's file that are the stages of a request around the model, and give the raw example."""

EVALUATE = "evaluate"
PREDICT = "predict"


_loaded: dict[str, UserModel] = {}
"""The models that this process has begun to load, by their names."""


_imported: dict[Path, Imported] = {}
"""The files that this process has imported and called a factory of."""


@dataclass
class Imported:
    module: ModuleType
    begun_with: tuple[bytes, int, Sizes]  # the file's content, the seed, and what is assigned in place of its values
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
        """Parse the file `source`, or that of the module `source`. Raise UsageError if the file, the module or the
        function is missing."""
        self.name = f"{source}:{function}"
        self.module = "" if source.endswith(".py") else source
        self.path = importing.file_of_module(source) if self.module else Path(source).expanduser()
        self.file = self.path.resolve()  # the process may change its folder
        self.folder = Path.cwd() if self.module else self.file.parent
        self.function = function
        self.tree = source_code.parse(self.path)
        if not self.module:
            source_code.refuse_relative_imports(source, function, self.tree)
        self.definition = self._required(function)

    def defined(self, name: str) -> ast.FunctionDef | None:
        """Return the file's top-level function of this name, or the one that `from package import name` leads to,
        without importing anything."""
        package = self.module if self.path.name == "__init__.py" else self.module.rpartition(".")[0]
        return source_code.function_in(self.tree, name, package, importing.places_from(self.folder))

    def _required(self, name: str) -> ast.FunctionDef:
        function = self.defined(name)
        if function is not None:
            return function
        factory = "A factory is a function that returns the model and the inputs of a call: def factory(batch: int = 1)"
        match source_code.others_of(self.tree).get(name):
            case ast.ClassDef():
                raise UsageError(
                    f"{name} in {self.path} is a class. {factory}: return {name}(...), torch.randn(batch, ...)"
                )
            case ast.AsyncFunctionDef(lineno=line):
                raise UsageError(
                    f"{name} in {self.path}, line {line}, is async, and a factory returns the model itself: write it "
                    "with def, and call asyncio.run inside"
                )
            case ast.stmt(lineno=line):
                raise UsageError(
                    f"{name} in {self.path}, line {line}, is not written with def at the top level, and Bakeoff reads "
                    f"the parameters before it runs the file. {factory}: return ..., torch.randn(batch, ...)"
                )
        functions = source_code.functions_of(self.tree)
        has_factory = "factory" in functions or any(map(source_code.may_return_model_and_inputs, functions.values()))
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
        name = self.module or importing.names[self.file]
        function: Callable[..., Any] = getattr(sys.modules.get(name) or self._import(), self.function)
        return function

    def make_importable(self) -> None:
        """Put the file's folder first on the search path of this process, where it stays for later imports. From then
        on the process finds the file under the name that pickles of its classes have."""
        entry = str(self.folder)
        sys.path[:] = [entry, *(path for path in sys.path if path != entry)]
        if not self.module and self.file not in importing.names:
            name = re.sub(r"\W", "_", f"bakeoff_user_{self.file.stem}")
            is_taken = name in importing.names.values()
            importing.names[self.file] = f"{name}_{len(importing.names)}" if is_taken else name
            sys.meta_path.insert(0, importing.UserFile(self.file, importing.names[self.file]))

    def _import(self, tree: ast.Module | None = None) -> ModuleType:
        """Import the file or the module. A file runs as the parsed `tree`, if it is given."""
        self.make_importable()
        if not self.module:
            return importing.import_file(self.file, tree)
        imported = importlib.import_module(self.module)
        if not imported.__file__ or not self.file.samefile(imported.__file__):
            raise UsageError(
                f"{self.name} is in {self.path}, but Python imports {imported.__file__} as '{self.module}': "
                "give one of them another name"
            )
        is_first = self.file not in importing.names
        importing.names[self.file] = self.module
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
        self.dimensions = self._dimensions()
        self.takes_seed = "seed" in {parameter.arg for parameter, _ in source_code.parameters_of(function)}
        self.around = frozenset(filter(self.defined, AROUND))
        self.calibrates = self._parameters_of(CALIBRATE) is not None
        evaluate = self.defined(EVALUATE)  # is not meant unless its first parameter is `predict`
        positional = [*evaluate.args.posonlyargs, *evaluate.args.args] if evaluate else []
        has_evaluate = [parameter.arg for parameter in positional[:1]] == [PREDICT]
        self.evaluated_by = f"{source}:{EVALUATE}" if has_evaluate else ""
        if not self.module:
            libraries = source_code.big_libraries_of(self.tree)
            folder = [str(self.folder)]  # which comes first where the file is imported
            has_own = any(PathFinder.find_spec(name.partition(".")[0], folder) for name in libraries)
            self.imports = () if has_own else libraries

    def _dimensions(self) -> dict[str, Dimension]:
        return source_code.dimensions_of(self.name, self.definition)

    def _parameters_of(self, name: str) -> AbstractSet[str] | None:
        """Return which of the factory's parameters a function of the file takes, or None without such a function.
        Raise UsageError for a parameter that it needs and the factory has not."""
        function, of_factory = self.defined(name), {*self.dimensions, "seed"}
        if function is None:
            return None
        parameters = {parameter.arg: default for parameter, default in source_code.parameters_of(function)}
        others = {other: default for other, default in parameters.items() if other not in of_factory}
        unused = of_factory - parameters.keys()
        if missing := [other for other, default in others.items() if default is None or is_misspelt(other, unused)]:
            # an imported function of this name is not meant
            if function not in self.tree.body:
                return None
            where = f"{name} takes the factory's; rename a function that serves something else"
            raise unknown(f"parameter of {name}() for {self.name}", missing[0], of_factory, where)
        return parameters.keys() & of_factory

    def _called(self, module: ModuleType, name: str, dimensions: Sizes, seed: int) -> Any:
        """Return what a function of the file returns for those of the factory's parameters that it takes."""
        arguments, takes = {**dimensions, "seed": seed}, self._parameters_of(name) or ()
        return getattr(module, name)(**{parameter: arguments[parameter] for parameter in takes})

    def made(self, dimensions: Sizes, seed: int) -> Any:
        """Return whatever the factory does, such as a pipeline and an example call of it."""
        with seeded(seed):
            return self._run(dimensions, seed)[1]

    def load(self, dimensions: Sizes, seed: int) -> LoadedModel:
        """Run the factory. Raise UsageError if it does not return a model; its own exceptions pass through."""
        with seeded(seed):
            imported, returned = self._run(dimensions, seed)
            call = partial(self._called, imported, dimensions=dimensions, seed=seed)
            own: dict[str, Any] = {
                name: partial(call, name) if name == EXAMPLE else getattr(imported, name) for name in self.around
            }
            module, example, around = with_stages(self.name, *unpacked(self.name, returned), **own)
        model = replace(with_own_inputs(self.name, module, example), around=around)
        if not self.calibrates:
            return model
        calibrate = partial(calibration_of, self.name, partial(call, CALIBRATE), seed)
        return replace(model, calibrate=calibrate, calibrates_with=f"calibrate() in {self.path.name}")

    def _run(self, dimensions: Sizes, seed: int) -> tuple[ModuleType, Any]:
        """Call the factory as a process does that has just imported the file with this seed."""
        _loaded[self.name] = self
        tree = self._tree_for(dimensions)
        begun_with = self.file.read_bytes(), seed, dimensions if tree else {}
        make = partial(self._make, dimensions=dimensions, seed=seed)
        earlier = _imported.get(self.file)
        is_same = earlier is not None and earlier.begun_with == begun_with
        may_share = is_same and earlier is not None and not earlier.is_in_use
        if earlier and may_share and (returned := self._make_in(earlier, make)) is not None:
            return earlier.module, returned
        torch.default_generator.manual_seed(seed)
        try:
            module = self._import(tree)
        except Exception as error:
            if earlier is None or not is_same:
                raise
            if earlier.is_in_use and (returned := self._make_in(earlier, make)) is not None:
                return earlier.module, returned
            raise UsageError(
                f"{self.path} keeps the model, or a tensor that a call has written into, and cannot be imported a "
                f"second time: {first_line(error)}: make them inside of {self.function}()"
            ) from error
        _imported[self.file] = Imported(module, begun_with, torch.get_rng_state())
        return module, self._make_in(_imported[self.file], make)

    def _tree_for(self, dimensions: Sizes) -> ast.Module | None:
        """Return what the file runs as with these dimensions, or None where it runs as it is."""
        return None

    def _make(self, module: ModuleType, dimensions: Sizes, seed: int) -> Any:
        return getattr(module, self.function)(**dimensions, **({"seed": seed} if self.takes_seed else {}))

    def _make_in(self, imported: Imported, make: Callable[[ModuleType], Any]) -> Any:
        """Make the model as a process does that has just imported the file. Return None where the file keeps it."""
        from bakeoff.models.file_variables import Variables

        if imported.variables is not None and not imported.variables.put_back():
            return None
        torch.set_rng_state(imported.random_state)
        returned = make(imported.module)
        if imported.keeps(returned):
            return None
        imported.variables = imported.variables or Variables(imported.module, source_code.imports_of(self.tree))
        return returned

    def keep_apart(self) -> None:
        """Have the next load import the file anew, if that works: an earlier model stays in use, with its variables."""
        if self.file in _imported:
            _imported[self.file].is_in_use = True


def _own_parts(returned: object) -> list[Any]:
    """Return the modules that a factory has returned, their parameters, and the parts that hold tensors."""
    values = returned if isinstance(returned, tuple | list) else (returned,)
    roots = [value.model if isinstance(value, Pipeline) else value for value in values]
    modules = [root for root in roots if isinstance(root, nn.Module)]
    parts = [part for root in modules for part in root.modules() if part is root or part._parameters or part._buffers]
    return [*parts, *(parameter for root in modules for parameter in root.parameters())]


def loaded(name: str) -> UserModel | None:
    """Return the user's model of this name that this process has begun to load, if there is one."""
    return _loaded.get(name)
