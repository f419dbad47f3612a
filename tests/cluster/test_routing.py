"""Which replica takes a request."""

from __future__ import annotations

from dataclasses import dataclass

from fulgur.cluster.routing import Pin, Pins, choose, home


@dataclass
class Place:
    number: int
    queued: int = 0
    epoch: str = "e"


KEYS = [f"session {number}" for number in range(2000)]


def test_a_slot_that_goes_moves_only_its_own_sessions() -> None:
    slots = [Place(number) for number in range(5)]
    before = {key: home(key, slots).number for key in KEYS}
    counts = [sum(slot == number for slot in before.values()) for number in range(5)]
    assert min(counts) > 300, "they are spread"
    left = [slot for slot in slots if slot.number != 3]
    for key, slot in before.items():
        if slot != 3:
            assert home(key, left).number == slot
    assert {home(key, left).number for key, slot in before.items() if slot == 3} == {0, 1, 2, 4}
    # Every front finds the same one, in whatever order it learnt of them.
    assert all(home(key, slots[::-1]).number == before[key] for key in KEYS)


def test_a_pin_holds_while_its_replica_lives() -> None:
    slots = [Place(0), Place(1), Place(2)]
    for number in range(3):
        assert choose("s", 100, slots, Pin(number, "e", 60)) == (slots[number], 60)
    at_home = home("s", slots)
    assert choose("s", 100, slots, Pin((at_home.number + 1) % 3, "an earlier life", 60)) == (at_home, 0)
    assert choose("s", 100, slots, Pin(7, "e")) == (at_home, 0)
    assert choose("s", 100, slots, Pin(1, "e", 500)) == (slots[1], 99), "a prompt that was cut shorter"


def test_a_session_leaves_only_for_a_first_token_that_comes_sooner() -> None:
    slots = [Place(0), Place(1), Place(2)]
    wanted = home("s", slots)
    others = [slot for slot in slots if slot is not wanted]
    wanted.queued, others[0].queued, others[1].queued = 900, 800, 700
    assert choose("s", 400, slots, None) == (wanted, 0), "about as busy as the others are"
    wanted.queued = 6000
    assert choose("s", 400, slots, None) == (others[1], 0)
    # 300 tokens behind 6,000 there, or 10,000 behind 700 elsewhere.
    assert choose("s", 10_000, slots, Pin(wanted.number, "e", 9_700)) == (wanted, 9_700)
    wanted.queued = 14_000
    assert choose("s", 10_000, slots, Pin(wanted.number, "e", 9_700)) == (others[1], 0)


def test_only_so_many_pins_are_kept() -> None:
    pins = Pins(most=3)
    for key in "abc":
        pins.put(key, Pin(1, "e"))
    assert pins.get("a") == Pin(1, "e")
    pins.put("d", Pin(2, "e"))
    assert pins.get("b") is None and pins.get("a") is not None
    pins.drop("a")
    assert pins.get("a") is None
