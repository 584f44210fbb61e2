"""Places of a pool: how they are named, which are refused, and how cores are divided among GPUs."""

from pathlib import Path

import pytest

from bakeoff.planning import places
from bakeoff.records.errors import UsageError

ONE_THREAD_EACH = {core: core for core in range(8)}
TWO_THREADS_EACH = {core: core % 4 for core in range(8)}
"""As Linux often numbers them: 0 and 4 are threads of one physical core."""


def cores_of(*devices: str, siblings: dict[int, int] = ONE_THREAD_EACH) -> dict[str, tuple[int, ...]]:
    return {place.name: place.cores for place in places.places_of(devices, range(8), siblings)}


def test_one_device_of_a_kind_is_no_pool() -> None:
    assert not any(map(places.is_pool, [(), ("cpu",), ("cuda",), ("cuda:1",), ("cpu", "cuda:1")]))
    assert cores_of("cpu", "cuda:1") == {}
    assert places.devices_of_cells(["cpu", "cuda:1"]) == ["cpu", "cuda:1"]


def test_sets_of_cores_are_a_pool_whose_cells_run_on_the_cpu() -> None:
    assert places.devices_of_cells(["cpu:0-1", "cpu:2-3"]) == ["cpu"]
    assert cores_of("cpu:0-1", "cpu:2-3") == {"cpu:0-1": (0, 1), "cpu:2-3": (2, 3)}
    assert cores_of("cpu:0+4", "cpu:1+5", siblings=TWO_THREADS_EACH) == {"cpu:0+4": (0, 4), "cpu:1+5": (1, 5)}


def test_gpus_are_a_pool_that_divides_the_physical_cores() -> None:
    assert places.devices_of_cells(["cuda:all"]) == places.devices_of_cells(["cuda", "cuda:1"]) == ["cuda"]
    assert cores_of("cuda:0", "cuda:2") == {"cuda:0": (0, 1, 2, 3), "cuda:2": (4, 5, 6, 7)}
    assert cores_of("cuda:0", "cuda:1", siblings=TWO_THREADS_EACH) == {"cuda:0": (0, 1, 4, 5), "cuda:1": (2, 3, 6, 7)}
    with pytest.raises(UsageError, match="2 contests side by side need as many cores, and this process may use 1"):
        places.divide_cores([3], {}, 2)


def test_all_gpus_of_a_machine_with_one_are_no_pool() -> None:
    assert places.without_all(["cuda:all"], gpus=3) == ("cuda:0", "cuda:1", "cuda:2")
    assert places.without_all(["cuda:all"], gpus=1) == ("cuda",)
    assert places.without_all(["cpu"], gpus=3) == ("cpu",)


def test_a_place_shows_its_gpu_alone() -> None:
    second = places.places_of(["cuda:0", "cuda:1"], range(8), {})[1]
    assert second.variables({"PATH": "/bin"}) == {"PATH": "/bin", "CUDA_VISIBLE_DEVICES": "1"}
    assert second.variables({"CUDA_VISIBLE_DEVICES": "GPU-a,GPU-b"}) == {"CUDA_VISIBLE_DEVICES": "GPU-b"}
    assert places.places_of(["cpu:0"], range(8), {})[0].variables({"A": "b"}) == {"A": "b"}


@pytest.mark.parametrize(
    ("devices", "said"),
    [
        (["cpu:0-"], "--devices cpu:0-: write a set of cores as cpu:0-3"),
        (["gpu:1", "cpu:0"], "unknown device 'gpu:1'"),
        (["cpu:0", "cuda"], "stand alone"),
        (["cpu", "cpu:0"], "stand alone"),
        (["cpu", "cuda:0", "cuda:1"], "stand alone"),
    ],
)
def test_a_pool_that_makes_no_sense_is_refused_before_anything_starts(devices: list[str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        places.devices_of_cells(devices)


@pytest.mark.parametrize(
    ("devices", "said"),
    [
        (["cpu:0-2", "cpu:2-4"], "a core is in two sets"),
        (["cpu:0-1", "cpu:2"], "all sets need as many cores"),
        (["cpu:0", "cpu:9"], "may use the cores 0, 1, 2, 3, 4, 5, 6, 7, and not 9"),
        (["cpu:0", "cpu:4"], "threads of one physical core"),
        (["cuda", "cuda:0"], "a GPU is named twice"),
    ],
)
def test_places_that_overlap_or_do_not_exist_are_refused(devices: list[str], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        cores_of(*devices, siblings=TWO_THREADS_EACH)


def test_threads_of_one_physical_core_are_read_from_linux(tmp_path: Path) -> None:
    for core, siblings in {0: "0,4", 1: "1", 4: "0,4"}.items():
        topology = tmp_path / f"cpu{core}" / "topology"
        topology.mkdir(parents=True)
        (topology / "thread_siblings_list").write_text(siblings + "\n")
    assert places.physical_cores([0, 1, 4, 7], tmp_path) == {0: 0, 1: 1, 4: 0}
