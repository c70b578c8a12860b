"""One module a promise, each with two functions, which `benchmarks/campaign.py` calls in turn.

    def draw(rng: random.Random) -> dict[str, Any]

draws a case as plain JSON: all that is needed to run it again. It may hold a seed, but no tensors.

    def run(case: dict[str, Any]) -> tuple[dict[str, int], list[str]]

runs it, and gives what was counted (by name; the report has the sums) and one line for each wrong
thing that was seen, nothing if all was well. An exception counts as a failure of the case. A module
may say why it cannot run on this machine: ``def missing() -> str | None``.
"""
