"""Files that trials rest on, kept once a sweep under their digest; and the trace as an MLflow dataset.

The run's artifact `content/trace-DIGEST.parquet` is what `reproduce runs:/ID` takes its trace from.
"""

import json
import tempfile
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from orchestrator.entries import Content
from trials.fingerprint import file_digest, trace_hash
from trials.parquet_footer import FooterError
from trials.trace import COLUMNS, TraceError, load_trace

FOLDER = "content"
_DIGEST_CHARS = 32  # a store takes 36; the whole digest is a tag
_MOST_BYTES = 4 << 30


def keep(client: Any, run_id: str, content: Content) -> str:
    """Upload it unless the run has it -> "" or why it was left out. Never another file under this digest."""
    known = {Path(f.path).name for f in client.list_artifacts(run_id, FOLDER)}
    if content.name in known:
        return ""
    if why := _differs(content):
        return why
    with tempfile.TemporaryDirectory(prefix="kvknee-content-") as folder:
        named = Path(folder) / content.name  # a store calls an artifact what its file is called
        named.symlink_to(content.path.resolve())
        client.log_artifact(run_id, str(named), FOLDER)
    return ""


def _differs(content: Content) -> str:
    """Why the file is not what the digest says; empty where it is."""
    try:
        size = content.path.stat().st_size
        if size > _MOST_BYTES:
            return f"{content.path}: {size} bytes, more than the {_MOST_BYTES} that are kept"
        if content.kind == "trace":
            found = trace_hash(load_trace(content.path))
        else:
            found = file_digest(content.path)
    except (OSError, TraceError, FooterError) as error:
        return f"{content.path}: cannot be read any more: {error}"
    return "" if found == content.digest else f"{content.path}: changed since the sweep began"


def dataset(content: Content, run_id: str) -> Any:
    """The trace as a dataset: what it is called, 32 characters of its hash, its columns, and where its file is."""
    from mlflow.data.code_dataset_source import CodeDatasetSource
    from mlflow.data.meta_dataset import MetaDataset
    from mlflow.entities import Dataset
    from mlflow.types.schema import ColSpec, DataType, Schema

    source = CodeDatasetSource({"kvknee.trace_hash": content.digest, "artifact": _artifact_uri(run_id, content)})
    columns = Schema([ColSpec(DataType.long, name) for name in COLUMNS])
    found = MetaDataset(source, name=content.path.stem, digest=content.digest[:_DIGEST_CHARS], schema=columns)
    profile = json.dumps({"num_rows": pq.read_metadata(content.path).num_rows, "trace_hash": content.digest})
    return Dataset.from_dictionary({**found.to_dict(), "profile": profile})


def _artifact_uri(run_id: str, content: Content) -> str:
    return f"runs:/{run_id}/{FOLDER}/{content.name}"


def use(client: Any, run_id: str, what: Any, digest: str) -> None:
    """The run says which trace it replayed. The store keeps a dataset once an experiment."""
    from mlflow.entities import DatasetInput, InputTag

    tags = [InputTag(name, word) for name, word in words_of(digest).items()]
    client.log_inputs(run_id, datasets=[DatasetInput(what, tags)])


def words_of(digest: str) -> dict[str, str]:
    """What a run says of the dataset that it uses."""
    return {"mlflow.data.context": "replay", "kvknee.trace_hash": digest}
