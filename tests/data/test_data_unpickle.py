"""Pickles: what they may hold, and that nothing they name is called."""

import builtins
import collections
import io
import os
import pickle
import subprocess

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mintnet.data import DataError, load
from mintnet.data.unpickle import unpickle


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
        (os.system, ("touch {}",), ".system"),
        (subprocess.check_call, (["touch", "{}"],), ".check_call"),
        (builtins.eval, ("open({!r}, 'w')",), "eval"),
        (builtins.open, ("{}", "w"), "open"),
        (builtins.getattr, (1, "real"), "getattr"),
        (np.save, ("{}", 1), "numpy.save"),
    ],
)
def test_calls_are_refused_and_not_made(
    tmp_path, raises_data_error, function, arguments, name, protocol
):
    mark = tmp_path / "mark"

    def fill(a):
        if isinstance(a, list):
            return [fill(part) for part in a]
        return a.format(str(mark)) if isinstance(a, str) else a

    batch = {"data": Call(function, *map(fill, arguments)), "labels": [1]}
    (tmp_path / "test_batch").write_bytes(pickle.dumps(batch, protocol))
    with raises_data_error(tmp_path / "test_batch", name, "refused"):
        load("cifar10", "test", tmp_path)
    assert not mark.exists()


@pytest.mark.parametrize("value", [collections.OrderedDict(), {1, 2}, object(), 3j, range(2)])
def test_other_types_are_refused(value):
    with pytest.raises(DataError, match="refused"):
        unpickle(io.BytesIO(pickle.dumps({"data": value}, 2)), "batch")


def test_codecs_that_are_no_text_encodings_are_refused():
    import _codecs

    data = pickle.dumps({"data": Call(_codecs.encode, "x", "rot13")}, 2)
    with pytest.raises(DataError, match="not a text encoding"):
        unpickle(io.BytesIO(data), "batch")


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("core", [b"core", b"_core"])
def test_arrays_of_old_and_new_numpy(protocol, core):
    batch = {b"data": np.arange(6, dtype=np.uint8).reshape(2, 3), b"labels": [np.int64(4), 2]}
    data = pickle.dumps(batch, protocol)
    if protocol < 4:  # later protocols give the length of a name
        data = data.replace(b"numpy._core", b"numpy." + core)
    read = unpickle(io.BytesIO(data), "batch")
    assert np.array_equal(read["data"], batch[b"data"])
    assert read["labels"] == [4, 2]


def test_a_batch_as_python_2_wrote_it():
    text = (
        b"(dp0\nS'data'\np1\ncnumpy.core.multiarray\n_reconstruct\np2\n(cnumpy\nndarray\np3\n"
        b"(I0\ntp4\nS'b'\np5\ntp6\nRp7\n(I1\n(I1\nI3\ntp8\ncnumpy\ndtype\np9\n(S'u1'\np10\nI0\n"
        b"I1\ntp11\nRp12\n(I3\nS'|'\np13\nNNNI-1\nI-1\nI0\ntp14\nbI00\nS'\\x07\\xff\\x00'\np15\n"
        b"tp16\nbsS'labels'\np17\n(lp18\nI6\nas."
    )
    read = unpickle(io.BytesIO(text), "batch")
    assert read["data"].tolist() == [[7, 255, 0]]
    assert read["data"].dtype == np.uint8
    assert read["labels"] == [6]


BATCH = pickle.dumps({"data": np.arange(24, dtype=np.uint8).reshape(2, 12), "labels": [1, 2]}, 2)


@given(st.binary(max_size=60), st.integers(0, len(BATCH) - 1), st.integers(0, 255))
def test_noise_and_wrong_bytes_are_refused_or_a_dictionary(noise, place, byte):
    for data in (noise, BATCH[:place] + bytes([byte]) + BATCH[place + 1 :]):
        try:
            assert isinstance(unpickle(io.BytesIO(data), "batch"), dict)
        except DataError as error:
            assert "\n" not in str(error)
