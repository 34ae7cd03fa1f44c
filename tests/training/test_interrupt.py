"""Signals that ask a run to stop."""

import signal
import threading
from collections.abc import Iterator
from types import FrameType

import pytest

from madao.training import interrupt
from madao.training.interrupt import Interrupted, StopRequest, stop_requests

BOTH = [signal.SIGINT, signal.SIGTERM]


@pytest.fixture(autouse=True)
def terminations() -> Iterator[list[int]]:
    """SIGTERMs that came through; SIGINT raises KeyboardInterrupt, as ever."""
    came: list[int] = []

    def note(number: int, _: FrameType | None) -> None:
        came.append(number)

    before = {number: signal.getsignal(number) for number in BOTH}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, note)
    yield came
    for number, handler in before.items():
        signal.signal(number, handler)


def handlers() -> list[object]:
    return [signal.getsignal(number) for number in BOTH]


@pytest.mark.parametrize("number", BOTH)
def test_the_first_signal_is_a_request_and_nothing_else(number: signal.Signals, terminations: list[int]) -> None:
    reached = False
    with stop_requests("this") as request:
        assert request.number is None
        signal.raise_signal(number)
        assert request.number == number
        reached = True
    assert reached
    assert terminations == []


def test_ctrl_c_is_answered_at_once(capfd: pytest.CaptureFixture[str]) -> None:
    for number, said in (
        (signal.SIGTERM, ""),
        (signal.SIGINT, "\nstopping, after this; Ctrl-C again stops immediately\n"),
    ):
        with stop_requests("this"):
            signal.raise_signal(number)
        assert capfd.readouterr().err == said


@pytest.mark.parametrize("came", [None, *BOTH])
def test_handlers_are_as_before_afterwards(came: signal.Signals | None) -> None:
    before = handlers()
    with stop_requests("this"):
        assert not set(map(id, handlers())) & set(map(id, before))
        if came is not None:
            signal.raise_signal(came)
    assert handlers() == before


def test_handlers_are_as_before_after_an_error() -> None:
    before = handlers()
    with pytest.raises(ZeroDivisionError), stop_requests("this"):
        _ = 1 / 0
    assert handlers() == before


@pytest.mark.parametrize("first", BOTH)
def test_a_second_interrupt_acts_at_once(first: signal.Signals, monkeypatch: pytest.MonkeyPatch) -> None:
    before = handlers()
    with stop_requests("this") as request:
        signal.raise_signal(first)
        signal.raise_signal(signal.SIGINT)  # so soon after it is the same one
        monkeypatch.setattr(interrupt, "_ONCE", -1.0)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        assert request.number == first
    assert handlers() == before


@pytest.mark.parametrize("first", BOTH)
def test_a_second_termination_acts_at_once(
    first: signal.Signals, terminations: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    with stop_requests("this") as request:
        signal.raise_signal(first)
        monkeypatch.setattr(interrupt, "_ONCE", -1.0)
        assert terminations == []
        signal.raise_signal(signal.SIGTERM)
        assert terminations == [signal.SIGTERM]
        assert request.number == first


def test_a_later_run_is_asked_anew(terminations: list[int]) -> None:
    for number in (*BOTH, *BOTH):
        with stop_requests("this") as request:
            assert request.number is None
            signal.raise_signal(number)
            assert request.number == number
    assert terminations == []


def test_a_thread_has_a_request_that_is_never_made(terminations: list[int]) -> None:
    before = handlers()
    requests: list[StopRequest] = []
    inside, done = threading.Event(), threading.Event()

    def work() -> None:
        with stop_requests("this") as request:
            requests.append(request)
            inside.set()
            done.wait(10)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        assert inside.wait(10)
        assert handlers() == before
        signal.raise_signal(signal.SIGTERM)
    finally:
        done.set()
        thread.join()
    assert terminations == [signal.SIGTERM]
    assert [request.number for request in requests] == [None]
    assert handlers() == before


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_the_exit_code_is_that_of_shells(number: int, code: int) -> None:
    stop = Interrupted(number, "stopped at step 3")
    assert stop.exit_code == code
    assert str(stop) == "stopped at step 3"
