"""What the published figures are measured with; users run it as `mintnet bench`.

In a clone this folder lies beside ``src``; a wheel holds it as ``mintnet/benchmarks``.
"""
