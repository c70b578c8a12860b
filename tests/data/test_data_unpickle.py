"""Pickles: what they may hold, and that nothing they name is called."""

import _codecs
import builtins
import collections
import os
import pickle
import subprocess
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mintnet.data import DataError, load
from mintnet.data.batches import read_table


def unpickle(data):
    return read_table(Path("batch"), data)


class Call:
    """Pickles as a call."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize(
    ("function", "arguments", "name"),
    [
        (os.system, ("touch mark",), ".system"),
        (subprocess.check_call, (["touch", "mark"],), ".check_call"),
        (builtins.eval, ("open('mark', 'w')",), "eval"),
        (builtins.open, ("mark", "w"), "open"),
        (builtins.getattr, (1, "real"), "getattr"),
        (np.save, ("mark", 1), "numpy.save"),
    ],
)
def test_calls_are_refused_and_not_made(
    tmp_path, raises_data_error, monkeypatch, function, arguments, name, protocol
):
    monkeypatch.chdir(tmp_path)
    batch = {"data": Call(function, *arguments), "labels": [1]}
    (tmp_path / "test_batch").write_bytes(pickle.dumps(batch, protocol))
    with raises_data_error(tmp_path / "test_batch", name, "refused"):
        load("cifar10", "test", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["test_batch"]


@pytest.mark.parametrize(
    "value",
    [collections.OrderedDict(), {1, 2}, object(), 3j, range(2), Call(_codecs.encode, "x", "rot13")],
)
def test_other_types_are_refused(value):
    with pytest.raises(DataError, match=r"refused|not a text encoding"):
        unpickle(pickle.dumps({"data": value}, 2))


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("core", [b"core", b"_core"])
def test_arrays_of_old_and_new_numpy(protocol, core):
    batch = {b"data": np.arange(6, dtype=np.uint8).reshape(2, 3), b"labels": [np.int64(4), 2]}
    data = pickle.dumps(batch, protocol)
    if protocol < 4:  # later protocols give the length of a name
        data = data.replace(b"numpy._core", b"numpy." + core)
    read = unpickle(data)
    assert np.array_equal(read["data"], batch[b"data"]) and read["labels"] == [4, 2]


def test_a_batch_as_python_2_wrote_it():
    read = unpickle(
        b"(dp0\nS'data'\np1\ncnumpy.core.multiarray\n_reconstruct\np2\n(cnumpy\nndarray\np3\n"
        b"(I0\ntp4\nS'b'\np5\ntp6\nRp7\n(I1\n(I1\nI3\ntp8\ncnumpy\ndtype\np9\n(S'u1'\np10\nI0\n"
        b"I1\ntp11\nRp12\n(I3\nS'|'\np13\nNNNI-1\nI-1\nI0\ntp14\nbI00\nS'\\x07\\xff\\x00'\np15\n"
        b"tp16\nbsS'labels'\np17\n(lp18\nI6\nas."
    )
    assert (read["data"].tolist(), read["labels"]) == ([[7, 255, 0]], [6])


BATCH = pickle.dumps({"data": np.arange(24, dtype=np.uint8).reshape(2, 12), "labels": [1, 2]}, 2)


@given(st.binary(max_size=60), st.integers(0, len(BATCH) - 1), st.integers(0, 255))
def test_noise_and_wrong_bytes_are_refused_or_a_dictionary(noise, place, byte):
    for data in (noise, BATCH[:place] + bytes([byte]) + BATCH[place + 1 :]):
        try:
            assert isinstance(unpickle(data), dict)
        except DataError as error:
            assert "\n" not in str(error)
