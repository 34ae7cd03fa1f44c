import time

import pytest
import torch

from madao.training.monitor.profiler import Profiler


def test_outer_steps_are_timed_and_others_are_not() -> None:
    meter = Profiler(torch.device("cpu"))
    for due in (True, False, True):
        with meter.outer(due):
            time.sleep(0.02)
    found = meter.read()
    assert found["outer_seconds"] == pytest.approx(0.04, abs=0.015)
    meter.clear()
    assert meter.read()["outer_seconds"] == 0


def test_an_epoch_goes_on_from_a_saved_state() -> None:
    meter = Profiler(torch.device("cpu"), reads=True)
    assert meter.state_dict() == {"seconds": 0.0, "outer_seconds": 0.0, "waiting_seconds": 0.0}  # the clock stands
    meter.load_state_dict({"seconds": 100.0, "outer_seconds": 20.0, "waiting_seconds": 3.0}, images=640)
    assert meter.rate(640) == 6.4
    meter.start()
    with meter.outer(True):
        time.sleep(0.02)
    assert meter.seconds == pytest.approx(100.02, abs=0.015)
    found = meter.read()
    assert found["outer_seconds"] == pytest.approx(20.02, abs=0.015)
    assert found["waiting_seconds"] == 3.0
    assert meter.rate(640) == pytest.approx(6.4, rel=1e-3)
    again = Profiler(torch.device("cpu"))
    again.load_state_dict(meter.state_dict(), images=640)
    assert again.seconds == pytest.approx(100.02, abs=0.015)
    meter.clear()
    assert meter.seconds == 0.0


def test_what_was_not_saved_is_not_measured() -> None:
    meter = Profiler(torch.device("cpu"))
    meter.load_state_dict(None, images=640)
    meter.start()
    time.sleep(0.02)
    assert meter.rate(704) == pytest.approx(64 / 0.02, rel=0.5)


def test_the_memory_of_the_process_is_known_and_that_of_its_steps_is_not() -> None:
    meter = Profiler(torch.device("cpu"))
    before = meter.read()["memory_mib"]
    held = torch.ones(2**26)  # 256 MiB
    after = meter.read()
    assert before is not None
    assert after["memory_mib"] is not None
    assert 50 < before <= after["memory_mib"] < 200_000
    assert after["outer_memory_mib"] is None
    del held


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_what_outer_steps_hold_on_a_gpu_is_told_apart() -> None:
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved() / 2**20
    meter = Profiler(torch.device("cuda", 0))
    held = torch.ones(2**23, device="cuda")  # 32 MiB
    with meter.outer(True):
        torch.ones(2**24, device="cuda")  # 64 MiB
    torch.ones(2**23, device="cuda")  # 32 MiB, of what is held already
    meter.clear()
    with meter.outer(True):
        pass
    found = meter.read()
    assert found["memory_mib"] == pytest.approx(before + 32, abs=4)
    assert found["outer_memory_mib"] == pytest.approx(before + 96, abs=4)
    del held
