"""Scores: maps that sum to − log p, p-values that hold their rate, and what is stored."""

import math
from pathlib import Path

import pytest
import torch

from mintnet import Chain, Flow, IResNetBlock
from mintnet.analysis import score as module
from mintnet.analysis.score import STATISTICS, Reference, measure, of_code, score
from mintnet.models.deep import DeepConfig
from mintnet.models.storage import SCORES
from registry import tiny_flow


def deep_flow(classes: int = 0, shape=(1, 8, 8), order="raster") -> Flow:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        sizes = (2, 1), (4, 2), (1, 1), (3, 2)
        flow = Flow(DeepConfig(shape, *sizes, classes, order), None, levels=17)
        with torch.no_grad():
            for parameter in flow.parameters():
                parameter.add_(torch.randn_like(parameter), alpha=0.1)
    return flow.eval()


FLOWS = {
    "mint": lambda: tiny_flow(side=8, seed=3),
    "deep": deep_flow,
    "colour": lambda: deep_flow(shape=(3, 4, 4), order="pixel"),
    "conditional": lambda: deep_flow(classes=3),
}


def random_images(flow: Flow, count: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 17, (count, *flow.shape), dtype=torch.uint8, generator=generator)


@pytest.fixture(scope="module")
def own() -> tuple[Flow, torch.Tensor]:
    """A model, and pictures that it drew itself: for these its likelihood is the true one."""
    flow = tiny_flow(side=8, seed=3)
    return flow, flow.sample(600, seed=0)


@pytest.mark.parametrize("name", FLOWS)
def test_the_map_sums_to_the_bits_of_the_model(name: str) -> None:
    flow = FLOWS[name]().double()
    images = random_images(flow, 5)
    _, found, maps = measure(flow, images, draws=2)
    nats = -(flow.log_prob(images) + flow.log_prob(images, draw=1)) / 2
    assert maps is not None
    assert maps.shape == (5, *flow.shape[1:])
    for value in (maps.sum((1, 2)), found):
        torch.testing.assert_close(value, nats, rtol=1e-9, atol=0)


def test_a_map_of_one_class_is_that_of_log_prob_map() -> None:
    flow, images = deep_flow().double(), random_images(deep_flow(), 3)
    expected = -flow.log_prob_map(images).sum(1)
    torch.testing.assert_close(measure(flow, images)[2], expected, rtol=1e-9, atol=1e-12)


def test_more_draws_keep_the_rate_of_false_alarms(own) -> None:
    flow, usual = own
    once, four = Reference.of(flow, usual[:300]), Reference.of(flow, usual[:300], draws=4)
    one, more = (score(flow, usual[300:400], n, once) for n in (1, 4))
    assert torch.equal(one.p_value, more.p_value) and not torch.equal(one.bits, more.bits)
    torch.testing.assert_close(more.map.sum((1, 2)) / (64 * math.log(2)), more.bits)
    both = score(flow, usual[300:600], reference=four)  # as many draws as the references have
    assert 0.01 < float(both.flagged(0.05).double().mean()) < 0.12
    flow.scores = four.tensors()
    assert torch.equal(flow.score(usual[300:600]).p_value, both.p_value)
    flow.scores = None


def test_scores_do_not_depend_on_batches(own, monkeypatch) -> None:
    flow, images = own
    reference, index = Reference.of(flow, images[:40]), torch.arange(10)
    whole = score(flow, images[40:50], reference=reference)
    part = score(flow, images[45:50], reference=reference, index=index[5:])
    torch.testing.assert_close(whole.bits[5:], part.bits)
    monkeypatch.setattr(Flow, "batch_size", 3)
    again = score(flow, images[40:50], reference=reference)
    torch.testing.assert_close(whole.oddness, again.oddness, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("rate", [0.01, 0.05, 0.2])
def test_the_rate_of_false_alarms_is_held(rate: float) -> None:
    """Whatever the distribution of the statistics: heavy tails, ties, a constant."""
    statistics = torch.randn(6000, 7, generator=torch.Generator().manual_seed(0))
    statistics[:, 1] = statistics[:, 0] + 0.1 * statistics[:, 1]
    statistics[:, 2] = statistics[:, 2] ** 3
    statistics[:, 3] = (2 * statistics[:, 3]).round()
    statistics[:, 6] = 0
    reference = Reference(statistics[:1000])
    odd = reference.fit.oddness(reference.fit.normal_scores(statistics[1000:].double()))
    share = float((reference.p_value(odd) <= rate).double().mean())
    assert abs(share - rate) < 4 * math.sqrt(rate * (1 / 1000 + 1 / 5000))


def test_few_references_hold_the_rate_on_average() -> None:
    generator, shares = torch.Generator().manual_seed(1), []
    for _ in range(60):
        statistics = torch.randn(260, 7, generator=generator)
        reference = Reference(statistics[:60])
        odd = reference.fit.oddness(reference.fit.normal_scores(statistics[60:].double()))
        shares.append(float((reference.p_value(odd) <= 0.05).double().mean()))
    assert 0.02 < sum(shares) / len(shares) < 0.07


def test_pictures_that_are_likelier_than_usual_are_odd_too(own) -> None:
    flow, usual = own
    reference = Reference.of(flow, usual[:400])
    share = score(flow, usual[400:], reference=reference).flagged(0.05).double().mean()
    assert 0.01 < share < 0.12
    constant = torch.arange(17, dtype=torch.uint8).reshape(-1, 1, 1, 1).expand(-1, 1, 8, 8)
    for images in (constant.contiguous(), usual[400:500].sort(2).values):
        found = score(flow, images, reference=reference)
        assert found.flagged(0.05).double().mean() > 0.9
        assert set(found.reasons) <= STATISTICS.keys() - {"channels"}


def test_standardised_maps_are_standard_for_the_references(own) -> None:
    flow, usual = own
    unusual = score(flow, usual[:400], reference=usual[:400]).unusual
    assert unusual is not None
    assert float(unusual.mean().abs()) < 0.05
    assert abs(float(unusual.std()) - 1) < 0.1


def test_an_odd_place_stands_out(own) -> None:
    flow, usual = own
    reference, images = Reference.of(flow, usual[:400]), usual[400:500].clone()
    before = score(flow, images, reference=reference).unusual
    images[:, :, 2:5, 2:5] = 16 - images[:, :, 2:5, 2:5]
    after = score(flow, images, reference=reference).unusual
    assert before is not None and after is not None
    moved = (after - before).mean(0)
    assert moved[2:5, 2:5].mean() > 3 * moved.mean()


def test_a_model_that_is_not_triangular_has_no_map() -> None:
    flow = tiny_flow(side=4, seed=0)
    flow.net.chain = Chain(*flow.net.leaves(), IResNetBlock((4, 2, 2)))
    images = random_images(flow, 30)
    found = score(flow, images[:3], reference=images)
    assert found.map is None and found.unusual is None
    torch.testing.assert_close(found.bits.float(), flow.bits_per_dim(images[:3]), rtol=0.1, atol=0)


def test_scores_are_stored_with_the_weights_that_made_them(own, tmp_path: Path) -> None:
    flow, usual = own
    flow.keep_scores(usual[:50])
    flow.save(tmp_path)
    again = Flow.load(tmp_path)
    images = usual[50:55]
    expected = flow.score(images, reference=usual[:50]).p_value
    assert torch.equal(again.score(images).p_value, expected)
    again.scores = None
    again.save(tmp_path)
    assert not (tmp_path / SCORES).exists()
    flow.scores = None


def test_what_is_refused(own, raises_with, tmp_path: Path) -> None:
    flow, usual = own
    for images, draws, reference, *words in (
        (usual[:2], 1, None, "no reference scores", "--reference"),
        (usual[:2], 1, usual[:5], "at least 20", "5"),
        (usual[:2, :, :4], 1, usual, "(batch, 1, 8, 8)"),
        (usual[:0], 1, usual, "at least one image"),
        (usual.double(), 1, usual, "uint8"),
        (usual, 0, usual, "at least one draw"),
        (usual, 1, usual.numpy(), "expected uint8 images", "ndarray"),
    ):
        with raises_with(ValueError, *words):
            flow.score(images, draws, reference)
    flow.save(tmp_path)
    (tmp_path / SCORES).write_bytes(b"no safetensors")
    with raises_with(ValueError, SCORES, "damaged", "delete it"):
        Flow.load(tmp_path)
    other = tiny_flow(side=8, seed=0)
    other.scores = {"statistics": torch.zeros(30, 2)}
    with raises_with(ValueError, "another version"):
        other.score(usual[:2])


def test_statistics_of_codes_by_hand() -> None:
    u = torch.tensor([[[[1.0, -1.0], [1.0, -1.0]], [[1.0, -1.0], [1.0, -1.0]]]])
    variance, tails, rows, columns, channels = of_code(u)[0].tolist()
    assert (variance, tails) == (0.0, 1.0)
    assert (rows, columns, channels) == (-0.5, 0.5, 0.5)


def test_compressor_and_texture_know_flat_pictures() -> None:
    generator = torch.Generator().manual_seed(0)
    rough = torch.randint(0, 256, (3, 16, 16), dtype=torch.uint8, generator=generator)
    slope = torch.arange(256, dtype=torch.uint8).reshape(1, 16, 16).repeat(3, 1, 1)
    assert module.compressed_bits(rough) > 8 * rough.numel()
    assert module.compressed_bits(slope) < 0.1 * module.compressed_bits(rough)
    assert float(module.texture(torch.full((1, 3, 5, 5), 7, dtype=torch.uint8)).max()) < 1e-6
    edge = torch.tensor([[0, 0, 0, 9, 9, 9]] * 3, dtype=torch.uint8)[None, None]
    assert (module.texture(edge)[0, 1] > 0).tolist() == [False, False, True, True, False, False]
