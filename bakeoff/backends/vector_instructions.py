"""What torch finds out about the C++ compiler and the CPU's vector instructions, which builds are given."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch._inductor import cpu_vec_isa


def try_vector_instructions() -> dict[str, bool]:
    """Have torch try the C++ compiler with each kind of vector instructions of this CPU, and return its answers."""
    from torch._inductor import cpu_vec_isa

    answers: dict[str, bool] = {}
    ask = cpu_vec_isa.VecISA.check_build

    def check_build(kind: cpu_vec_isa.VecISA, code: str) -> bool:
        answers[_name_of_check(kind, code)] = works = ask(kind, code)
        return works

    has = set(cpu_vec_isa.x86_isa_checker())
    kinds = [kind for kind in cpu_vec_isa.supported_vec_isa_list if has.issuperset(str(kind).split())]
    cpu_vec_isa.VecISA.check_build = check_build  # type: ignore[method-assign,assignment]
    try:
        # torch tries one after the other, each in a process: that took 22 s with torch 2.11 on an H200 machine
        with ThreadPoolExecutor() as pool:
            list(pool.map(bool, kinds))
        cpu_vec_isa.valid_vec_isa_list()
    finally:
        cpu_vec_isa.VecISA.check_build = ask  # type: ignore[method-assign]
    return answers


def trust_vector_instructions(answers: Mapping[str, bool]) -> None:
    from torch._inductor import cpu_vec_isa

    ask = cpu_vec_isa.VecISA.check_build

    def check_build(kind: cpu_vec_isa.VecISA, code: str) -> bool:
        answer = answers.get(_name_of_check(kind, code))
        return ask(kind, code) if answer is None else answer

    cpu_vec_isa.VecISA.check_build = check_build  # type: ignore[method-assign,assignment]


def _name_of_check(kind: cpu_vec_isa.VecISA, code: str) -> str:
    return hashlib.sha256(f"{kind.build_arch_flags()} {code}".encode()).hexdigest()[:16]
