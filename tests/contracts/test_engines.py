"""One suite over all engines that the ordinary environment has; the others' are in tests_engines/.

The tensors of any device run it in tests/benchmarks/test_gpu_check.py, without a GPU; with one, here.
"""

import pytest

from tests.contracts.engine_laws import LAWS, Laboratory
from trials.engines.kernels.choice import missing

LABORATORIES = {
    "simulator": Laboratory("simulator", extra={"step_time": "linear:4000,40,10"}),
    "torch_paged": Laboratory("torch_paged"),
}
HALF = {"head_dim": 64, "dtype": "float16", "kv_dtype": "float16"}  # what CUDA's paged kernels take


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
@pytest.mark.parametrize("lab", LABORATORIES.values(), ids=LABORATORIES)
def test_engine_keeps_its_contract(lab, law) -> None:
    law(lab)


@pytest.mark.gpu
@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
@pytest.mark.parametrize("kernel", ["flashinfer", "torch_varlen", "gather"])
def test_engine_keeps_its_contract_on_cuda(kernel, law) -> None:
    import torch

    if not torch.cuda.is_available():
        pytest.skip("torch sees no CUDA device here")
    if (why := missing(kernel)) is not None:
        pytest.skip(why)
    law(Laboratory("torch_paged", extra={"device": "cuda", "args": {"kernel": kernel}}, shape=HALF))
