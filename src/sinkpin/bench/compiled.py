"""The compiled arms of `decode`: torch.compile of the whole model, in turns with the same arm uncompiled.

One arm at a time, the compiler's cache emptied in between: graphs are kept by code, which all arms share, and they
would slow each other down. On a CPU weights are frozen and packed and products autotuned (`OPTIONS`), without which
compiling gains little there: products of one row with weights as they lie in memory reach half the bandwidth. Packing
holds every weight a second time. A recompile is any frame that dynamo compiles after the warm-up. Not covered: CUDA graphs
(`mode="reduce-overhead"`).
"""

from contextlib import ExitStack

import torch
from torch._dynamo.utils import counters
from torch._inductor import config as inductor

from sinkpin.bench import gate, stepping
from sinkpin.bench.arms import REFERENCE, Arm
from sinkpin.bench.floor import Floor
from sinkpin.bench.report import Row, timed
from sinkpin.bench.settings import Decode
from sinkpin.bench.subject import Subject
from sinkpin.bench.timing import Progress, Step, interleave, paired

OPTIONS = {"freezing": True, "max_autotune": True}
"""Of `torch._inductor.config`, on a CPU. `torch.compile(options=…)` comes too late for the first."""


def remark(subject: Subject, settings: Decode) -> str:
    """What a reader should know of the compiled arms."""
    packed = subject.device.type == "cpu" and settings.backend == "inductor"
    how = ", with weights frozen and packed and products autotuned" if packed else ""
    return (
        f"a compiled arm ({settings.backend}{how}) ran in turns with the same arm uncompiled and with the uncompiled "
        "reference, and had the compiler's cache to itself"
    )


def row(subject: Subject, settings: Decode, arm: Arm | None, least: Floor, progress: Progress) -> Row:
    """`arm` compiled, or the reference where it is None. Raises `GateError` if it computes something else."""
    torch._dynamo.reset()
    batch, held = settings.batch[0], settings.entries
    eager = REFERENCE if arm is None else arm.name
    name = f"{eager}, compiled"
    with ExitStack() as stack:
        if subject.device.type == "cpu":
            stack.enter_context(inductor.patch(OPTIONS))
        steps = [stepping.reference(subject, REFERENCE, held, batch)]
        if arm is None:
            model = torch.compile(subject.reference, backend=settings.backend)
            steps.append(stepping.reference(subject, name, held, batch, model))
        else:
            model = torch.compile(subject.model, backend=settings.backend)
            plain, fast = (
                stack.enter_context(stepping.full(subject, arm, settings, batch)) for _ in range(2)
            )
            start = plain.seen
            gate.require_close(
                gate.steps(subject, model, fast, start, batch),
                gate.steps(subject, subject.model, plain, start, batch),
                f"{name} against uncompiled",
            )
            steps.append(Step(eager, stepping.stepper(subject, subject.model, plain, plain.seen, batch)))
            steps.append(Step(name, stepping.stepper(subject, model, fast, fast.seen, batch)))
        interleave(steps, settings.warmup, sync=subject.sync)
        before = counters["frames"]["total"]
        times = interleave(steps, settings.repeats, sync=subject.sync, progress=progress, what=name)
        recompiles = counters["frames"]["total"] - before
    torch._dynamo.reset()
    more = {
        "batch": batch,
        "compiled_gain": paired(times[eager], times[name]),
        "recompiles": recompiles,
        "backend": settings.backend,
    }
    least_seconds = least.step_seconds(held, batch)
    return timed(name, times[name], times[REFERENCE], floor=least_seconds, tokens=batch, more=more)
