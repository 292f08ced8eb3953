"""A space as written in YAML, and the ready ones by name.

block_size       block size alone; any other effective change between its trials is an error
pool_policy      how the pool is shared, kept and handed out, over equal bytes
joint            block size, policy and limits together; a device's bytes are fixed, the pool gets what is left
vllm             what vLLM has of these, in sizes that its attention backends take
vllm_hybrid      models whose blocks are forced large: where steps of reuse bite
transformers     what Hugging Face's continuous batching has of these
"""

from importlib import resources
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, model_validator

from search_spaces.dimension import Varied, known_field
from trials.documents import read_yaml, validated
from trials.units import SpecError, nearest

READY = ("block_size", "pool_policy", "joint", "vllm", "vllm_hybrid", "transformers")


class SpaceSpec(BaseModel):
    """`vary` maps fields of a trial (`policy.block_size`) to how they move."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = "custom"
    isolates: Literal["block_size"] | None = None  # fix pool bytes plus device block tables, hold all else
    fixes: Literal["device_budget"] | None = None  # how the pool has to be given: it gets what is left of it
    vary: dict[str, Varied] = Field(min_length=1)

    @model_validator(mode="after")
    def _fields_exist(self) -> "SpaceSpec":
        seen: list[str] = []
        for name, varied in self.vary.items():
            for other in (name, *varied.when):
                try:
                    known_field(other)
                except ValueError as error:
                    raise ValueError(f"vary: {error}") from None
            late = [other for other in varied.when if other in self.vary and other not in seen]
            if late:
                raise ValueError(f"vary: {name!r} depends on {late[0]!r}, which has to stand before it")
            seen.append(name)
        if self.isolates and tuple(self.vary) != (f"policy.{self.isolates}",):
            raise ValueError(f"isolates {self.isolates}: then it is the only field that may vary")
        sized = [name for name in self.vary if name in ("pool.bytes", "pool.blocks", "pool.device_budget")]
        if len(sized) > 1 or (sized and self.fixes):
            raise ValueError(f"vary: {sized[-1]}: a pool is given in one way, and not both fixed and moved")
        return self


def load_space_spec(name_or_path: str, folder: Path = Path()) -> SpaceSpec:
    """A YAML file (relative to `folder`), or a ready space by its name, with or without `.yaml`."""
    path = folder / name_or_path
    ready = name_or_path.removesuffix(".yaml")
    if ready in READY and (ready == name_or_path or not path.is_file()):
        text = resources.files("search_spaces").joinpath(f"{ready}.yaml").read_text(encoding="utf-8")
        return space_spec(yaml.safe_load(text), ready)
    if not name_or_path.endswith((".yaml", ".yml")):
        raise SpecError(f"space {name_or_path!r} does not exist; {nearest(name_or_path, READY)}, or a .yaml file")
    return space_spec(read_yaml(path), str(path))


def space_spec(data: Any, source: str = "space") -> SpaceSpec:
    """Validate a mapping; every error is a SpecError."""
    return validated(SpaceSpec, data, source)
