"""One suite over all engines that the ordinary environment has; the others' are in tests_engines/."""

import pytest

from tests.contracts.engine_laws import LAWS, Laboratory

LABORATORIES = (
    Laboratory("simulator", extra={"step_time": "linear:4000,40,10"}),
    Laboratory("torch_paged"),
)


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
@pytest.mark.parametrize("lab", LABORATORIES, ids=lambda lab: lab.name)
def test_engine_keeps_its_contract(lab, law) -> None:
    law(lab)
