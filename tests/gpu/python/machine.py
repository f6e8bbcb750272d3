# SPDX-License-Identifier: Apache-2.0
"""Where the cases of the Python package run: on a GPU over NCCL, or in a rehearsal on the CPU over gloo, with the stand-in of
tests/bindings for streams and events. One process is the whole group."""
import contextlib
import os
import socket
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "bindings"))
import torch  # before atomo, whose CUDA libraries are then PyTorch's  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

import atomo.torch  # noqa: E402
import ddp_runs  # noqa: E402


class Machine:
    """`state` and `sharded`: the classes of the hook's state, which remembers its layout, and of FSDP's reduce-scatter."""

    def join(self):
        """Makes the group."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
        dist.init_process_group(self.backend, init_method="env://")
        return self


class Gpu(Machine):
    backend, state, sharded = "nccl", ddp_runs.Watched, atomo.torch.FSDPReduceScatter

    def __init__(self):
        self.device = torch.device("cuda", 0)
        torch.cuda.set_device(self.device)

    @contextlib.contextmanager
    def no_waits(self):
        """What waits for the GPU raises, of all that PyTorch knows of."""
        torch.cuda.set_sync_debug_mode("error")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode("default")

    def taken(self):
        """How many pieces of memory were asked of PyTorch so far."""
        return torch.cuda.memory_stats(self.device).get("allocation.all.allocated", 0)

    def free_bytes(self):
        """Of the GPU, whoever took the rest."""
        return torch.cuda.mem_get_info(self.device)[0]

    def finish(self):
        torch.cuda.synchronize(self.device)

    def times(self, work, count):
        """Microseconds of each of `count` calls that follow one another without a wait of the host's."""
        events = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
        events[0].record()
        for event in events[1:]:
            work()
            event.record()
        self.finish()
        return [1e3 * first.elapsed_time(then) for first, then in zip(events, events[1:])]

    def half(self):
        """Products in bf16, gradients in f32."""
        return torch.autocast("cuda", dtype=torch.bfloat16)


class Rehearsal(Machine):
    backend, state, sharded = "gloo", ddp_runs.OnStandIn, ddp_runs.ShardedOnStandIn

    def __init__(self):
        self.device = torch.device("cpu")
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        torch.set_num_threads(1)

    def no_waits(self):
        return contextlib.nullcontext()

    def taken(self):
        return 0

    def free_bytes(self):
        return 0

    def finish(self):
        pass

    def times(self, work, count):
        found = []
        for _ in range(count):
            began = time.perf_counter()
            work()
            found.append(1e6 * (time.perf_counter() - began))
        return found

    def half(self):
        return torch.autocast("cpu", dtype=torch.bfloat16)


def machine(rehearse):
    return Rehearsal() if rehearse else Gpu()


class Training:
    """A net under DDP, on random batches, with a hook or without. `hook`: called as DDP calls one, with `state`.

    `host_seconds` is what the hook's calls took of the host, `taken` the pieces of memory that were asked for in them; with
    `strict` a wait in them raises; with `keeps`, `own` holds the gradients as they came, on the CPU.
    """

    def __init__(self, place, net, batch, state=None, hook=None, half=True, lr=0.01, cap_mb=25.0, optimiser=None):
        self.place, self.net, self.batch, self.half = place, net, batch, half
        self.wrapped = DistributedDataParallel(net, bucket_cap_mb=cap_mb)
        self.hook, self.state = hook, state
        self.host_seconds, self.taken, self.strict, self.keeps, self.own = 0.0, 0, False, False, {}
        self._names = {id(p): name for name, p in net.named_parameters()}
        if hook is not None:
            self.wrapped.register_comm_hook(state, self._hook)
        self.optimiser = optimiser or torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9)

    def _hook(self, state, bucket):
        if self.keeps:
            self.own |= {self._names[id(p)]: gradient.detach().cpu().clone()
                         for p, gradient in zip(bucket.parameters(), bucket.gradients())}
        taken = self.place.taken()
        with self.place.no_waits() if self.strict else contextlib.nullcontext():
            began = time.perf_counter()
            done = self.hook(state, bucket)
            self.host_seconds += time.perf_counter() - began
        self.taken += self.place.taken() - taken
        return done

    def backward(self):
        x, y = self.batch
        self.wrapped.zero_grad()
        with self.place.half() if self.half else contextlib.nullcontext():
            out = self.wrapped(x)
            loss = nn.functional.cross_entropy(out, y) if y.dtype == torch.int64 else nn.functional.mse_loss(out, y)
        loss.backward()
        return loss

    def step(self):
        loss = self.backward()
        self.optimiser.step()
        return loss

    def gradients(self):
        """On the CPU, when they are there."""
        self.place.finish()
        return {name: p.grad.detach().cpu() for name, p in self.net.named_parameters()}


def images(place, count):
    """A network for images, with random ones: torchvision's ResNet-50 on a GPU, a small one where it is rehearsed without."""
    torch.manual_seed(1)
    classes, size = 1000, 224
    with place.device:
        if isinstance(place, Gpu) or os.environ.get("ATOMO_REHEARSE_RESNET"):
            import torchvision

            net = torchvision.models.resnet50(weights=None)
        else:
            net, classes, size = nn.Sequential(nn.Conv2d(3, 16, 7, 4, bias=False), nn.BatchNorm2d(16), nn.ReLU(),
                                               nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(256, 1500)), 1500, 32
        return net, (torch.randn(count, 3, size, size), torch.randint(0, classes, (count,)))


def small(place, name="small"):
    """A net of tests/bindings, with a batch."""
    x, y = ddp_runs.batch_of(0, 0, 24)
    return ddp_runs.make_net(name).to(place.device), (x.to(place.device), y.to(place.device))
