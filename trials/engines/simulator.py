"""simulator: our scheduler and pool on a virtual clock; a step-time model says how long a step takes."""

from trials.engine import DeviceBytes, StepTime
from trials.plan import Plan


class Modelled:
    """Executes nothing: durations come from a pure function of the step's shape."""

    def __init__(self, step_time: StepTime, device: DeviceBytes) -> None:
        self._step_time = step_time
        self._device = device

    def execute(self, plan: Plan) -> tuple[int, int | None]:
        return self._step_time(plan.shape)

    def forget(self, row: int) -> None:
        """Nothing is kept of a row."""

    def reset(self) -> None:
        """Nothing is kept."""

    def device(self) -> DeviceBytes:
        return self._device
