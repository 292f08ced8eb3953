"""YAML read strictly: nothing lost, nothing unbounded, every complaint in words."""

from pathlib import Path
from typing import Annotated, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field

from trials.documents import parse_yaml, read_yaml, validated
from trials.units import SpecError


class Circle(BaseModel):
    model_config = ConfigDict(extra="forbid")
    kind: Literal["circle"]
    radius: int = Field(ge=1)


class Box(BaseModel):
    model_config = ConfigDict(extra="forbid")
    kind: Literal["box"]
    width: float


class Drawing(BaseModel):
    model_config = ConfigDict(extra="forbid")
    title: str = ""
    shapes: list[Annotated[Circle | Box, Field(discriminator="kind")]]


def test_a_mapping_comes_back_as_written() -> None:
    assert parse_yaml("a: 1\nb: {c: [1.5, x, true, null]}\n", "s") == {"a": 1, "b": {"c": [1.5, "x", True, None]}}


def test_dates_stay_text() -> None:
    assert parse_yaml("a: 2030-01-01\n", "s") == {"a": "2030-01-01"}


def test_merges_and_aliases_work() -> None:
    text = "base: &b {x: 1, y: 2}\nuse:\n  <<: *b\n  y: 3\nagain: *b\n"
    assert parse_yaml(text, "s") == {"base": {"x": 1, "y": 2}, "use": {"x": 1, "y": 3}, "again": {"x": 1, "y": 2}}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a: 1\nb: 2\na: 3\n", r"key 'a' stands twice \(line 3\)"),
        ("x:\n  a: 1\n  a: 1\n", r"key 'a' stands twice \(line 3\)"),
        ("a: [1\n", "not valid YAML"),
        ("a: !!python/object/apply:os.system [ls]\n", "not valid YAML"),
        ("- 1\n- 2\n", "a mapping of keys is needed, found a list of 2"),
        ("", "found nothing"),
        ("just words", "found 'just words'"),
        ("1: a\n", "key 1 is not a text"),
        ("a: &x [*x]\n", "an alias contains itself"),
        ("a: 1\n---\nb: 2\n", "not valid YAML"),
        ("a: \x00\n", "not valid YAML"),
        ("a: " + "[" * 5000, "not valid YAML"),
        ("? [1, 2]\n: 3\n", "not valid YAML|not a text"),
        ("a: !!bool perhaps\n", "not valid YAML"),
        ("a: !!int ''\n", "not valid YAML"),
        ("a: !!timestamp noon\n", "not valid YAML"),
        ("a: " + "1" * 5000, "not valid YAML"),
        ('a: 1\nb: ["x\\0y"]\n', r"no file and no name can \(line 2\)"),
        ('a: "\\ud800"\n', "no file and no name can"),
    ],
)
def test_what_is_no_mapping_is_refused(text: str, reason: str) -> None:
    with pytest.raises(SpecError, match=reason) as caught:
        parse_yaml(text, "file.yaml")
    assert "file.yaml" in str(caught.value)
    assert len(str(caught.value)) < 1_000


def test_a_short_text_that_stands_for_billions_is_refused() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
    with pytest.raises(SpecError, match="over 1000000 values after its aliases are expanded"):
        parse_yaml("\n".join(lines), "bomb.yaml")


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"absent\.yaml: no such file"):
        read_yaml(tmp_path / "absent.yaml")
    with pytest.raises(SpecError, match="this is a folder, and a YAML file is needed; name the file itself"):
        read_yaml(tmp_path)
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SpecError, match="binary: cannot be read as text"):
        read_yaml(tmp_path / "binary")


def test_a_device_that_never_ends_is_refused() -> None:
    with pytest.raises(SpecError, match="which is no specification"):
        read_yaml(Path("/dev/zero"))


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ({"shapes": [], "titel": 1}, "titel: unknown key; did you mean 'title'. known: shapes, title"),
        ({"shapes": [{"kind": "circle", "radus": 1, "radius": 1}]}, "shapes.0.circle.radus: unknown key; did you "
         "mean 'radius'. known: kind, radius$"),
        ({"shapes": [{"kind": "circle", "radius": 0}]}, "shapes.0.circle.radius: must be at least 1; found 0"),
        ({"shapes": [{"kind": "circle"}]}, "shapes.0.circle.radius: this key is needed"),
        ({"shapes": [{"kind": "cirle"}]}, "shapes.0: 'cirle' does not exist; known: 'circle', 'box'"),
        ({"shapes": [{"radius": 1}]}, "shapes.0: the key 'kind' is needed"),
        ({"shapes": [3]}, "shapes.0: .*found 3"),
        ({"shapes": "x" * 1000}, "shapes: a list is needed; found 'xxx"),
    ],
)  # fmt: skip
def test_validation_says_where_what_and_what_is_known(data: dict[str, object], reason: str) -> None:
    with pytest.raises(SpecError, match=reason) as caught:
        validated(Drawing, data, "d.yaml")
    assert str(caught.value).startswith("d.yaml:\n  ")
    assert len(str(caught.value)) < 400
