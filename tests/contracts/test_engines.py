"""One suite over all engines that the ordinary environment has; the others' are in tests_engines/.

On a GPU it is run by benchmarks/gpu_check.py, which tests/benchmarks/test_gpu_check.py rehearses without one.
"""

import pytest

from tests.contracts.engine_laws import LAWS, Laboratory

LABORATORIES = {
    "simulator": Laboratory("simulator", extra={"step_time": "linear:4000,40,10"}),
    "torch_paged": Laboratory("torch_paged"),
}


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
@pytest.mark.parametrize("lab", LABORATORIES.values(), ids=LABORATORIES)
def test_engine_keeps_its_contract(lab, law) -> None:
    law(lab)
