"""YAML documents as people write them: read strictly, validated against a model, and complained about in words."""

import re
import typing
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from trials.units import SpecError, folder_words, nearest, shown

Model = TypeVar("Model", bound=BaseModel)
_WORDS = {
    "int_type": "a whole number is needed", "int_parsing": "a whole number is needed",
    "int_from_float": "a whole number is needed", "float_type": "a number is needed",
    "float_parsing": "a number is needed", "finite_number": "a finite number is needed",
    "bool_type": "true or false is needed", "bool_parsing": "true or false is needed",
    "string_type": "a text is needed", "model_type": "a mapping of keys is needed",
    "model_attributes_type": "a mapping of keys is needed", "dict_type": "a mapping of keys is needed",
    "tuple_type": "a list is needed", "list_type": "a list is needed", "literal_error": "must be {expected}",
    "greater_than": "must be above {gt}", "greater_than_equal": "must be at least {ge}",
    "less_than": "must be below {lt}", "less_than_equal": "must be at most {le}",
    "union_tag_not_found": "the key {discriminator} is needed",
    "union_tag_invalid": "{tag!r} does not exist; known: {expected_tags}",
}  # fmt: skip
_NO_TEXT = re.compile("[\0\ud800-\udfff]")  # escapes can say them; UTF-8 and paths cannot
_ENDS, _END = "The last line is `# end`.", "# end"
_MOST_BYTES = 16 << 20
_MOST_VALUES = 1_000_000  # after aliases are expanded: a short text can stand for billions


class _Loader(yaml.SafeLoader):
    """Plain values only; dates stay text."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith(":timestamp")]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def with_end(heading: str, text: str) -> str:
    """A YAML text under a heading, with an end by which `read_yaml` tells whether it was cut: what is left of a
    mapping most often reads as one, and defaults would take the place of what it lost."""
    return f"# {heading} {_ENDS}\n{text}{_END}\n"


def read_yaml(path: Path) -> dict[str, Any]:
    """A YAML mapping from a file, or a SpecError that names the file and the line."""
    try:
        with path.open("rb") as file:
            data = file.read(_MOST_BYTES + 1)  # a device says that it has no bytes, and never ends
        if len(data) > _MOST_BYTES:
            raise SpecError(f"{path}: over {_MOST_BYTES} bytes, which is no specification")
        text = data.decode("utf-8")
    except FileNotFoundError:
        raise SpecError(f"{path}: no such file") from None
    except IsADirectoryError:
        raise SpecError(folder_words(path, "a YAML file", ".yaml")) from None
    except OSError as error:
        said = (error.strerror or str(error)).lower()
        raise SpecError(f"{path}: cannot be read: {said}; check the path and its permissions") from None
    except UnicodeDecodeError as error:
        raise SpecError(f"{path}: cannot be read as text: {error}") from None
    if _ENDS in text.partition("\n")[0] and text.rstrip().rpartition("\n")[2] != _END:
        raise SpecError(f"{path}: cut short: its last line, `{_END}`, is missing; restore it from a copy")
    return parse_yaml(text, str(path))


def parse_yaml(text: str, source: str) -> dict[str, Any]:
    """A YAML mapping from a text. A key that stands twice is refused: one of the two would be lost."""
    data = parse_value(text, source)
    if not isinstance(data, dict):
        raise SpecError(
            f"{source}: a mapping of keys is needed, found {'nothing' if data is None else shown(data)}"
        )
    odd = [key for key in data if not isinstance(key, str)]
    if odd:
        raise SpecError(f"{source}: key {shown(odd[0])} is not a text")
    return data


def parse_value(text: str, source: str) -> Any:
    """Any YAML value from a text, read as strictly."""
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is None:
            return None
        _check_node(node, {}, source)
        return loader.construct_document(node)
    except SpecError:
        raise
    except RecursionError:
        raise SpecError(f"{source}: not valid YAML: nested too deep") from None
    except (yaml.YAMLError, ValueError, LookupError, AttributeError) as error:
        # The last two come from the loader where a tag is put on what it does not fit: `!!bool perhaps`.
        raise SpecError(f"{source}: not valid YAML: {error}") from None


def _check_node(node: yaml.Node, sizes: dict[int, int], source: str) -> int:
    """Number of values below a node, aliases expanded; refuses loops, floods and what would be lost."""
    if id(node) in sizes:
        if sizes[id(node)] < 0:
            raise SpecError(f"{source}: an alias contains itself{_place(node)}")
        return sizes[id(node)]
    sizes[id(node)] = -1
    children: list[yaml.Node] = []
    if isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, value in node.value:
            children += [key, value]
            if isinstance(key, yaml.ScalarNode) and key.value in seen and key.value != "<<":
                raise SpecError(f"{source}: key {shown(key.value)} stands twice{_place(key)}; keep one")
            seen.add(key.value if isinstance(key, yaml.ScalarNode) else "")
    elif isinstance(node, yaml.SequenceNode):
        children = node.value
    elif _NO_TEXT.search(node.value):
        raise SpecError(f"{source}: a text holds a character that no file and no name can{_place(node)}")
    sizes[id(node)] = 1 + sum(_check_node(child, sizes, source) for child in children)
    if sizes[id(node)] > _MOST_VALUES:
        raise SpecError(f"{source}: over {_MOST_VALUES} values after its aliases are expanded{_place(node)}")
    return sizes[id(node)]


def _place(node: yaml.Node) -> str:
    mark = node.start_mark
    return f" (line {mark.line + 1})" if mark is not None else ""


def validated(model: type[Model], data: dict[str, Any], source: str) -> Model:
    """An instance of `model`; every error is a SpecError that names the key.

    `source`: the file, in whose folder relative paths lie that have to be looked into here.
    """
    try:
        return model.model_validate(data, context={"folder": Path(source).parent})
    except ValidationError as error:
        raise explained(error, source, model) from None


def explained(error: ValidationError, source: str, model: type[BaseModel]) -> SpecError:
    """pydantic's errors, each: where, what was there, what is known."""
    lines = []
    for item in error.errors(include_url=False):
        # Where a key takes one of several kinds, pydantic's name of a kind that has a validator stands in the way.
        parts = [str(part)[:60] for part in item["loc"] if not str(part).startswith("function-")]
        where = ".".join(parts) or "top level"
        message = item["msg"].removeprefix("Value error, ")
        if item["type"] == "extra_forbidden":
            lines.append(f"{where}: unknown key; {_known_keys(model, item['loc'])}")
        elif item["type"] == "missing":
            lines.append(f"{where}: this key is needed")
        elif item["type"] == "value_error":
            lines.append(f"{where}: {message}")  # our own words say what was there
        else:
            known = _WORDS.get(item["type"])
            words = known.format_map(item.get("ctx", {})) if known else message
            lines.append(f"{where}: {words}; found {shown(item.get('input'))}")
    return SpecError(f"{source}:\n  " + "\n  ".join(lines))


def _known_keys(model: type[BaseModel], loc: tuple[int | str, ...]) -> str:
    """The keys allowed where an unknown one stood."""
    candidates: list[type[BaseModel]] = [model]
    for part in loc[:-1]:
        fields = [c.model_fields[part] for c in candidates if isinstance(part, str) and part in c.model_fields]
        if fields:
            candidates = [m for field in fields for m in _models_in(field.annotation)]
        else:  # an index, or the tag of a union's member
            candidates = [c for c in candidates if part in _literals(c)] or candidates
    return nearest(str(loc[-1]), {name for c in candidates for name in c.model_fields})


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [m for inner in typing.get_args(annotation) for m in _models_in(inner)]


def _literals(model: type[BaseModel]) -> set[Any]:
    return {value for field in model.model_fields.values() for value in typing.get_args(field.annotation)}
