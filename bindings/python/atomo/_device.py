# SPDX-License-Identifier: Apache-2.0
"""Calls on arrays in a GPU's memory: all that they need is memory of the array's own framework, on its own stream."""
from __future__ import annotations

import struct
import sys
from collections.abc import Sequence
from typing import Any

import numpy

from . import _atomo
from ._errors import DecodeError, Error
from ._frameworks import dtype_name, is_torch, on_cuda


def require_cuda() -> None:
    """Raises `atomo.Error` in a package that was built without the CUDA backend."""
    if not _atomo.cuda:
        raise Error("this package was built without the CUDA backend: copy the arrays to the CPU, or build it with "
                    "pip install . --config-settings=cmake.define.ATOMO_CUDA=ON where nvcc is")


class _Place:
    """Memory beside an array, and the stream that its framework computes on now."""

    def __init__(self, x: Any) -> None:
        require_cuda()
        self._torch = sys.modules["torch"] if is_torch(x) else None
        self._cupy = None if self._torch else sys.modules["cupy"]
        self._device = x.device
        with self.current():
            self.stream = (self._torch.cuda.current_stream(x.device).cuda_stream if self._torch
                           else self._cupy.cuda.get_current_stream().ptr)
            self.result = self.bytes(16)
            self.result[:] = 0

    def current(self) -> Any:
        """Makes the array's device the current one, which the library launches on."""
        return self._torch.cuda.device(self._device) if self._torch else self._device

    def bytes(self, n: int) -> Any:
        if self._torch:
            return self._torch.empty(n, dtype=self._torch.uint8, device=self._device)
        return self._cupy.empty(n, self._cupy.uint8)

    def upload(self, payload: Any) -> Any:
        """A message as memory of the device."""
        if on_cuda(payload):
            return payload
        if is_torch(payload):
            payload = payload.numpy()
        host = numpy.frombuffer(payload, numpy.uint8)
        if self._torch:
            return self._torch.from_numpy(host.copy()).to(self._device)
        return self._cupy.asarray(host)

    def outcome(self, error: type[Error], encoder: Any = None) -> int:
        """Waits for the stream, raises what the device reported and returns the message's bytes.

        `encoder` is the codec or the model that encoded, which warns of budgets.
        """
        result = (self.result.cpu().numpy() if self._torch else self.result.get()).tobytes()
        length, status = struct.unpack_from("<Qi", result)
        name, description, failed = _atomo.status_of(status)
        if failed:
            raise error(description, name)
        if encoder is not None:
            encoder.notice(status)
        return length


def encode(codec: Any, x: Any, key: Sequence[int]) -> Any:
    """`Codec.encode` of an array there."""
    place, dtype = _Place(x), dtype_name(x.dtype)
    with place.current():
        payload = place.bytes(codec.max_encoded_bytes(x.shape, dtype))
        workspace = place.bytes(codec.encode_workspace_bytes(x.shape, dtype, "cuda"))
        codec.encode_on(x, payload, place.result, workspace, place.stream, *key)
        return payload[:place.outcome(Error, codec)]


def decode(codec: Any, payloads: list, out: Any, alpha: float | None) -> None:
    """`Codec.decode`, or with alpha `decode_add_all`, into an array there. Waits for the stream."""
    place = _Place(out)
    with place.current():
        workspace = place.bytes(codec.decode_workspace_bytes(out.shape, dtype_name(out.dtype), "cuda"))
        codec.decode_on([place.upload(payload) for payload in payloads], out, alpha, place.result, workspace,
                        place.stream)
        place.outcome(DecodeError)


def encode_model(model: Any, arrays: list, key: Sequence[int]) -> Any:
    """`Compressor.encode`."""
    place = _Place(arrays[0])
    with place.current():
        payload, workspace = place.bytes(model.max_encoded_bytes()), place.bytes(model.encode_workspace_bytes())
        model.encode_on(model.bind(arrays, True), payload, place.result, workspace, place.stream, *key)
        return payload[:place.outcome(Error, model)]


def decode_model(model: Any, payloads: list, arrays: list, alpha: float | None) -> None:
    """`Compressor.decode`, or with alpha `decode_add_all`. Waits for the stream."""
    place = _Place(arrays[0])
    with place.current():
        model.decode_on([place.upload(payload) for payload in payloads], model.bind(arrays, False), alpha, place.result,
                        place.bytes(model.decode_workspace_bytes()), place.stream)
        place.outcome(DecodeError)


def encode_layer(model: Any, number: int, gradient: Any) -> Any:
    """`Compressor.encode_layer`."""
    place = _Place(gradient)
    with place.current():
        payload = place.bytes(model.layer_max_encoded_bytes(number))
        workspace = place.bytes(model.layer_encode_workspace_bytes(number))
        model.encode_layer_on(number, gradient, payload, place.result, workspace, place.stream)
        return payload[:place.outcome(Error)]


def decode_layer(model: Any, number: int, payloads: list, out: Any, alpha: float | None) -> None:
    """`Compressor.decode_layer`, or with alpha `decode_layer_add_all`. Waits for the stream."""
    place = _Place(out)
    with place.current():
        model.decode_layer_on(number, [place.upload(payload) for payload in payloads], out, alpha, place.result,
                              place.bytes(model.layer_decode_workspace_bytes(number)), place.stream)
        place.outcome(DecodeError)


def take_memory_back(model: Any, like: Any) -> None:
    """`Compressor.take_memory_back`, waiting for the stream that the array's framework computes on now."""
    if like is None or not on_cuda(like):
        raise Error("take_memory_back: on a GPU give like=, an array there")
    place = _Place(like)
    with place.current():
        model.take_memory_back_on(None, place.result, place.stream)
        place.outcome(Error)


def end_step(model: Any, gradient: Any) -> None:
    """`Compressor.end_step`, on the stream that the array's framework computes on now."""
    if gradient is None:
        raise Error("end_step: on a GPU a step ends after encode_layer")
    place = _Place(gradient)
    with place.current():
        model.end_step_on(place.result, place.stream)
        place.outcome(Error, model)
