"""Whether a table of step times may be used: the model and engine that it was measured on, and its reach."""

from collections.abc import Mapping

import numpy as np

from trials.fingerprint import canonical_json, digest
from trials.model import ModelSpec
from trials.recording import Ints
from trials.spec import EngineSpec
from trials.step_tables import StepTable, load_table
from trials.units import SpecError

_EDGE = 0.05  # beyond the region by less than this share is still inside


def model_digest(model: ModelSpec) -> str:
    """What a model is to a step time: its shape, whatever it is called."""
    return digest(canonical_json(model.model_dump(mode="json", exclude={"name", "path"})).encode())


def require_model(table: StepTable, model: ModelSpec) -> None:
    """SpecError where the table was measured on another model shape."""
    if table.model_digest and table.model_digest != model_digest(model):
        raise SpecError(
            f"step_time table: measured on another model ({table.model or 'unnamed'}), not on {model.name}; "
            "calibrate with this one"
        )


def require_engine(table: StepTable, engine_hash: str) -> None:
    """SpecError where the table was measured on another engine than the one that it is to stand for."""
    if table.engine_hash != engine_hash:
        known = table.engine_hash[:12] or "no engine that it names"
        raise SpecError(
            f"step_time table: measured on {known}, it is to stand for {engine_hash[:12]}: another engine, or the "
            "same one changed since; measure it again with `kvknee calibrate`"
        )


def require_stands_for(engine: EngineSpec) -> None:
    """`engine.args.stands_for`: the hash of the engine that the times must have been measured on. SpecError."""
    wanted = engine.args.get("stands_for")
    if wanted is None:
        return
    if engine.table is None:
        raise SpecError(
            f"engine.args.stands_for needs step times that were measured: a table, not {engine.step_time}; make one"
            " with `kvknee calibrate` and name it as engine.step_time=table:FILE, or leave stands_for out"
        )
    require_engine(load_table(engine.table), str(wanted))


def outside(table: StepTable, steps: Mapping[str, Ints], block_size: int) -> str:
    """Words where steps of a replay lie beyond what was measured; empty where none does, or nothing is known."""
    region = table.region
    if region is None:
        return ""
    decodes, chunks = steps["num_decodes"], steps["num_chunks"]
    beyond = {
        "decoding sequences": (decodes, region.num_decodes),
        "mean context": (steps["decode_context"] / np.maximum(decodes, 1), region.mean_context),
        "computed tokens": (decodes + steps["chunk_tokens"], region.tokens),
        "context in front of a chunk": (steps["chunk_context"] / np.maximum(chunks, 1), region.mean_before),
    }
    ran = (decodes + chunks) > 0
    said = []
    for name, (values, most) in beyond.items():
        over = ran & (values > most * (1 + _EDGE))
        if over.any():
            share = float(over.sum() / ran.sum())
            said.append(
                f"{name} up to {float(values[over].max()):.4g} in {share:.1%} of the steps, measured to {most:.4g}"
            )
    sizes = region.block_sizes
    if sizes and not min(sizes) <= block_size <= max(sizes):
        said.append(f"block size {block_size}, measured {min(sizes)} to {max(sizes)}")
    return f"step times beyond what the table measured: {'; '.join(said)}" if said else ""
