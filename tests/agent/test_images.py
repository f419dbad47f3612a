"""Images in prompts: which names count, what is sent, and to whom not."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest
from agent_world import agent_on, say, serving

from fulgur.agent.loop.images import images_named
from fulgur.agent.session.history import estimate_tokens, item_text
from fulgur.backends.base import Capabilities
from fulgur.protocol.agent import ImagesSent, MessageDelta, TurnDone, TurnFailed, TurnSteered, Warned

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="
)


@pytest.mark.parametrize(
    ("text", "asked", "pasted"),
    [
        ("what is wrong in @shots/a b.png?", (), ()),
        ("what is wrong in @shots/a.png?", ("shots/a.png",), ()),
        ("@a.PNG, @b.jpeg and @a.PNG", ("a.PNG", "b.jpeg"), ()),
        ("rename logo.png to icon.png", (), ()),
        ("see /tmp/x.webp.", (), ("/tmp/x.webp",)),
        (r"see /tmp/My\ Shot.png now", (), ("/tmp/My Shot.png",)),
        ("see '/tmp/My Shot.png' and \"~/b.gif\"", (), ("/tmp/My Shot.png", "~/b.gif")),
        ("file:///tmp/My%20Shot.png", (), ("/tmp/My Shot.png",)),
        ("https://example.org/a.png and src/a.png", (), ()),
        ("@a.py and /tmp/a.py", (), ()),
    ],
)
def test_names(text: str, asked: tuple[str, ...], pasted: tuple[str, ...]) -> None:
    assert (images_named(text).asked, images_named(text).pasted) == (asked, pasted)


async def test_an_image_goes_to_a_model_that_sees(workspace: Path, tmp_path: Path) -> None:
    (workspace / "a.png").write_bytes(PNG)
    (tmp_path / "My Shot.png").write_bytes(PNG)
    (workspace / "text.png").write_text("no image\n")
    blind = Capabilities(context=10_000)
    async with serving([say("I see.")]) as server, agent_on(server, workspace) as watch:
        end = await watch.turn(f"compare @a.png with '{tmp_path}/My Shot.png' and /tmp/not-there.png")
        assert isinstance(end, TurnDone)
        assert watch.of(ImagesSent)[0].names == ("a.png", f"{tmp_path}/My Shot.png")
        sent = watch.agent.state.history.visible()[1]
        urls = [part["image_url"] for part in sent["content"] if part["type"] == "input_image"]
        assert urls == ["data:image/png;base64," + base64.b64encode(PNG).decode()] * 2
        assert estimate_tokens([sent]) > 3000
        for name, problem in (("text.png", "is not a PNG"), ("gone.png", "No such file")):
            end = await watch.turn(f"look at @{name}")
            assert isinstance(end, TurnFailed) and problem in end.message
    async with serving([say("Nothing.")], capabilities=blind) as server:
        async with agent_on(server, workspace, session="last") as watch:
            # The server would refuse an image: those of the session are left out of what this model is sent.
            end = await watch.turn(f"and now '{tmp_path}/My Shot.png'")
            assert isinstance(end, TurnDone) and "sent as text" in watch.of(Warned)[-1].message
            end = await watch.turn("look at @a.png")
            assert isinstance(end, TurnFailed) and end.message == "m does not take images, so a.png cannot be sent"


async def test_a_redirection_brings_its_images_too(workspace: Path) -> None:
    (workspace / "a.png").write_bytes(PNG)
    replies = [say("I see it.", match="a.png"), {"steps": [{"tokens": 5000}]}]
    async with serving(replies, rate=500) as server, agent_on(server, workspace) as watch:
        watch.agent.submit("a story")
        await watch.until(MessageDelta)
        watch.agent.steer("look at @a.png, and at @gone.png")
        await watch.until(TurnDone)
        assert [event.text for event in watch.of(TurnSteered)] == ["look at @a.png, and at @gone.png"]
        assert "gone.png" in watch.of(Warned)[-1].message and not watch.of(ImagesSent)
        watch.agent.submit("a story")
        await watch.until(MessageDelta, len(watch.seen))
        watch.agent.steer("look at @a.png")
        await watch.until(lambda event: isinstance(event, TurnDone) and event.turn == 2)
        assert watch.of(ImagesSent)[0].names == ("a.png",)
        story, said, image, answer = watch.agent.state.history.visible()[-4:]
        assert item_text(story).startswith(" w0000") and item_text(said) == "look at @a.png"
        assert image["content"][1]["type"] == "input_image" and item_text(answer) == "I see it."
