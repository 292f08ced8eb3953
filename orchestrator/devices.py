"""What a GPU does while a trial runs on it: memory, clocks, power cap, why it is slowed down.

Read through NVIDIA's management library, which needs no CUDA context; tests give readers of their own.
"""

import os
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

TOLERANCE_BYTES = 64 << 20  # of device memory that may differ between two idle moments
# Bits of the library's clocks event reasons. These slow a device below what it was set to: times taken under them
# are another device's. Reaching the power cap (0x4) is how a full device normally runs: recorded, never void.
SLOWED = {
    0x8: "hardware slowdown", 0x20: "thermal slowdown (software)", 0x40: "thermal slowdown (hardware)",
    0x80: "power brake",
}  # fmt: skip
POWER_CAPPED = 0x4


@dataclass(frozen=True, slots=True)
class Reading:
    """One device at one moment. `reasons`: bits as the management library gives them."""

    device: str  # its UUID
    used_bytes: int
    sm_clock_mhz: int = 0
    power_cap_w: float = 0.0
    power_w: float = 0.0
    temperature_c: int = 0
    reasons: int = 0


class Reader(Protocol):
    """Looks at the devices of one slot."""

    def read(self) -> Sequence[Reading]:
        """All of them, now."""


class NvmlReader:
    """Devices that this process may use, by the management library. Raises OSError where there is none."""

    def __init__(self, visible: Sequence[str]) -> None:
        try:
            import pynvml
        except ImportError as error:
            raise OSError(f"nvidia-ml-py is not installed: {error}") from None
        self._nvml = pynvml
        try:
            pynvml.nvmlInit()
            self._handles = [self._handle(name) for name in visible]
        except pynvml.NVMLError as error:
            raise OSError(f"the devices {', '.join(visible)} cannot be read: {error}") from None

    def _handle(self, name: str) -> Any:
        return (
            self._nvml.nvmlDeviceGetHandleByIndex(int(name))
            if name.isdigit()
            else self._nvml.nvmlDeviceGetHandleByUUID(name)
        )

    def read(self) -> list[Reading]:
        nvml = self._nvml
        try:
            return [
                Reading(
                    device=str(nvml.nvmlDeviceGetUUID(h)),
                    used_bytes=int(nvml.nvmlDeviceGetMemoryInfo(h).used),
                    sm_clock_mhz=int(nvml.nvmlDeviceGetClockInfo(h, nvml.NVML_CLOCK_SM)),
                    power_cap_w=nvml.nvmlDeviceGetEnforcedPowerLimit(h) / 1000,
                    power_w=nvml.nvmlDeviceGetPowerUsage(h) / 1000,
                    temperature_c=int(nvml.nvmlDeviceGetTemperature(h, nvml.NVML_TEMPERATURE_GPU)),
                    reasons=int(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(h)),
                )
                for h in self._handles
            ]
        except nvml.NVMLError as error:
            raise OSError(f"a device cannot be read any more: {error}") from None


def open_reader() -> Reader | None:
    """A reader of the devices that Ray gave this process; None where it gave none, or none is real."""
    visible = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    if not visible:
        return None
    try:
        return NvmlReader(visible)
    except (OSError, ValueError):
        return None


class Watch:
    """Samples a slot's devices while a trial runs, until it is stopped. `measuring` is set when its engine has
    started: what slows a device before that voids nothing."""

    def __init__(self, reader: Reader, measuring: threading.Event, every_s: float = 0.5) -> None:
        self._reader, self._measuring, self._every_s = reader, measuring, every_s
        self._samples: list[tuple[bool, Sequence[Reading]]] = []
        self._trouble = ""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="device-watch", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        self._look()
        while not self._stop.wait(self._every_s):
            self._look()

    def _look(self) -> None:
        try:
            self._samples.append((self._measuring.is_set(), self._reader.read()))
        except OSError as error:
            self._trouble = self._trouble or str(error)

    def stop(self) -> None:
        """Take a last sample, and no more."""
        self._stop.set()
        self._thread.join()
        self._look()

    def throttled(self) -> str:
        """Which devices were slowed down while the trial measured, why, and in how many samples; else empty."""
        seen: Counter[tuple[str, str]] = Counter()
        measured = [readings for measuring, readings in self._samples if measuring]
        for reading in (r for readings in measured for r in readings):
            seen.update((reading.device, words) for bit, words in SLOWED.items() if reading.reasons & bit)
        return "; ".join(
            f"{d}: {words} in {n} of {len(measured)} samples" for (d, words), n in sorted(seen.items())
        )

    def summary(self) -> dict[str, Any]:
        """For attempt.json: ranges a device over the whole run."""
        devices: dict[str, list[Reading]] = {}
        for _, readings in self._samples:
            for reading in readings:
                devices.setdefault(reading.device, []).append(reading)
        said: dict[str, Any] = {name: _ranges(readings) for name, readings in sorted(devices.items())}
        return said | ({"trouble": self._trouble} if self._trouble else {})


def _ranges(readings: Sequence[Reading]) -> dict[str, Any]:
    clocks = sorted(r.sm_clock_mhz for r in readings)
    reasons = 0
    for reading in readings:
        reasons |= reading.reasons
    return {
        "samples": len(readings),
        "sm_clock_mhz": [clocks[0], clocks[len(clocks) // 2], clocks[-1]],
        "power_cap_w": sorted({r.power_cap_w for r in readings}),
        "power_w_max": max(r.power_w for r in readings),
        "temperature_c_max": max(r.temperature_c for r in readings),
        "used_bytes_max": max(r.used_bytes for r in readings),
        "power_capped_samples": sum(bool(r.reasons & POWER_CAPPED) for r in readings),
        "reasons": f"0x{reasons:x}",
    }


def settle(reader: Reader, baseline: Sequence[Reading], limit_s: float, sleep: Callable[[float], object]) -> str:
    """Wait until every device has its idle memory back; what is still taken where it has not within `limit_s`."""
    before = {reading.device: reading.used_bytes for reading in baseline}
    waited, words = 0.0, ""
    while True:
        try:
            held = [(r.device, r.used_bytes - before.get(r.device, 0)) for r in reader.read()]
        except OSError as error:
            return str(error)
        over = [f"{name}: {extra / (1 << 20):.0f} MiB" for name, extra in held if extra > TOLERANCE_BYTES]
        if not over:
            return ""
        words = f"device memory is not back at its baseline after {limit_s:g} s, too much on {'; '.join(over)}"
        if waited >= limit_s:
            return words
        sleep(0.1)
        waited += 0.1
