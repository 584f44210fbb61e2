"""Which libraries of a user's file fork servers may import before it."""

import ast
from pathlib import Path

import pytest

from bakeoff import models
from bakeoff.models.source_code import big_libraries_of

FACTORY = "def factory():\n    return None\n"


@pytest.mark.parametrize(
    ("source", "modules"),
    [
        ("import torch\nfrom transformers import BertModel", ("transformers.modeling_utils", "transformers.BertModel")),
        ("import numpy as np\nimport timm.models\nimport torchvision as tv", ("timm", "torchvision")),
        (
            "def factory():\n    from diffusers import UNet2DModel",
            ("diffusers.models.modeling_utils", "diffusers.UNet2DModel"),
        ),
        ("from torchvision.ops import *", ("torchvision",)),
        ("import torch\nclass Net:\n    def __init__(self):\n        self.torch = torch", ()),
        ("import timm\nclass Net:\n    def __init__(self):\n        self.timm = timm", ("timm",)),
        ("import mine\nimport timm", ()),
        ("from . import mine\nimport timm", ()),
        ("from .mine import net\nimport timm", ()),
        ("import os\nos.environ['TIMM_FUSED_ATTN'] = '0'\nimport timm", ()),
        ("from os import environ as settings\nsettings['A'] = '0'\nimport timm", ()),
        ("import os as system\nsystem.putenv('A', '0')\nimport timm", ()),
        ("import sys\nsys.path.insert(0, 'old')\nimport timm", ()),
        ("import torch\ntorch.backends.cudnn.enabled = False\nimport timm", ()),
        ("import torch.nn.functional as F\nF.gelu = F.relu\nimport timm", ()),
        ("import torch\nsetattr(torch, 'compile', None)\nimport timm", ()),
        ("exec(open('settings.py').read())\nimport timm", ()),
    ],
)
def test_libraries_are_shared_unless_the_file_may_change_their_import(source: str, modules: tuple[str, ...]) -> None:
    assert big_libraries_of(ast.parse(source)) == modules


def test_a_library_of_the_users_own_is_not_the_installed_one(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(f"import timm\n{FACTORY}")
    assert models.find(f"{tmp_path}/net.py:factory").imports == ("timm",)
    (tmp_path / "timm.py").write_text("")
    assert models.find(f"{tmp_path}/net.py:factory").imports == ()
