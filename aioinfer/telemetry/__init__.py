"""What the engine says about itself: counters, histograms and the responsiveness of its event loop.

No torch, no asyncio but in the loop-lag probe, no HTTP: the server serves what `Metrics.render` gives.
"""

from aioinfer.telemetry.loop_lag import LoopLag, LoopLagProbe
from aioinfer.telemetry.metrics import EngineStats, Metrics

__all__ = ["EngineStats", "LoopLag", "LoopLagProbe", "Metrics"]
